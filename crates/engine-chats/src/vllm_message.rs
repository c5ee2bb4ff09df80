//! How vLLM validates a message: as OpenAI's type of the role, or as vLLM's own type, whichever has more of the message's fields.
//!
//! Both keep the fields that they do not know. OpenAI's types validate the items of lists strictly and later; so fields in
//! lists are counted for vLLM's type only, which accepts parts of any kind.

use chat_template::Json;

use super::error::PrepareError;
use super::lax::truth_of;
use super::media::is_media;
use super::message::{Entries, Message, given, items, object, replaced};

/// Keys of vLLM's own type, other than `role` and `content`.
const OWN_KEYS: [&str; 6] = ["name", "tool_call_id", "tool_calls", "reasoning", "tools", "task"];

/// A valid message.
pub(super) struct ValidMessage<'j> {
    pub(super) message: Message<'j>,
    /// The tool calls in the order of OpenAI's type.
    pub(super) tool_calls: Option<Vec<Json>>,
    pub(super) reasoning: Option<Json>,
    /// The tools of a developer's message.
    pub(super) tools: Option<Json>,
    /// Whether the message has vLLM's type, and not OpenAI's.
    pub(super) is_own: bool,
}

impl ValidMessage<'_> {
    /// Checks the parts of the content, which OpenAI's types validate when they are read.
    pub(super) fn check_parts(&self) -> Result<(), PrepareError> {
        match self.message.get("content").filter(|_| !self.is_own) {
            Some(content) => check_parts(&self.message.role, &content),
            None => Ok(()),
        }
    }
}

/// Validates a message with its parts.
pub(super) fn validate(json: &Json) -> Result<ValidMessage<'_>, PrepareError> {
    let valid = validate_but_parts(json)?;
    valid.check_parts()?;
    Ok(valid)
}

/// Validates a message without its parts.
pub(super) fn validate_but_parts(json: &Json) -> Result<ValidMessage<'_>, PrepareError> {
    let message = Message::of(json)?;
    let reasoning = message.get("reasoning").or_else(|| message.get("reasoning_content"));
    let own = own_fields(&message, reasoning.as_ref());
    let openai = openai_keys(&message).map(|keys| openai_fields(&message, keys));
    // `None` is less than any number of fields.
    let is_own = own > openai;
    if !is_own && openai.is_none() {
        return Err(no_type_fits(&message));
    }
    let tool_calls = match message.get("tool_calls").filter(|_| message.role == "assistant") {
        Some(calls) => {
            let calls = items(&calls).ok_or_else(|| no_type_fits(&message))?;
            Some(calls.iter().map(tool_call).collect::<Result<_, _>>()?)
        }
        None => None,
    };
    let tools = match message.get("tools") {
        Some(tools) if is_own => {
            let tools = items(&tools).ok_or_else(|| no_type_fits(&message))?;
            Some(Json::list(tools.iter().map(tool).collect::<Result<Vec<_>, _>>()?)?)
        }
        tools => tools,
    };
    Ok(ValidMessage { message, tool_calls, reasoning, tools, is_own })
}

fn no_type_fits(message: &Message<'_>) -> PrepareError {
    PrepareError::rejected(format!(
        "a message of role {:?} fits no type of vLLM: check the types of its fields, and which of them may be null",
        message.role
    ))
}

/// The keys of OpenAI's type of a role. `None` if the message does not fit the type.
fn openai_keys(message: &Message<'_>) -> Option<&'static [&'static str]> {
    let content = message.json.get("content");
    let has_content = content.as_ref().is_some_and(|content| !content.is_null());
    let is_text_or_list = content.as_ref().is_none_or(|it| it.is_null() || it.as_str().is_some() || is_iterable(it));
    let is_text = |key: &str| message.json.get(key).is_none_or(|value| value.as_str().is_some());
    let (keys, fits): (&'static [&'static str], bool) = match message.role.as_str() {
        "developer" | "system" | "user" => (&["name"], has_content && is_text("name")),
        "tool" => (&["tool_call_id"], has_content && message.get("tool_call_id").is_some() && is_text("tool_call_id")),
        "function" => (&["name"], content.is_some() && message.get("name").is_some() && is_text("name")),
        "assistant" => {
            let calls_fit = message.json.get("tool_calls").is_none_or(|calls| is_iterable(&calls));
            let has_texts = |key: &str, texts: &[&str]| {
                message.get(key).is_none_or(|value| {
                    texts.iter().all(|text| value.get(text).is_some_and(|text| text.as_str().is_some()))
                })
            };
            let nested_fit = has_texts("audio", &["id"]) && has_texts("function_call", &["arguments", "name"]);
            let refusal_fits = message.get("refusal").is_none_or(|refusal| refusal.as_str().is_some());
            let keys = &["audio", "function_call", "name", "refusal", "tool_calls"];
            (keys, calls_fit && is_text("name") && nested_fit && refusal_fits)
        }
        _ => return None,
    };
    (fits && is_text_or_list).then_some(keys)
}

/// Whether Python iterates over a value. An object is iterated over by its keys, which are not parts.
fn is_iterable(value: &Json) -> bool {
    items(value).is_some() || value.entries().is_some()
}

