//! The template engine: compiles and runs templates within limits.

use std::error::Error as _;
use std::iter;

use jinja_syntax::{Outline, translate};
use minijinja::{Environment, Error, ErrorKind, Value};

use super::effort::Effort;
use super::python::{Clock, TemplateException, WorkLimitExceeded, environment};

/// Maximum depth of calls between macros and recursive loops. A macro counts four times.
const RECURSION_MAX: usize = 400;

/// Maximum length of a template, in bytes.
const TEMPLATE_BYTES_MAX: usize = 1 << 20;

/// Name of the only template of an environment.
const TEMPLATE_NAME: &str = "chat";

/// Compiler of templates.
pub(super) struct Engine {
    environment: Environment<'static>,
}

/// A compiled template.
pub(super) struct CompiledTemplate {
    environment: Environment<'static>,
    /// The same with the limits of [`Effort::Brief`].
    brief: Environment<'static>,
    /// The template's source: a field that is continued must occur in it.
    pub(super) source: String,
    /// The variables and fields that the template reads.
    pub(super) outline: Outline,
}

/// Failure to compile or render a template.
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
        environment.set_fuel(Some(Effort::Full.instructions_max()));
        environment.set_recursion_limit(RECURSION_MAX);
        Self { environment }
    }

    pub(super) fn compile(&self, source: &str) -> Result<CompiledTemplate, EngineError> {
        if source.len() > TEMPLATE_BYTES_MAX {
            let message = format!("the template is longer than {TEMPLATE_BYTES_MAX} bytes; shorten it");
            return Err(EngineError::Syntax { line: 1, message });
        }
        let translated =
            translate(source).map_err(|error| EngineError::Syntax { line: error.line, message: error.message })?;
        let mut environment = self.environment.clone();
        environment.add_template_owned(TEMPLATE_NAME, translated.translation).map_err(|error| EngineError::Syntax {
            line: error.line().unwrap_or(1),
            message: error.detail().unwrap_or("syntax error").to_owned(),
        })?;
        let mut brief = environment.clone();
        brief.set_fuel(Some(Effort::Brief.instructions_max()));
        Ok(CompiledTemplate { environment, brief, source: source.to_owned(), outline: translated.outline })
    }
}

impl CompiledTemplate {
    /// Renders the template with these variables.
    pub(super) fn render(&self, variables: Vec<(String, Value)>, effort: Effort) -> Result<String, EngineError> {
        let environment = match effort {
            Effort::Brief => &self.brief,
            Effort::Full => &self.environment,
        };
        let template = environment.get_template(TEMPLATE_NAME).map_err(describe)?;
        template.render(Value::from_pairs(variables)).map_err(describe)
    }
}

fn describe(error: Error) -> EngineError {
    for cause in iter::successors(error.source(), |&cause| cause.source()) {
        if let Some(TemplateException(message)) = cause.downcast_ref() {
            return EngineError::Raised(message.clone());
        }
        if cause.is::<WorkLimitExceeded>() {
            return EngineError::TooExpensive;
        }
    }
    match error.kind() {
        ErrorKind::OutOfFuel => EngineError::TooExpensive,
        kind => EngineError::Failed {
            line: error.line().unwrap_or(1),
            message: error.detail().map_or_else(|| kind.to_string(), str::to_owned),
        },
    }
}
