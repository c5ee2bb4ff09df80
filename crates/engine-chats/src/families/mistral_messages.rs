//! Messages of a chat as Mistral's own library, `mistral-common`, reads, validates and joins them.

use std::collections::{HashMap, HashSet};

use chat_template::{Json, JsonParser};

use super::mistral_files::Version;
use crate::error::PrepareError;
use crate::media::MediaPart;
use crate::message::{given, items, text_of};
use crate::vllm::with_parsed_arguments;
use crate::vllm_message::{ValidMessage, validate};

/// Length of a call's id in characters. vLLM keeps the last ones.
const CALL_ID_CHARACTERS: usize = 9;
const NAME_BYTES_MAX: usize = 64;
/// Separator between the texts of two messages.
const MESSAGE_SEPARATOR: &str = "\n\n";

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Role {
    System,
    User,
    Assistant,
    Tool,
}

/// A message, or several of one role as one.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) role: Role,
    /// Whether the request has a text or a part for it, even an empty part.
    pub(super) has_content: bool,
    pub(super) chunks: Vec<Chunk>,
    pub(super) calls: Vec<Call>,
    /// The id of the call that a tool's message answers.
    pub(super) call_id: String,
    /// Whether the model continues the message.
    pub(super) is_prefix: bool,
}

#[derive(Debug)]
pub(super) enum Chunk {
    Text(String),
    Thinking { text: String, is_closed: bool },
    Media(MediaPart),
}

/// A tool call.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) id: String,
    pub(super) name: String,
    /// An object.
    pub(super) arguments: Json,
}

impl Message {
    pub(super) fn new(role: Role) -> Self {
        Self {
            role,
            has_content: false,
            chunks: Vec::new(),
            calls: Vec::new(),
            call_id: String::new(),
            is_prefix: false,
        }
    }

    /// The first part with media.
    pub(super) fn media(&self) -> Option<&'static str> {
        self.chunks.iter().find_map(|chunk| match chunk {
            Chunk::Media(part) => Some(part.kind),
            _ => None,
        })
    }

    /// Appends the parts of a message. Texts of two messages are two lines apart, and so are the texts of one message before
    /// version 15, unless another part is between them.
    fn extend(&mut self, chunks: Vec<Chunk>, version: Version) {
        let mut separator = MESSAGE_SEPARATOR;
        for chunk in chunks {
            match (chunk, self.chunks.last_mut()) {
                (Chunk::Text(text), _) if text.is_empty() => continue,
                (Chunk::Text(text), Some(Chunk::Text(before))) => {
                    before.push_str(separator);
                    before.push_str(&text);
                }
                (chunk, _) => self.chunks.push(chunk),
            }
            separator = if version < Version::V15 { MESSAGE_SEPARATOR } else { "" };
        }
    }
}

/// The messages that are written, validated and joined.
pub(super) fn read(messages: &[Json], version: Version, is_continued: bool) -> Result<Vec<Message>, PrepareError> {
    let mut messages =
        messages.iter().map(|json| read_one(&validate(json)?, version)).collect::<Result<Vec<_>, _>>()?;
    if let Some(last) = messages.last_mut() {
        last.is_prefix = is_continued;
    }
    check_order(&messages)?;
    if version < Version::V11 {
        check_number_of_results(&messages)?
    } else {
        check_ids(&messages)?
    }
    Ok(joined(messages, version))
}

fn wrong(message: impl Into<String>) -> PrepareError {
    PrepareError::rejected(message)
}

