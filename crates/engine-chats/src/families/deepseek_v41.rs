//! Prompts of DeepSeek-V4.1, which vLLM writes from the messages of the request with its own encoder.

use chat_template::Json;

use super::deepseek::check_variables;
use super::deepseek_turns::{Dialect, IMAGE, Settings, cut_before_image, write};
use super::variables::{tools_of, variable};
use crate::chat::PreparedChat;
use crate::error::PrepareError;
use crate::media::{MediaCut, MediaPart};
use crate::message::{Entries, given, items, object, text_of};
use crate::vllm::with_parsed_arguments;
use crate::vllm_message::{ValidMessage, validate};

const DIALECT: Dialect =
    Dialect { tools: include_str!("deepseek_v41_tools.txt"), calls: " calls", tag_prefix: " ", marks_systems: true };
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];
/// Kinds of parts that the model sees as images.
const IMAGES: [&str; 3] = ["image_url", "input_image", "image_pil"];
/// Efforts by name, out of 100.
const EFFORTS: [(&str, u8); 4] = [("low", 50), ("high", 75), ("xhigh", 75), ("max", 100)];

/// Renders the messages of a request. The result is cut before the first image.
pub(super) fn render(messages: &[Json], prepared: &PreparedChat) -> Result<(String, Option<MediaCut>), PrepareError> {
    check_variables(prepared)?;
    let tools = tools_of(prepared)?;
    let mut settings = Settings::of(prepared);
    let effort = match variable(prepared, "reasoning_effort") {
        Some(effort) if effort.as_str() == Some("none") => {
            settings.thinks = false;
            75
        }
        effort => effort_of(effort.as_ref())?,
    };
    settings.preamble =
        format!("Reasoning Effort: {effort} (range 1-100, the higher the value, the more thorough the reasoning)\n\n");
    let mut image = None;
    let messages = messages.iter().map(|message| normalized(message, &mut image)).collect::<Result<Vec<_>, _>>()?;
    let text = write(&DIALECT, settings, &messages, &tools)?;
    let cut = image.map(|kind| cut_before_image(&text, kind));
    Ok((text, cut))
}

fn effort_of(effort: Option<&Json>) -> Result<u8, PrepareError> {
    let named = |name: &str| EFFORTS.iter().find(|(known, _)| *known == name).map(|(_, effort)| *effort);
    let effort = match effort {
        None => Some(75),
        Some(effort) => match effort.as_str() {
            Some(name) => named(name),
            None => effort.to_text().parse().ok().filter(|effort| (1..=100).contains(effort)),
        },
    };
    effort.ok_or_else(|| {
        PrepareError::rejected(
            "reasoning_effort is unknown to DeepSeek-V4.1, which has low, high, xhigh, max and 1 to 100",
        )
    })
}

/// A message with one text, as the encoder requires it. `image` becomes the kind of the first part with an image.
fn normalized(message: &Json, image: &mut Option<&'static str>) -> Result<Json, PrepareError> {
    let valid = validate(message)?;
    let role = valid.message.role.as_str();
    if !ROLES.contains(&role) {
        return Err(PrepareError::rejected(format!("the role {role:?} is unknown to DeepSeek-V4.1")));
    }
    if message.get("content_blocks").is_some() {
        return Err(PrepareError::Unsupported("a message has `content_blocks`; send token_ids".to_owned()));
    }
    if given(message, "task").is_some_and(|task| task.as_str().is_none()) {
        return Err(PrepareError::Unsupported("the task of a message is not a text; send token_ids".to_owned()));
    }
    let mut entries: Entries =
        vec![("role".to_owned(), role.into()), ("content".to_owned(), content(&valid, image)?.into())];
    for key in ["tool_call_id", "task", "response_format", "wo_eos"] {
        entries.extend(given(message, key).map(|value| (key.to_owned(), value)));
    }
    entries.extend(valid.tools.clone().map(|tools| ("tools".to_owned(), tools)));
    if role == "assistant" {
        let calls = valid.tool_calls.iter().flatten().map(with_parsed_arguments).collect::<Result<Vec<_>, _>>()?;
        entries.push(("tool_calls".to_owned(), Json::list(calls)?));
        entries.extend(valid.reasoning.clone().map(|reasoning| ("reasoning".to_owned(), reasoning)));
    }
    Ok(object(entries)?)
}

/// The texts of a message's content, two lines apart.
fn content(valid: &ValidMessage<'_>, image: &mut Option<&'static str>) -> Result<String, PrepareError> {
    let Some(content) = valid.message.get("content") else { return Ok(String::new()) };
    let Some(parts) = items(&content) else { return Ok(content.as_str().unwrap_or_default().to_owned()) };
    if !valid.is_own {
        return Err(PrepareError::rejected("vLLM fails to copy a list of parts of OpenAI's type for DeepSeek-V4.1"));
    }
    let mut texts = Vec::new();
    for part in &parts {
        let kind = text_of(part, "type").unwrap_or_default();
        let wrong = || {
            PrepareError::rejected(format!(
                "a content part of type {kind:?} is none of DeepSeek-V4.1, which takes texts and images"
            ))
        };
        match kind.as_str() {
            "text" | "input_text" | "output_text" => {
                let text = part.get("text").unwrap_or_else(|| "".into());
                texts.push(text.as_str().ok_or_else(wrong)?.to_owned());
            }
            kind if IMAGES.contains(&kind) => {
                *image = image.or(MediaPart::of(kind)?.map(|part| part.kind));
                texts.push(IMAGE.to_owned());
            }
            _ => return Err(wrong()),
        }
    }
    Ok(texts.join("\n\n"))
}
