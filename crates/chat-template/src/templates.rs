//! The templates of one model, and rendering with them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use jinja_syntax::Outline;
use minijinja::Value;

use super::conversation::Conversation;
use super::effort::Effort;
use super::engine::{CompiledTemplate, Engine, EngineError};
use super::error::ChatError;
use super::json::Json;
use super::model_files::{ModelFiles, Templates};
use super::python::values::{Kind, kind};
use super::request::{ChatRequest, Continuation};

/// Form in which a template receives messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Messages {
    /// Without nulls, and with the other names of a reasoning, as `transformers` 5.20 and later.
    Completed,
    /// As they are, as in `transformers` before 5.20, which engines use. Nulls are Python's `None`.
    AsGiven,
}

/// The chat templates and special tokens of one model.
pub struct ChatTemplates {
    engine: Engine,
    templates: CompiledTemplates,
    special_tokens: BTreeMap<String, String>,
}

/// The compiled templates of a model, by name unless there is only one.
enum CompiledTemplates {
    None,
    One(Box<Template>),
    Named(BTreeMap<String, Template>),
}

/// A compiled template. A template that does not compile is an error only when a request selects it.
type Template = Result<CompiledTemplate, EngineError>;

impl ChatTemplates {
    /// Reads the templates and special tokens of a model's directory: `chat_template.jinja` and
    /// `additional_chat_templates/*.jinja`, else `tokenizer_config.json`, else `chat_template.json`. `None` when the directory has
    /// none of these files. `strftime_now` prints the system's time in UTC.
    ///
    /// # Errors
    ///
    /// If a file cannot be read or parsed. A syntax error in a template is reported when the template is used.
    pub fn read(dir: &Path) -> Result<Option<Self>, ChatError> {
        Self::read_with_clock(dir, SystemTime::now)
    }

    /// Like [`read`](Self::read), with a clock for `strftime_now`.
    ///
    /// # Errors
    ///
    /// Same as [`read`](Self::read).
    pub fn read_with_clock(
        dir: &Path,
        clock: impl Fn() -> SystemTime + Send + Sync + 'static,
    ) -> Result<Option<Self>, ChatError> {
        let files = ModelFiles::read(dir)?;
        if files.is_empty {
            return Ok(None);
        }
        let engine = Engine::new(Arc::new(clock));
        let templates = match files.templates {
            Templates::None => CompiledTemplates::None,
            Templates::One(source) => CompiledTemplates::One(Box::new(engine.compile(&source))),
            Templates::Named(templates) => CompiledTemplates::Named(
                templates.into_iter().map(|(name, source)| (name, engine.compile(&source))).collect(),
            ),
        };
        Ok(Some(Self { engine, templates, special_tokens: files.special_tokens }))
    }

    /// No templates and no special tokens: renders templates that requests contain.
    pub fn none() -> Self {
        Self {
            engine: Engine::new(Arc::new(SystemTime::now)),
            templates: CompiledTemplates::None,
            special_tokens: BTreeMap::new(),
        }
    }

