//! Prompts of Mistral's models with a tekken tokenizer, which vLLM makes with Mistral's own library, `mistral-common`.

use std::ops::Range;

use chat_template::{Continuation, Json};

use super::mistral_files::{Efforts, Format, Settings, Version};
use super::mistral_messages::{Call, Chunk, Message, Role, check_name, parsed, read};
use super::variables::variable;
use crate::chat::{Chat, PreparedChat, Rendering};
use crate::error::PrepareError;
use crate::media::MediaCut;
use crate::message::{given, has_role, object};
use crate::vllm::EFFORTS;

/// The token that begins a sequence.
const BEGIN: &str = "<s>";

/// Renders a chat. The result is cut before the first message with media.
pub(super) fn render(chat: &Chat, prepared: PreparedChat, format: Format) -> Result<Rendering, PrepareError> {
    let request = &chat.request;
    let Format { version, settings } = format;
    if request.chat_template.is_some() || request.chat_template_kwargs.as_ref().is_some_and(|it| !it.is_null()) {
        return Err(PrepareError::rejected("vLLM takes no chat_template and no chat_template_kwargs for this model"));
    }
    let answers = request.messages.last().is_some_and(|last| has_role(last, "assistant"));
    let continues = prepared.request.continue_final_message != Continuation::Nothing;
    if continues && !answers {
        return Err(PrepareError::rejected("`continue_final_message` needs a last message of an assistant"));
    }
    if answers && prepared.request.add_generation_prompt == Some(true) {
        return Err(PrepareError::rejected("the last message is an assistant's; continue it, or add another one"));
    }
    let tools = tools_text(prepared.request.tools.as_deref().unwrap_or_default())?;
    let settings = if version < Version::V15 { String::new() } else { settings_text(&prepared, settings)? };
    let messages = read(&request.messages, version, continues)?;
    let mut writer = Writer { version, tools, settings, text: String::new(), tokens: Vec::new(), media: None };
    writer.mark(BEGIN);
    writer.write_all(messages)?;
    let Writer { text, tokens, media, .. } = writer;
    Ok(Rendering { prepared, text, media, tokens: Some(tokens), ..Rendering::default() })
}

/// The settings as JSON. It is empty if there are none.
fn settings_text(prepared: &PreparedChat, settings: Option<Settings>) -> Result<String, PrepareError> {
    let settings = settings.ok_or_else(|| {
        PrepareError::rejected("the model's tekken.json has no `model_settings_builder`, which vLLM needs")
    })?;
    let Some(Efforts { are_known, default }) = settings.efforts else { return Ok(String::new()) };
    let asked = variable(prepared, "reasoning_effort");
    let effort = asked.as_ref().and_then(Json::as_str).unwrap_or(default);
    let is_known = EFFORTS.iter().zip(are_known).any(|(name, is_known)| is_known && *name == effort);
    if !is_known {
        return Err(PrepareError::rejected(format!("the model does not know the reasoning_effort {effort:?}")));
    }
    Ok(object([("reasoning_effort", effort.into())])?.to_spaced_text())
}

/// The tools as JSON. It is empty if there are none.
fn tools_text(tools: &[Json]) -> Result<String, PrepareError> {
    if tools.is_empty() {
        return Ok(String::new());
    }
    let no_parameters = || object(Vec::<(String, Json)>::new());
    let tool = |tool: &Json| {
        let function = tool.get("function").unwrap_or_else(Json::null);
        let name = function.get("name").unwrap_or_else(Json::null);
        check_name(name.as_str().unwrap_or_default())?;
        let function = object([
            ("name", name),
            ("description", given(&function, "description").unwrap_or_else(|| "".into())),
            ("parameters", given(&function, "parameters").map_or_else(no_parameters, Ok)?),
        ])?;
        Ok(object([("type", "function".into()), ("function", function)])?)
    };
    Ok(Json::list(tools.iter().map(tool).collect::<Result<Vec<_>, PrepareError>>()?)?.to_spaced_text())
}

/// A prompt while it is written.
struct Writer {
    version: Version,
    tools: String,
    settings: String,
    text: String,
    /// Where the text has special tokens. An empty range separates two texts.
    tokens: Vec<Range<usize>>,
    media: Option<MediaCut>,
}