fn read_one(valid: &ValidMessage<'_>, version: Version) -> Result<Message, PrepareError> {
    let json = valid.message.json;
    let role = match valid.message.role.as_str() {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        role => return Err(wrong(format!("the role {role:?} is unknown to Mistral's models"))),
    };
    if role != Role::Assistant && json.get("content").is_none() {
        return Err(wrong("a message has no content"));
    }
    let chunks = chunks(valid)?;
    let is_empty_text = valid.message.get("content").is_some_and(|content| content.as_str() == Some(""));
    let has_content = !is_empty_text && !chunks.is_empty();
    let mut message = Message { has_content, chunks, ..Message::new(role) };
    if let Some(reasoning) = valid.reasoning.as_ref().filter(|_| role == Role::Assistant) {
        let text = reasoning.as_str().ok_or_else(|| wrong("the reasoning of a message is not a text"))?.to_owned();
        if message.chunks.iter().any(|chunk| matches!(chunk, Chunk::Thinking { .. })) {
            return Err(wrong("a message has reasoning and parts of type \"thinking\""));
        }
        message.chunks.insert(0, Chunk::Thinking { text, is_closed: true });
    }
    let thinks = message.chunks.iter().any(|chunk| matches!(chunk, Chunk::Thinking { .. }));
    let may_think = match role {
        Role::Assistant => version >= Version::V13,
        Role::System => version == Version::V13,
        Role::User | Role::Tool => false,
    };
    if thinks && !may_think {
        return Err(wrong("the model's tokenizer has no reasoning in messages of this role"));
    }
    if let Some(kind) = message.media()
        && !match role {
            Role::User => version >= Version::V7 || !kind.contains("audio"),
            Role::Tool => version >= Version::V15,
            Role::System | Role::Assistant => false,
        }
    {
        return Err(wrong(format!("a content part of type {kind:?} has no place in this message")));
    }
    if role == Role::Tool {
        if let Some(name) = valid.message.get("name") {
            check_name(name.as_str().unwrap_or_default())?;
        }
        let id = given(json, "tool_call_id").and_then(|id| id.as_str().map(kept_id));
        message.call_id = id.ok_or_else(|| wrong("a tool's message has no `tool_call_id`"))?;
        check_id(&message.call_id, version)?;
    }
    if role == Role::Assistant {
        for call in valid.tool_calls.iter().flatten() {
            message.calls.push(read_call(call, version)?);
        }
        if version < Version::V7 && message.has_content != message.calls.is_empty() {
            return Err(wrong("an assistant's message has content and tool calls, or neither"));
        }
    }
    Ok(message)
}

fn read_call(call: &Json, version: Version) -> Result<Call, PrepareError> {
    let function = with_parsed_arguments(call)?.get("function").unwrap_or_else(Json::null);
    let call = Call {
        id: kept_id(&text_of(call, "id").unwrap_or_default()),
        name: text_of(&function, "name").unwrap_or_default(),
        arguments: function.get("arguments").unwrap_or_else(Json::null),
    };
    check_id(&call.id, version)?;
    check_name(&call.name)?;
    Ok(call)
}

/// The end of an id that vLLM keeps.
fn kept_id(id: &str) -> String {
    let characters = id.chars().count();
    id.chars().skip(characters.saturating_sub(CALL_ID_CHARACTERS)).collect()
}

fn check_id(id: &str, version: Version) -> Result<(), PrepareError> {
    let is_known = if version < Version::V13 {
        id.len() == CALL_ID_CHARACTERS && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
    } else {
        !matches!(id, "" | "null")
    };
    if is_known { Ok(()) } else { Err(wrong(format!("{id:?} is not an id of a tool call of a Mistral model"))) }
}

/// Checks the name of a function as Python's `^[a-zA-Z0-9_-]{1,64}$` does, which allows a line's end.
pub(super) fn check_name(name: &str) -> Result<(), PrepareError> {
    let bytes = name.strip_suffix('\n').unwrap_or(name).as_bytes();
    let is_known = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if (1..=NAME_BYTES_MAX).contains(&bytes.len()) && bytes.iter().all(is_known) {
        return Ok(());
    }
    Err(wrong(format!("{name:?} is not a function name: use up to 64 letters, digits, underscores and dashes")))
}

fn chunks(valid: &ValidMessage<'_>) -> Result<Vec<Chunk>, PrepareError> {
    let Some(content) = valid.message.get("content") else { return Ok(Vec::new()) };
    if let Some(text) = content.as_str() {
        return Ok(vec![Chunk::Text(text.to_owned())]);
    }
    // vLLM has read the parts of OpenAI's types once, and finds none again.
    let parts = items(&content).filter(|_| valid.is_own).unwrap_or_default();
    parts.iter().map(chunk).collect()
}

fn chunk(part: &Json) -> Result<Chunk, PrepareError> {
    let kind = text_of(part, "type").unwrap_or_default();
    let text =
        |key: &str| text_of(part, key).ok_or_else(|| wrong(format!("a content part of type {kind:?} has no text")));
    match kind.as_str() {
        "text" => Ok(Chunk::Text(text("text")?)),
        "thinking" => {
            let is_closed = part.get("closed").is_none_or(|closed| closed.is_true());
            Ok(Chunk::Thinking { text: text("thinking")?, is_closed })
        }
        "image_url" | "input_audio" | "audio_url" => match MediaPart::of(&kind)? {
            Some(part) => Ok(Chunk::Media(part)),
            None => Err(wrong("a content part has no media")),
        },
        kind => Err(wrong(format!("a content part of type {kind:?} is unknown to Mistral's models"))),
    }
}

