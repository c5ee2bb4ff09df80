//! Prompts of Inkling, which vLLM builds from special tokens and texts.

use std::collections::HashMap;

use chat_template::{Continuation, Json};

use super::variables::{tools_of, variable};
use crate::chat::PreparedChat;
use crate::error::PrepareError;
use crate::media::{MediaCut, MediaPart};
use crate::message::{given, items, object, text_of};
use crate::vllm::with_parsed_arguments;
use crate::vllm_message::{ValidMessage, validate};

/// Roles and the special tokens that their messages begin with.
const ROLES: [(&str, &str); 5] = [
    ("user", "<|message_user|>"),
    ("assistant", MODEL),
    ("system", SYSTEM),
    ("developer", SYSTEM),
    ("tool", "<|message_tool|>"),
];
const MODEL: &str = "<|message_model|>";
const SYSTEM: &str = "<|message_system|>";
const TEXT: &str = "<|content_text|>";
/// The special token before declared tools, and its name in vocabularies without it.
const XML: [&str; 2] = ["<|content_xml|>", "<|unused_200024|>"];
/// Kinds of parts with media that the model accepts.
const MEDIA: [&str; 4] = ["image_url", "input_image", "input_audio", "audio_url"];
/// Efforts by name.
const EFFORTS: [(&str, f64); 7] =
    [("none", 0.0), ("minimal", 0.1), ("low", 0.2), ("medium", 0.7), ("high", 0.9), ("xhigh", 0.99), ("max", 0.99)];
const EFFORT_DEFAULT: f64 = 0.9;
const EFFORT_MAX: f64 = 0.99;
/// Numbers that JSON cannot express.
const NOT_JSON: [&str; 3] = ["NaN", "Infinity", "-Infinity"];

/// Renders the messages of a request. `has_token` is whether the vocabulary has a token. The result is cut before the first part
/// with media.
pub(super) fn render(
    messages: &[Json],
    prepared: &PreparedChat,
    has_token: &dyn Fn(&str) -> bool,
) -> Result<(String, Option<MediaCut>), PrepareError> {
    if prepared.request.continue_final_message != Continuation::Nothing {
        return Err(PrepareError::rejected("vLLM continues no message of Inkling"));
    }
    let messages = messages.iter().map(validate).collect::<Result<Vec<_>, _>>()?;
    let mut tools = tools_of(prepared)?;
    for message in messages.iter().filter(|message| message.message.role == "developer") {
        let Some(more) = message.tools.as_ref().filter(|tools| tools.is_true()) else { continue };
        tools.extend(items(more).ok_or_else(|| PrepareError::rejected("`tools` of a message is not a list"))?);
    }
    let mut writer = Writer::default();
    if !tools.is_empty() {
        let xml = XML.into_iter().find(|token| has_token(token)).unwrap_or(XML[0]);
        writer.write(SYSTEM, "tool_declare", xml, &declared(&tools)?);
    }
    let mut effort = effort_text(prepared)?;
    for message in &messages {
        if !matches!(message.message.role.as_str(), "system" | "developer")
            && let Some(effort) = effort.take()
        {
            writer.write(SYSTEM, "", TEXT, &effort);
        }
        writer.write_message(message)?;
    }
    if let Some(effort) = effort {
        writer.write(SYSTEM, "", TEXT, &effort);
    }
    if prepared.request.add_generation_prompt != Some(false) {
        writer.text.push_str(MODEL);
    }
    Ok((writer.text, writer.media))
}

/// The sentence about the effort of reasoning. `None` if the variable is not an effort.
fn effort_text(prepared: &PreparedChat) -> Result<Option<String>, PrepareError> {
    let effort = match variable(prepared, "reasoning_effort") {
        None => Some(EFFORT_DEFAULT),
        Some(effort) => match effort.as_str() {
            Some(name) => EFFORTS.iter().find(|(known, _)| *known == name).map(|(_, effort)| *effort),
            None => effort.to_text().parse().ok(),
        },
    };
    let Some(effort) = effort else { return Ok(None) };
    if !(0.0..=EFFORT_MAX).contains(&effort) {
        return Err(PrepareError::rejected(format!("reasoning_effort of Inkling is from 0.0 to {EFFORT_MAX}")));
    }
    let text = format!("{effort:.2}");
    let text = match text.trim_end_matches('0').trim_end_matches('.') {
        "0" | "-0" => "0.0",
        text => text,
    };
    Ok(Some(format!("Thinking effort level: {text}")))
}

/// The declarations of tools.
fn declared(tools: &[Json]) -> Result<String, PrepareError> {
    let wrong = || PrepareError::rejected("a tool has no function with a name");
    let declare = |tool: &Json| {
        let function = tool.get("function").filter(|function| function.entries().is_some()).ok_or_else(wrong)?;
        let filled = |key: &str| given(&function, key).filter(Json::is_true);
        let no_parameters = || object(Vec::<(String, Json)>::new());
        Ok(object([
            ("description", filled("description").unwrap_or_else(|| "".into())),
            ("name", function.get("name").ok_or_else(wrong)?),
            ("parameters", filled("parameters").map_or_else(no_parameters, Ok)?),
            ("type", tool.get("type").unwrap_or_else(|| "function".into())),
        ])?)
    };
    let tools = tools.iter().map(declare).collect::<Result<Vec<_>, PrepareError>>()?;
    Ok(sorted(&Json::list(tools)?)?.to_text())
}

