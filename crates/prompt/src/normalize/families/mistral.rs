//! Prompts of Mistral's models with a tekken tokenizer, which vLLM makes with Mistral's own library, `mistral-common`.

use std::fs;
use std::path::Path;

use chat_template::{Continuation, Json};
use serde::Deserialize;

use super::mistral_messages::{Call, Chunk, Message, Role, check_name, parsed, read};
use crate::normalize::chat::{Chat, PreparedChat};
use crate::normalize::error::PrepareError;
use crate::normalize::media::MediaCut;
use crate::normalize::message::{given, object};

/// Versions of the prompt's format, which `tekken.json` names.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(in crate::normalize) enum Version {
    V3,
    V7,
    V11,
    V13,
}

/// Names of special tokens. A text that spells one out is tokenized as a text.
const SPECIAL_TOKENS: [&str; 35] = [
    "<unk>",
    "<s>",
    "</s>",
    "<pad>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[TOOL_CONTENT]",
    "[IMG]",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[ARGS]",
    "[CALL_ID]",
    "[AUDIO]",
    "[BEGIN_AUDIO]",
    "[TRANSCRIBE]",
    "[THINK]",
    "[/THINK]",
    "[STREAMING_PAD]",
    "[STREAMING_WORD]",
    "[NEXT_AUDIO_TEXT]",
    "[REPEAT_AUDIO_TEXT]",
    "[MODEL_SETTINGS]",
    "[/MODEL_SETTINGS]",
    "<SPECIAL_",
    "[SPECIAL_",
];

impl Version {
    /// The version of a model's folder. `None` if it has no tekken tokenizer of a known version.
    pub(super) fn read(folder: &Path) -> Option<Self> {
        #[derive(Deserialize)]
        struct Tekken {
            config: Config,
        }
        #[derive(Deserialize)]
        struct Config {
            version: String,
        }
        let text = fs::read(folder.join("tekken.json")).ok()?;
        let tekken: Tekken = serde_json::from_slice(&text).ok()?;
        match tekken.config.version.as_str() {
            "v3" => Some(Self::V3),
            "v7" => Some(Self::V7),
            "v11" => Some(Self::V11),
            "v13" => Some(Self::V13),
            _ => None,
        }
    }
}

/// Renders a chat. The result is cut before the first message with media.
pub(super) fn render(
    chat: &Chat,
    prepared: &PreparedChat,
    version: Version,
) -> Result<(String, Option<MediaCut>), PrepareError> {
    let request = &chat.request;
    if request.chat_template.is_some() || request.chat_template_kwargs.as_ref().is_some_and(|it| !it.is_null()) {
        return Err(PrepareError::rejected("vLLM takes no chat_template and no chat_template_kwargs for this model"));
    }
    let role = request.messages.last().and_then(|last| last.get("role"));
    let answers = role.is_some_and(|role| role.as_str() == Some("assistant"));
    let continues = prepared.request.continue_final_message != Continuation::Nothing;
    if continues && !answers {
        return Err(PrepareError::rejected("`continue_final_message` needs a last message of an assistant"));
    }
    if answers && prepared.request.add_generation_prompt == Some(true) {
        return Err(PrepareError::rejected("the last message is an assistant's; continue it, or add another one"));
    }
    let tools = prepared.request.tools.as_deref().unwrap_or_default();
    let messages = read(&request.messages, version, continues)?;
    let mut writer = Writer { version, tools: tools_text(tools)?, text: "<s>".to_owned(), media: None };
    writer.write_all(messages)?;
    Ok((writer.text, writer.media))
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
    text: String,
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
                Role::System => self.enclose("[SYSTEM_PROMPT]", message, "[/SYSTEM_PROMPT]")?,
                Role::User => {
                    if with_tools == Some(at) && !self.tools.is_empty() {
                        let tools = std::mem::take(&mut self.tools);
                        self.mark("[AVAILABLE_TOOLS]");
                        self.write_text(&tools)?;
                        self.mark("[/AVAILABLE_TOOLS]");
                    }
                    self.mark("[INST]");
                    if last_user == Some(at) && !system.is_empty() {
                        self.write_text(&format!("{system}\n\n"))?;
                    }
                    self.write_chunks(&message.chunks)?;
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
        self.text.push_str(token);
    }

    fn enclose(&mut self, begin: &str, message: &Message, end: &str) -> Result<(), PrepareError> {
        self.mark(begin);
        self.write_chunks(&message.chunks)?;
        self.mark(end);
        Ok(())
    }

    fn write_text(&mut self, text: &str) -> Result<(), PrepareError> {
        if SPECIAL_TOKENS.iter().any(|token| text.contains(token)) {
            return Err(PrepareError::Unsupported(
                "the tokens of a text that spells out a special token of Mistral's models are known to the engine only; \
                 send token_ids"
                    .to_owned(),
            ));
        }
        self.text.push_str(text);
        Ok(())
    }

    fn write_chunks(&mut self, chunks: &[Chunk]) -> Result<(), PrepareError> {
        for (at, chunk) in chunks.iter().enumerate() {
            match chunk {
                Chunk::Text(text) => self.write_text(text)?,
                Chunk::Thinking { text, is_closed } => {
                    self.mark("[THINK]");
                    self.write_text(text)?;
                    if *is_closed {
                        self.mark("[/THINK]");
                    } else if at + 1 < chunks.len() {
                        return Err(PrepareError::Unsupported(
                            "the engine cuts the text behind a part of type \"thinking\" that is not closed; send token_ids"
                                .to_owned(),
                        ));
                    }
                }
                // Nothing is read behind it.
                Chunk::Media(_) => {}
            }
        }
        Ok(())
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
            [Chunk::Text(text)] => self.write_text(text.trim_end_matches(' '))?,
            chunks => self.write_chunks(chunks)?,
        }
        if self.version < Version::V11 && !calls.is_empty() {
            let calls = calls.iter().map(call_object).collect::<Result<Vec<_>, _>>()?;
            self.mark("[TOOL_CALLS]");
            self.write_text(&Json::list(calls)?.to_spaced_text())?;
        } else {
            for call in calls {
                self.mark("[TOOL_CALLS]");
                self.write_text(&call.name)?;
                if self.version < Version::V13 {
                    self.mark("[CALL_ID]");
                    self.write_text(&call.id)?;
                }
                self.mark("[ARGS]");
                self.write_text(&call.arguments.to_spaced_text())?;
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
            self.write_text(&result.to_spaced_text())?;
        } else {
            if self.version < Version::V13 {
                self.write_text(&message.call_id)?;
                self.mark("[TOOL_CONTENT]");
            }
            self.write_chunks(&message.chunks)?;
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
    let entries = [("name", call.name.as_str().into()), ("arguments", call.arguments.clone())];
    Ok(object(entries.into_iter().chain([("id", call.id.as_str().into())]))?)
}