fn check_order(messages: &[Message]) -> Result<(), PrepareError> {
    match messages {
        [] => return Err(wrong("`messages` is empty: give at least one message")),
        [only] if !matches!(only.role, Role::User | Role::System) => {
            return Err(wrong("a conversation begins with a message of a user or the system"));
        }
        [.., last] if messages.len() > 1 && last.role == Role::Assistant && !last.is_prefix => {
            return Err(wrong("the last message is an assistant's and not to be continued"));
        }
        _ => {}
    }
    for pair in messages.windows(2) {
        let follows = match pair[0].role {
            Role::System | Role::User => pair[1].role != Role::Tool,
            Role::Assistant | Role::Tool => pair[1].role != Role::System,
        };
        if !follows {
            return Err(wrong("a tool's message follows no assistant's, or a system message follows an answer"));
        }
    }
    Ok(())
}

/// Checks that an answer follows as many results as calls. The first message is not checked.
fn check_number_of_results(messages: &[Message]) -> Result<(), PrepareError> {
    let mut expected: i64 = 0;
    for message in messages.iter().skip(1) {
        match message.role {
            Role::Tool => expected -= 1,
            Role::Assistant if expected != 0 => return Err(wrong("there are more or fewer tool calls than results")),
            Role::Assistant => expected = i64::try_from(message.calls.len()).unwrap_or(i64::MAX),
            Role::System | Role::User => {}
        }
    }
    Ok(())
}

/// Checks that each result has its call, and that an answer follows all results. The first message is not checked.
fn check_ids(messages: &[Message]) -> Result<(), PrepareError> {
    let (mut expected, mut observed) = (HashSet::<&str>::new(), HashSet::<&str>::new());
    for message in messages.iter().skip(1) {
        match message.role {
            Role::Tool => {
                if !expected.contains(message.call_id.as_str()) || !observed.insert(&message.call_id) {
                    return Err(wrong("a tool's message answers no call, or answers one again"));
                }
            }
            Role::Assistant => {
                if expected.len() != observed.len() {
                    return Err(wrong("there are more or fewer tool calls than results"));
                }
                observed.clear();
                expected.clear();
                if !message.calls.iter().all(|call| expected.insert(&call.id)) {
                    return Err(wrong("two tool calls of a message have one id"));
                }
            }
            Role::System | Role::User => {}
        }
    }
    Ok(())
}

/// Joins neighbouring messages of a user or the assistant, and gives results the order of their calls.
fn joined(messages: Vec<Message>, version: Version) -> Vec<Message> {
    let mut runs: Vec<Message> = Vec::new();
    let mut previous = None;
    let mut calls: HashMap<String, usize> = HashMap::new();
    let mut order = 0;
    // Where the results of the current calls begin.
    let mut results = 0;
    for Message { role, has_content, chunks, calls: new_calls, call_id, is_prefix } in messages {
        if previous == Some(Role::Tool) && role != Role::Tool {
            calls.clear();
        }
        if role == Role::Tool && previous != Some(Role::Tool) {
            results = runs.len();
        }
        let is_joined = previous == Some(role) && matches!(role, Role::User | Role::Assistant);
        previous = Some(role);
        for call in &new_calls {
            calls.insert(call.id.clone(), order);
            order += 1;
        }
        if !is_joined {
            runs.push(Message { has_content, call_id, ..Message::new(role) });
        }
        let Some(run) = runs.last_mut() else { continue };
        run.extend(chunks, version);
        run.calls.extend(new_calls);
        run.is_prefix |= is_prefix;
        if role == Role::Tool && version >= Version::V11 {
            runs[results..].sort_by_key(|result| calls.get(&result.call_id).copied().unwrap_or(usize::MAX));
        }
    }
    runs
}

/// A result as JSON, if it is JSON, and otherwise a text.
pub(super) fn parsed(text: &str) -> Json {
    let text = if text.is_empty() { "{}" } else { text };
    Json::loads(text, JsonParser::Python).unwrap_or_else(|| text.into())
}