/// A value with the keys of its objects in order.
fn sorted(value: &Json) -> Result<Json, PrepareError> {
    if let Some(mut entries) = value.entries() {
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        let entries = entries.into_iter().map(|(key, value)| Ok((key, sorted(&value)?)));
        return Ok(object(entries.collect::<Result<Vec<_>, PrepareError>>()?)?);
    }
    if let Some(values) = items(value) {
        return Ok(Json::list(values.iter().map(sorted).collect::<Result<Vec<_>, _>>()?)?);
    }
    if value.as_str().is_none() && NOT_JSON.contains(&value.to_text().as_str()) {
        return Err(PrepareError::rejected("a number of a tool or of a tool call is none of JSON"));
    }
    Ok(value.clone())
}

/// A prompt while it is written.
#[derive(Default)]
struct Writer {
    text: String,
    media: Option<MediaCut>,
    /// Names of called functions by the ids of their calls.
    names: HashMap<String, String>,
}

impl Writer {
    /// Writes a text after the token of a role.
    fn write(&mut self, begin: &str, author: &str, kind: &str, text: &str) {
        for piece in [begin, author, kind, text, "<|end_message|>"] {
            self.text.push_str(piece);
        }
    }

    fn write_message(&mut self, valid: &ValidMessage<'_>) -> Result<(), PrepareError> {
        let message = &valid.message;
        let role = message.role.as_str();
        let begin = ROLES.iter().find(|(known, _)| *known == role).map(|(_, token)| *token);
        let begin = begin.ok_or_else(|| PrepareError::rejected(format!("the role {role:?} is unknown to Inkling")))?;
        let parts = parts(valid)?;
        if role == "tool" {
            let called = || self.names.get(&text_of(message.json, "tool_call_id").unwrap_or_default()).cloned();
            let name =
                text_of(message.json, "name").filter(|name| !name.is_empty()).or_else(called).unwrap_or_default();
            let texts = parts.into_iter().map(|part| match part {
                Part::Text(text) => Ok(text),
                Part::Media(_) => Err(PrepareError::rejected("the result of a tool of Inkling has media")),
            });
            let text = texts.collect::<Result<String, _>>()?;
            self.write(begin, &name, TEXT, &text);
            return Ok(());
        }
        if role == "assistant"
            && let Some(reasoning) = valid.reasoning.as_ref().filter(|reasoning| reasoning.is_true())
        {
            let wrong = || PrepareError::rejected("the reasoning of a message is not a text");
            self.write(begin, "", "<|content_thinking|>", reasoning.as_str().ok_or_else(wrong)?);
        }
        for part in parts {
            match part {
                Part::Text(text) => self.write(begin, "", TEXT, &text),
                Part::Media(part) => {
                    self.text.push_str(begin);
                    let bytes = self.text.len();
                    self.media.get_or_insert(MediaCut { kind: part.kind, bytes });
                }
            }
        }
        if role == "assistant" {
            self.write_calls(begin, valid)?;
        }
        Ok(())
    }

    fn write_calls(&mut self, begin: &str, valid: &ValidMessage<'_>) -> Result<(), PrepareError> {
        for call in valid.tool_calls.iter().flatten() {
            let function = with_parsed_arguments(call)?.get("function").unwrap_or_else(Json::null);
            let name = function.get("name").unwrap_or_else(Json::null);
            let arguments = sorted(&function.get("arguments").unwrap_or_else(Json::null))?.to_text();
            let text = format!("{{\"name\":{},\"args\":{arguments}}}", name.to_text());
            let name = name.as_str().unwrap_or_default().to_owned();
            self.write(begin, &name, "<|content_invoke_tool_json|>", &text);
            if let Some(id) = text_of(call, "id").filter(|id| !id.is_empty()) {
                self.names.insert(id, name);
            }
        }
        self.text.push_str("<|content_model_end_sampling|>");
        Ok(())
    }
}

enum Part {
    Text(String),
    Media(MediaPart),
}

/// The parts of a message's content.
fn parts(valid: &ValidMessage<'_>) -> Result<Vec<Part>, PrepareError> {
    let Some(content) = valid.message.get("content") else { return Ok(Vec::new()) };
    if let Some(text) = content.as_str() {
        let part = Some(Part::Text(text.to_owned())).filter(|_| !text.is_empty());
        return Ok(part.into_iter().collect());
    }
    if !valid.is_own {
        return Err(PrepareError::rejected("vLLM fails to read a list of parts of OpenAI's type for Inkling"));
    }
    let part = |part: &Json| {
        if let Some(text) = part.as_str() {
            return Ok(Part::Text(text.to_owned()));
        }
        match text_of(part, "type").unwrap_or_default().as_str() {
            "text" | "input_text" => Ok(Part::Text(text_of(part, "text").unwrap_or_default())),
            kind => match MediaPart::of(kind)?.filter(|part| MEDIA.contains(&part.kind)) {
                Some(part) => Ok(Part::Media(part)),
                None => Err(PrepareError::rejected(format!("a content part of type {kind:?} is unknown to Inkling"))),
            },
        }
    };
    items(&content).unwrap_or_default().iter().map(part).collect()
}