/// Number of fields that OpenAI's type takes.
fn openai_fields(message: &Message<'_>, keys: &[&str]) -> usize {
    let nested = ["audio", "function_call"].iter().filter_map(|key| message.get(key)?.entries()).map(|it| it.len());
    let own = ["role", "content"].iter().chain(keys).filter(|key| message.json.get(key).is_some()).count();
    own + if message.role == "assistant" { nested.sum() } else { 0 }
}

/// Number of fields that vLLM's type takes. `None` if the message does not fit the type.
fn own_fields(message: &Message<'_>, reasoning: Option<&Json>) -> Option<usize> {
    let mut fields = 1;
    if let Some(content) = message.json.get("content") {
        fields += 1;
        if content.as_str().is_none() {
            for part in items(&content)? {
                fields += part_fields(&part)?;
            }
        }
    }
    for key in OWN_KEYS {
        let value = match key {
            "reasoning" => reasoning.cloned().or_else(|| message.json.get(key)),
            _ => message.json.get(key),
        };
        let Some(value) = value else { continue };
        fields += 1;
        fields += match key {
            "name" => value.as_str().map(|_| 0)?,
            _ if value.is_null() => 0,
            "tool_calls" => items(&value)?.iter().map(call_fields).sum::<Option<usize>>()?,
            "tools" => items(&value)?.iter().map(tool_fields).sum::<Option<usize>>()?,
            _ => value.as_str().map(|_| 0)?,
        };
    }
    Some(fields)
}

/// Number of fields of a content part that vLLM knows. A part of an unknown kind has none. `None` if it is not a part.
fn part_fields(part: &Json) -> Option<usize> {
    if part.as_str().is_some() {
        return Some(0);
    }
    part.entries()?;
    let kind = given(part, "type");
    let is_text = |key: &str| given(part, key).is_some_and(|value| value.as_str().is_some());
    Some(match kind.as_ref().and_then(Json::as_str) {
        Some("text") if is_text("text") => 2,
        Some("refusal") if is_text("refusal") => 2,
        Some("thinking") if is_text("thinking") => match part.get("closed") {
            Some(closed) => usize::from(truth_of(&closed).is_some()) * 3,
            None => 2,
        },
        Some("tool_reference") if is_text("name") => 2,
        Some(kind) if is_media(kind) => 2,
        _ => 0,
    })
}

/// Number of fields of a tool call of type `function`. `None` if it is not one.
fn call_fields(call: &Json) -> Option<usize> {
    let is_text = |json: &Json, key: &str| given(json, key).is_some_and(|value| value.as_str().is_some());
    let function = given(call, "function")?;
    let is_function = given(call, "type")?.as_str() == Some("function");
    (is_function && is_text(call, "id") && is_text(&function, "name") && is_text(&function, "arguments")).then_some(5)
}

/// Number of fields of a tool in a developer's message.
fn tool_fields(tool: &Json) -> Option<usize> {
    let function = given(tool, "function")?;
    let known = ["name", "description", "parameters", "strict"];
    Some(2 + known.iter().filter(|key| function.get(key).is_some()).count())
}

/// Checks the parts that OpenAI's types validate.
fn check_parts(role: &str, content: &Json) -> Result<(), PrepareError> {
    if content.as_str().is_some() || content.entries().is_some_and(|entries| entries.is_empty()) {
        return Ok(());
    }
    let wrong = || PrepareError::rejected(format!("a content part of role {role:?} is of no type that vLLM takes"));
    for part in items(content).ok_or_else(wrong)? {
        if part_fields(&part).is_none_or(|fields| fields == 0) {
            return Err(wrong());
        }
    }
    Ok(())
}

/// A tool call in the order of OpenAI's type, with unknown keys after the known ones.
pub(super) fn tool_call(call: &Json) -> Result<Json, PrepareError> {
    if call_fields(call).is_none() {
        return Err(PrepareError::rejected(
            "a tool call does not fit OpenAI's type: write {\"id\": …, \"type\": \"function\", \"function\": {\"name\": …, \
             \"arguments\": \"…\"}}",
        ));
    }
    with_order(call, &["id", "function", "type"], &["arguments", "name"])
}

/// A tool in the order of OpenAI's type.
fn tool(tool: &Json) -> Result<Json, PrepareError> {
    with_order(tool, &["function", "type"], &["name", "description", "parameters", "strict"])
}

/// An object with `keys` first, and `function_keys` first in its function.
fn with_order(json: &Json, keys: &[&str], function_keys: &[&str]) -> Result<Json, PrepareError> {
    let function = given(json, "function").unwrap_or_else(Json::null);
    let function = object(ordered(&function, function_keys))?;
    Ok(object(ordered(&replaced(json, "function", &function)?, keys))?)
}

/// The entries of an object, entries with `keys` first.
fn ordered(json: &Json, keys: &[&str]) -> Entries {
    let mut entries = json.entries().unwrap_or_default();
    let position = |name: &str| keys.iter().position(|key| *key == name).unwrap_or(keys.len());
    entries.sort_by_key(|(name, _)| position(name));
    entries
}