    /// Adds special tokens that the model's files do not name.
    pub fn add_special_tokens<'t>(&mut self, tokens: impl IntoIterator<Item = (&'t str, &'t str)>) {
        for (name, token) in tokens {
            self.special_tokens.entry(name.to_owned()).or_insert_with(|| token.to_owned());
        }
    }

    /// A special token of the model, by the name of its variable, such as `bos_token`.
    pub fn special_token(&self, name: &str) -> Option<&str> {
        self.special_tokens.get(name).map(String::as_str)
    }

    /// Whether the model has a template.
    pub fn has_template(&self) -> bool {
        !matches!(self.templates, CompiledTemplates::None)
    }

    /// Passes the source and the outline of the template that a request selects to `inspect`: engines read from them
    /// how the template wants messages. `has_tools` is whether the request has a list of tools, which may be empty.
    ///
    /// # Errors
    ///
    /// If the template is missing or has a syntax error.
    pub fn inspect<T>(
        &self,
        chat_template: Option<&str>,
        has_tools: bool,
        inspect: impl FnOnce(&str, &Outline) -> T,
    ) -> Result<T, ChatError> {
        self.with_template(chat_template, has_tools, |_, template| Ok(inspect(&template.source, &template.outline)))
    }

    /// Renders a chat, as `apply_chat_template(…, tokenize=False)` of `transformers` does.
    ///
    /// Cost: the cost of the template, within the [limits of the crate](crate#limits).
    ///
    /// # Errors
    ///
    /// If the request is invalid, or the template is missing, has a syntax error, raises an exception or exceeds a limit.
    pub fn render(&self, request: &ChatRequest) -> Result<String, ChatError> {
        self.render_within(request, Messages::Completed, Effort::Full)
    }

    /// Renders a chat within the limits of an effort.
    ///
    /// # Errors
    ///
    /// Same as [`render`](Self::render).
    pub fn render_within(
        &self,
        request: &ChatRequest,
        messages: Messages,
        effort: Effort,
    ) -> Result<String, ChatError> {
        let mut inputs = Inputs::new(request)?;
        let requested = inputs.chat_template.take();
        self.with_template(requested.as_deref(), inputs.tools.is_some(), |name, template| {
            inputs.check()?;
            let mut conversation = match messages {
                Messages::Completed => Conversation::new(&request.messages)?,
                Messages::AsGiven => Conversation::as_given(&request.messages)?,
            };
            let continued = inputs.continuation.field();
            let marked = continued.map(|field| conversation.mark(field, &template.source)).transpose()?;
            let variables = self.variables(inputs, conversation)?;
            let rendered = template.render(variables, effort).map_err(|error| ChatError::of_template(name, error))?;
            match marked {
                Some(marked) => marked.cut(rendered),
                None => Ok(rendered),
            }
        })
    }

    /// Passes the chosen template and its name to `work`.
    fn with_template<T>(
        &self,
        requested: Option<&str>,
        has_tools: bool,
        work: impl FnOnce(&str, &CompiledTemplate) -> Result<T, ChatError>,
    ) -> Result<T, ChatError> {
        match self.choose(requested, has_tools)? {
            Choice::Model(name, template) => {
                work(name, template.as_ref().map_err(|error| ChatError::of_template(name, error.clone()))?)
            }
            Choice::Requested(source) => {
                let name = "of the request";
                work(name, &self.engine.compile(source).map_err(|error| ChatError::of_template(name, error))?)
            }
        }
    }

    fn choose<'t>(&'t self, requested: Option<&'t str>, has_tools: bool) -> Result<Choice<'t>, ChatError> {
        match (&self.templates, requested) {
            (CompiledTemplates::Named(templates), requested) => {
                let name = match requested {
                    Some(name) if templates.contains_key(name) => name,
                    Some(source) => return Ok(Choice::Requested(source)),
                    None if has_tools && templates.contains_key("tool_use") => "tool_use",
                    None => "default",
                };
                match templates.get_key_value(name) {
                    Some((name, template)) => Ok(Choice::Model(name, template)),
                    None => Err(ChatError::NoTemplate(format!(
                        "failed to choose a chat template: the model has several and none is named `default`; set \
                         `chat_template` to one of {:?}",
                        templates.keys().collect::<Vec<_>>()
                    ))),
                }
            }
            (_, Some(source)) => Ok(Choice::Requested(source)),
            (CompiledTemplates::One(template), None) => Ok(Choice::Model("default", template)),
            (CompiledTemplates::None, None) => Err(ChatError::NoTemplate(
                "failed to choose a chat template: the model has no chat template; add chat_template.jinja to its directory, or send \
                 `chat_template`"
                    .into(),
            )),
        }
    }

    fn variables(&self, inputs: Inputs, conversation: Conversation) -> Result<Vec<(String, Value)>, ChatError> {
        let mut variables: BTreeMap<String, Value> =
            self.special_tokens.iter().map(|(name, token)| (name.clone(), Value::from(token.as_str()))).collect();
        variables.extend(inputs.variables);
        variables.insert("messages".into(), conversation.into_value()?);
        variables.insert("tools".into(), json_list(inputs.tools)?);
        variables.insert("documents".into(), json_list(inputs.documents)?);
        variables.insert("add_generation_prompt".into(), Value::from(inputs.add_generation_prompt));
        Ok(variables.into_iter().collect())
    }
}

