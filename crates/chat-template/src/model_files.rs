//! Reader of a model's directory: templates by name, and special tokens.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::error::ChatError;

/// The chat templates and special tokens of a model's directory.
#[derive(Debug, Default)]
pub(super) struct ModelFiles {
    /// Templates by name.
    pub(super) templates: Templates,
    /// Special tokens by the name of their variable.
    pub(super) special_tokens: BTreeMap<String, String>,
    /// Whether the directory has none of the files.
    pub(super) is_empty: bool,
}

/// The templates of a model.
#[derive(Debug, Default)]
pub(super) enum Templates {
    /// No template.
    #[default]
    None,
    /// One template for every request.
    One(String),
    /// Several templates, selected by name.
    Named(BTreeMap<String, String>),
}

impl ModelFiles {
    /// Reads a directory.
    pub(super) fn read(dir: &Path) -> Result<Self, ChatError> {
        let config = read_object(&dir.join("tokenizer_config.json"))?;
        let special_tokens_map = read_object(&dir.join("special_tokens_map.json"))?;
        let files = template_files(dir)?;
        let mut is_empty = config.is_none() && files.is_empty();
        let mut templates = Templates::from_files(files);
        if let (Templates::None, Some(template)) = (&templates, config.as_ref().and_then(|c| c.get("chat_template"))) {
            templates = Templates::from_json(template, &dir.join("tokenizer_config.json"))?;
        }
        let path = dir.join("chat_template.json");
        if let (Templates::None, Some(object)) = (&templates, read_object(&path)?) {
            is_empty = false;
            let template = object.get("chat_template").ok_or_else(|| malformed(&path, "`chat_template` is missing"))?;
            templates = Templates::from_json(template, &path)?;
        }
        let special_tokens = special_tokens(config.unwrap_or_default(), special_tokens_map.unwrap_or_default());
        Ok(Self { templates, special_tokens, is_empty })
    }
}

impl Templates {
    fn from_files(mut files: BTreeMap<String, String>) -> Self {
        match files.len() {
            0 => Self::None,
            1 => match files.remove("default") {
                Some(template) => Self::One(template),
                None => Self::Named(files),
            },
            _ => Self::Named(files),
        }
    }

    fn from_json(value: &Value, path: &Path) -> Result<Self, ChatError> {
        let invalid = || malformed(path, "`chat_template` is neither a string nor a list of {\"name\", \"template\"}");
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned).ok_or_else(invalid);
        let named: Result<_, ChatError> = match value {
            Value::Null => return Ok(Self::None),
            Value::String(template) => return Ok(Self::One(template.clone())),
            Value::Array(entries) => {
                let named = |entry: &Value| Ok((text(entry.get("name"))?, text(entry.get("template"))?));
                entries.iter().map(named).collect()
            }
            Value::Object(entries) => {
                entries.iter().map(|(name, template)| Ok((name.clone(), text(Some(template))?))).collect()
            }
            _ => Err(invalid()),
        };
        named.map(Self::Named)
    }
}

/// Reads `chat_template.jinja`, which is the template named `default`, and `additional_chat_templates/*.jinja`.
fn template_files(dir: &Path) -> Result<BTreeMap<String, String>, ChatError> {
    let mut templates = BTreeMap::new();
    if let Some(template) = read_text(&dir.join("chat_template.jinja"))? {
        templates.insert("default".to_owned(), template);
    }
    let additional = dir.join("additional_chat_templates");
    let entries = match fs::read_dir(&additional) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(templates);
        }
        Err(source) => return Err(ChatError::Unreadable { path: additional, source }),
    };
    for entry in entries {
        let path = entry.map_err(|source| ChatError::Unreadable { path: additional.clone(), source })?.path();
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".jinja"));
        if let Some(name) = name
            && let Some(template) = read_text(&path)?
        {
            templates.insert(name.to_owned(), template);
        }
    }
    Ok(templates)
}

/// The special tokens that are variables of templates, by name.
fn special_tokens(mut config: Map<String, Value>, map: Map<String, Value>) -> BTreeMap<String, String> {
    // `special_tokens_map.json` is used only if `tokenizer_config.json` does not list the tokens.
    if !config.contains_key("added_tokens_decoder") {
        config.extend(map);
    }
    let named = config.iter().filter(|(name, _)| name.ends_with("_token"));
    let fields = ["extra_special_tokens", "model_specific_special_tokens"];
    let extra = fields.iter().filter_map(|field| config.get(*field)?.as_object()).flatten();
    named.chain(extra).filter_map(|(name, value)| Some((name.clone(), token_text(value)?))).collect()
}

/// A token is a string, or an object with the string as its content.
fn token_text(value: &Value) -> Option<String> {
    let text = value.as_str().or_else(|| value.get("content").and_then(Value::as_str));
    text.map(str::to_owned)
}

fn read_text(path: &Path) -> Result<Option<String>, ChatError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ChatError::Unreadable { path: path.to_owned(), source }),
    }
}

fn read_object(path: &Path) -> Result<Option<Map<String, Value>>, ChatError> {
    let Some(text) = read_text(path)? else {
        return Ok(None);
    };
    let value: Value =
        serde_json::from_str(&text).map_err(|error| malformed(path, &format!("it is not JSON: {error}")))?;
    match value {
        Value::Object(object) => Ok(Some(object)),
        _ => Err(malformed(path, "it is not a JSON object")),
    }
}

fn malformed(path: &Path, reason: &str) -> ChatError {
    ChatError::Malformed { path: PathBuf::from(path), reason: reason.to_owned() }
}