impl Writer {
    fn write_all(&mut self, mut messages: Vec<Message>) -> Result<(), PrepareError> {
        let mut system = String::new();
        if self.version < Version::V7 {
            let (systems, others): (Vec<_>, Vec<_>) =
                messages.into_iter().partition(|message| message.role == Role::System);
            messages = others;
            let systems: Vec<String> = systems.iter().filter(|it| it.has_content).map(text_of).collect();
            system = systems.join("\n\n");
            if messages.first().is_none_or(|first| first.role != Role::User) {
                messages.insert(0, Message::new(Role::User));
            }
        }
        let is_user = |message: &Message| message.role == Role::User;
        let last_user = messages.iter().rposition(is_user);
        let with_tools = if self.version < Version::V13 { last_user } else { messages.iter().position(is_user) };
        for (at, message) in messages.iter().enumerate() {
            if let Some(kind) = message.media() {
                self.media.get_or_insert(MediaCut { kind, bytes: self.text.len() });
            }
            match message.role {
                Role::System => {
                    self.mark("[SYSTEM_PROMPT]");
                    self.write_chunks(&message.chunks);
                    self.mark("[/SYSTEM_PROMPT]");
                }
                Role::User => {
                    if with_tools == Some(at) {
                        let (tools, settings) = (std::mem::take(&mut self.tools), std::mem::take(&mut self.settings));
                        self.enclose_text("[AVAILABLE_TOOLS]", &tools, "[/AVAILABLE_TOOLS]");
                        self.enclose_text("[MODEL_SETTINGS]", &settings, "[/MODEL_SETTINGS]");
                    }
                    self.mark("[INST]");
                    if last_user == Some(at) && !system.is_empty() {
                        self.write_text(&format!("{system}\n\n"));
                    }
                    self.write_chunks(&message.chunks);
                    self.mark("[/INST]");
                }
                Role::Assistant => self.write_answer(message)?,
                Role::Tool => self.write_result(message)?,
            }
        }
        Ok(())
    }

    /// Writes a special token.
    fn mark(&mut self, token: &str) {
        self.tokens.push(self.text.len()..self.text.len() + token.len());
        self.text.push_str(token);
    }

    /// Writes a text, if there is one, between two special tokens.
    fn enclose_text(&mut self, begin: &str, text: &str, end: &str) {
        if !text.is_empty() {
            self.mark(begin);
            self.write_text(text);
            self.mark(end);
        }
    }

    /// Writes a text. A special token that it spells out is text as well.
    fn write_text(&mut self, text: &str) {
        self.text.push_str(text);
    }

    fn write_chunks(&mut self, chunks: &[Chunk]) {
        for chunk in chunks {
            match chunk {
                Chunk::Text(text) => self.write_text(text),
                Chunk::Thinking { text, is_closed } => {
                    self.mark("[THINK]");
                    self.write_text(text);
                    self.mark(if *is_closed { "[/THINK]" } else { "" });
                }
                // No part after it is read.
                Chunk::Media(_) => {}
            }
        }
    }

    fn write_answer(&mut self, message: &Message) -> Result<(), PrepareError> {
        let Message { chunks, calls, .. } = message;
        if chunks.is_empty() && calls.is_empty() {
            return Err(PrepareError::rejected("an assistant's message has neither content nor tool calls"));
        }
        if self.version < Version::V7 && !chunks.is_empty() && !calls.is_empty() {
            return Err(PrepareError::rejected("messages of an assistant in a row have content and tool calls"));
        }
        match chunks.as_slice() {
            [Chunk::Text(text)] => self.write_text(text.trim_end_matches(' ')),
            chunks => self.write_chunks(chunks),
        }
        if self.version < Version::V11 && !calls.is_empty() {
            let calls = calls.iter().map(call_object).collect::<Result<Vec<_>, _>>()?;
            self.mark("[TOOL_CALLS]");
            self.write_text(&Json::list(calls)?.to_spaced_text());
        } else {
            for call in calls {
                self.mark("[TOOL_CALLS]");
                self.write_text(&call.name);
                if self.version < Version::V13 {
                    self.mark("[CALL_ID]");
                    self.write_text(&call.id);
                }
                self.mark("[ARGS]");
                self.write_text(&call.arguments.to_spaced_text());
            }
        }
        if !message.is_prefix {
            self.mark("</s>");
        }
        Ok(())
    }

    fn write_result(&mut self, message: &Message) -> Result<(), PrepareError> {
        self.mark("[TOOL_RESULTS]");
        if self.version < Version::V7 {
            let result =
                object([("content", parsed(&text_of(message))), ("call_id", message.call_id.as_str().into())])?;
            self.write_text(&result.to_spaced_text());
        } else {
            if self.version < Version::V13 {
                self.write_text(&message.call_id);
                self.mark("[TOOL_CONTENT]");
            }
            self.write_chunks(&message.chunks);
        }
        self.mark("[/TOOL_RESULTS]");
        Ok(())
    }
}

/// The text of a message without other parts.
fn text_of(message: &Message) -> String {
    let texts = message.chunks.iter().filter_map(|chunk| match chunk {
        Chunk::Text(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

fn call_object(call: &Call) -> Result<Json, PrepareError> {
    let Call { id, name, arguments } = call;
    Ok(object([("name", name.as_str().into()), ("arguments", arguments.clone()), ("id", id.as_str().into())])?)
}