enum Choice<'t> {
    Model(&'t str, &'t Template),
    Requested(&'t str),
}

/// The fields of a request after `chat_template_kwargs` has replaced some of them.
struct Inputs {
    tools: Option<Vec<Json>>,
    documents: Option<Vec<Json>>,
    chat_template: Option<String>,
    add_generation_prompt: bool,
    continuation: Continuation,
    returns_mask: bool,
    variables: Vec<(String, Value)>,
}

impl Inputs {
    fn new(request: &ChatRequest) -> Result<Self, ChatError> {
        let mut inputs = Self {
            tools: request.tools.clone(),
            documents: request.documents.clone(),
            chat_template: request.chat_template.clone(),
            add_generation_prompt: false,
            continuation: request.continue_final_message.clone(),
            returns_mask: request.return_assistant_tokens_mask.unwrap_or(false),
            variables: Vec::new(),
        };
        let mut add_generation_prompt = request.add_generation_prompt;
        let kwargs = request.chat_template_kwargs.as_ref().filter(|kwargs| !kwargs.is_null());
        let kwargs = match kwargs.map(|kwargs| kind(&kwargs.0)) {
            None => Vec::new(),
            Some(Kind::Dict(kwargs)) => kwargs.pairs(),
            Some(_) => return Err(ChatError::Request("`chat_template_kwargs` is not an object".into())),
        };
        for (name, value) in kwargs {
            let name = name.to_string();
            let wrong_type = || ChatError::Request(format!("`{name}` in `chat_template_kwargs` has the wrong type"));
            match name.as_str() {
                "tools" => inputs.tools = list_of(&value).ok_or_else(wrong_type)?,
                "documents" => inputs.documents = list_of(&value).ok_or_else(wrong_type)?,
                "chat_template" if value.is_none() => inputs.chat_template = None,
                "chat_template" => inputs.chat_template = Some(value.as_str().ok_or_else(wrong_type)?.to_owned()),
                "add_generation_prompt" => add_generation_prompt = Some(value.is_true()),
                "continue_final_message" => {
                    inputs.continuation = Continuation::from_json(&Json(value.clone())).ok_or_else(wrong_type)?;
                }
                "return_assistant_tokens_mask" => inputs.returns_mask = value.is_true(),
                "messages" | "conversation" | "conversations" => {
                    let message = format!("`{name}` cannot be in `chat_template_kwargs`; use the field `messages`");
                    return Err(ChatError::Request(message));
                }
                _ => inputs.variables.push((name, value)),
            }
        }
        inputs.add_generation_prompt = add_generation_prompt.unwrap_or(inputs.continuation == Continuation::Nothing);
        Ok(inputs)
    }

    /// Rejects invalid fields, and fields that exclude each other.
    fn check(&self) -> Result<(), ChatError> {
        let refuse = |message: &str| Err(ChatError::Request(message.to_owned()));
        if self.continuation != Continuation::Nothing {
            if self.add_generation_prompt {
                return refuse(
                    "continue_final_message and add_generation_prompt are not compatible. Use continue_final_message when \
                     you want the model to continue the final message, and add_generation_prompt when you want to add a \
                     header that will prompt it to start a new assistant message instead.",
                );
            }
            if self.returns_mask {
                return refuse("continue_final_message is not compatible with return_assistant_tokens_mask.");
            }
        }
        let is_object = |value: &Json| matches!(kind(&value.0), Kind::Dict(_));
        if !self.tools.iter().flatten().all(is_object) {
            return refuse("a tool is not an object; write it as a JSON schema");
        }
        if !self.documents.iter().flatten().all(is_object) {
            return refuse("a document is not an object; write it with the keys `title` and `text`");
        }
        Ok(())
    }
}

fn list_of(value: &Value) -> Option<Option<Vec<Json>>> {
    match kind(value) {
        Kind::None => Some(None),
        Kind::Sequence(items) => Some(Some(items.items.iter().cloned().map(Json).collect())),
        _ => None,
    }
}

fn json_list(items: Option<Vec<Json>>) -> Result<Value, ChatError> {
    Ok(items.map_or_else(|| Ok(Json::null()), Json::list)?.0)
}
