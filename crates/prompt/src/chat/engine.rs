//! Compiling and running templates within bounds.

use std::error::Error as _;

use minijinja::{Environment, Error, ErrorKind, Value};

use super::python::{Budget, Clock, Raised, environment};
use super::template::translate;

/// The instructions that one rendering may take, at some 20 to 100 ns each.
const FUEL: u64 = 10_000_000;

/// How deeply macros and loops may call each other; a macro counts four times.
const RECURSION_MAX: usize = 400;

/// The longest template, in bytes.
const TEMPLATE_BYTES_MAX: usize = 1 << 20;

/// The name under which an environment has its only template.
const ONLY: &str = "chat";

/// What templates are compiled with. Cheap to clone.
#[derive(Clone)]
pub(super) struct Engine {
    environment: Environment<'static>,
}

/// A template that is ready to be rendered.
pub(super) struct Compiled {
    environment: Environment<'static>,
    /// The template's text: what is continued must be named in it.
    pub(super) source: String,
}

/// Why a template could not be compiled or rendered.
#[derive(Debug, Clone)]
pub(super) enum EngineError {
    Syntax { line: usize, message: String },
    Raised(String),
    Failed { line: usize, message: String },
    TooExpensive,
}

impl Engine {
    pub(super) fn new(clock: Clock) -> Self {
        let mut environment = environment(clock);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(RECURSION_MAX);
        Self { environment }
    }

    pub(super) fn compile(&self, source: &str) -> Result<Compiled, EngineError> {
        if source.len() > TEMPLATE_BYTES_MAX {
            let message = format!("a template of more than {TEMPLATE_BYTES_MAX} bytes is not read: make it shorter");
            return Err(EngineError::Syntax { line: 1, message });
        }
        let translated =
            translate(source).map_err(|error| EngineError::Syntax { line: error.line, message: error.message })?;
        let mut environment = self.environment.clone();
        environment.add_template_owned(ONLY, translated).map_err(|error| EngineError::Syntax {
            line: error.line().unwrap_or(1),
            message: error.detail().unwrap_or("not understood").to_owned(),
        })?;
        Ok(Compiled { environment, source: source.to_owned() })
    }
}

impl Compiled {
    /// The template's text with the variables filled in.
    pub(super) fn render(&self, variables: Vec<(String, Value)>) -> Result<String, EngineError> {
        let template = self.environment.get_template(ONLY).map_err(describe)?;
        template.render(Value::from_pairs(variables)).map_err(describe)
    }
}

fn describe(error: Error) -> EngineError {
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return EngineError::Raised(message.clone());
        }
        if cause.is::<Budget>() {
            return EngineError::TooExpensive;
        }
        source = cause.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => EngineError::TooExpensive,
        kind => EngineError::Failed {
            line: error.line().unwrap_or(1),
            message: error.detail().map_or_else(|| kind.to_string(), str::to_owned),
        },
    }
}
