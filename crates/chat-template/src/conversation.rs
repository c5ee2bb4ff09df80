//! The preparation that `transformers` does around a rendering: the messages as templates read them, and the
//! continuation of the final message.

use minijinja::Value;

use super::error::ChatError;
use super::json::Json;
use super::python::text::is_space;
use super::python::values::{self, Form, Kind, kind};

/// Marker for the end of a continued message.
const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG";

/// Names of the message field that holds the reasoning.
const REASONING_FIELDS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// The messages of a conversation as pairs of keys and values.
pub(super) struct Conversation {
    messages: Vec<Vec<(Value, Value)>>,
}

/// The mark in a continued message. The rendered text is cut off there.
pub(super) struct ContinuationMark {
    /// The continued text, without the mark.
    text: String,
}

impl Conversation {
    /// Drops keys that are null, and copies a message's reasoning to every name that templates read.
    pub(super) fn new(messages: &[Json]) -> Result<Self, ChatError> {
        let mut conversation = Self::as_given(messages)?;
        for message in &mut conversation.messages {
            message.retain(|(_, value)| !value.is_none());
            alias_reasoning(message);
        }
        Ok(conversation)
    }

    /// Takes the messages as they are.
    pub(super) fn as_given(messages: &[Json]) -> Result<Self, ChatError> {
        if messages.is_empty() {
            return Err(request("`messages` is empty: give at least one message"));
        }
        let messages = messages.iter().enumerate().map(|(at, message)| {
            let Kind::Dict(message) = kind(&message.0) else {
                return Err(request(format!("message {at} is not an object: write {{\"role\": …, \"content\": …}}")));
            };
            Ok(message.pairs())
        });
        Ok(Self { messages: messages.collect::<Result<_, _>>()? })
    }

    /// The variable `messages`.
    pub(super) fn into_value(self) -> Result<Value, ChatError> {
        let messages = self.messages.into_iter().map(values::dict).collect::<Result<_, _>>().and_then(values::list);
        messages.map_err(|error| request(error.to_string()))
    }

    /// Marks the end of the last message's text in a field.
    pub(super) fn mark(&mut self, field: &str, template: &str) -> Result<ContinuationMark, ChatError> {
        let last = self.messages.last_mut().ok_or_else(|| request("there is no message to continue"))?;
        let text = last.iter().find(|(key, _)| key.as_str() == Some(field)).map(|(_, value)| value.clone());
        let Some(text) = text else {
            return Err(request(format!(
                "continue_final_message is set but the final message has no \"{field}\" to continue!"
            )));
        };
        // The reasoning has several names. The template reads one of them.
        let is_reasoning = REASONING_FIELDS.contains(&field);
        let is_copy = |(key, value): &&mut (Value, Value)| match key.as_str() {
            Some(key) if is_reasoning => REASONING_FIELDS.contains(&key) && *value == text,
            key => key == Some(field),
        };
        let mut copies: Vec<&mut (Value, Value)> = last.iter_mut().filter(is_copy).collect();
        if !copies.iter().any(|(key, _)| key.as_str().is_some_and(|key| template.contains(key))) {
            return Err(request(format!(
                "continue_final_message is set to \"{field}\" but this is not an accepted field in the chat_template"
            )));
        }
        let (marked_value, text) = match kind(&text) {
            Kind::Text(text) => (mark_text(text), text.to_owned()),
            Kind::Sequence(parts) if parts.form == Form::List => mark_parts(&parts.items)?,
            _ => {
                return Err(request(format!(
                    "continue_final_message is set but \"{field}\" is not text: write a string"
                )));
            }
        };
        for (_, value) in &mut copies {
            *value = marked_value.clone();
        }
        Ok(ContinuationMark { text })
    }
}

impl ContinuationMark {
    /// Returns the rendered text up to the mark.
    pub(super) fn cut(&self, rendered: String) -> Result<String, ChatError> {
        let text = self.text.trim_matches(is_space);
        let tag = rendered.rfind(TAG).filter(|_| rendered.contains(text));
        let Some(tag) = tag else {
            return Err(request(
                "continue_final_message is set but the final message does not appear in the chat after applying the chat \
                 template! This can happen if the chat template deletes portions of the final message. Please verify the \
                 chat template and final message in your chat to ensure they are compatible.",
            ));
        };
        let kept = &rendered[..tag];
        // A template that trims the text removes the space after the tag, so the text's own trailing whitespace goes too.
        let is_trimmed = !rendered[tag + TAG.len()..].starts_with(' ');
        Ok(if is_trimmed { kept.trim_end_matches(is_space) } else { kept }.to_owned())
    }
}

fn mark_text(text: &str) -> Value {
    Value::from(format!("{text}{TAG} "))
}

/// Marks the text of the last content part that has one.
fn mark_parts(parts: &[Value]) -> Result<(Value, String), ChatError> {
    let mut parts = parts.to_vec();
    for part in parts.iter_mut().rev() {
        let mut pairs = match kind(part) {
            Kind::Dict(dict) => dict.pairs(),
            _ => return Err(request("continue_final_message is set but a content part is not an object")),
        };
        let Some((_, text)) = pairs.iter_mut().find(|(key, _)| key.as_str() == Some("text")) else {
            continue;
        };
        let Some(plain) = text.as_str().map(ToOwned::to_owned) else {
            return Err(request(
                "continue_final_message is set but the last text of the final message is not a string",
            ));
        };
        *text = mark_text(&plain);
        *part = values::dict(pairs).map_err(|error| request(error.to_string()))?;
        let parts = values::list(parts).map_err(|error| request(error.to_string()))?;
        return Ok((parts, plain));
    }
    Err(request("continue_final_message is set but we could not find any text to continue in the final message!"))
}

fn alias_reasoning(message: &mut Vec<(Value, Value)>) {
    let find = |message: &[(Value, Value)], name: &str| message.iter().position(|(key, _)| key.as_str() == Some(name));
    let Some(found) = REASONING_FIELDS.iter().find_map(|field| find(message, field)) else {
        return;
    };
    let reasoning = message[found].1.clone();
    // A template that prints the whole message shows the order of its keys.
    let thinking = match find(message, "thinking") {
        Some(at) => message.remove(at),
        None => (Value::from("thinking"), reasoning.clone()),
    };
    message.insert(0, thinking);
    match find(message, "reasoning_content") {
        Some(at) => message[at].1 = reasoning,
        None => message.push((Value::from("reasoning_content"), reasoning)),
    }
}

fn request(message: impl Into<String>) -> ChatError {
    ChatError::Request(message.into())
}
