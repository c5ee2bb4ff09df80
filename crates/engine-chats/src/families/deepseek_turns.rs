//! Conversations of DeepSeek-V4 and DeepSeek-V4.1, where results of tools are parts of a user's message.

use std::collections::HashMap;
use std::mem;

use chat_template::Json;

use super::deepseek::{call_block, tools_section};
use super::variables::variable;
use crate::chat::PreparedChat;
use crate::error::PrepareError;
use crate::media::MediaCut;
use crate::message::{given, items, text_of};

/// Text that the encoders write for an image. The engine puts the image's tokens in its place.
pub(super) const IMAGE: &str = "<｜deepseek_image｜>";

/// Precedes the schema that an answer must have.
const ANSWER_SCHEMA: &str = "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

/// Tasks of a message, and their tokens.
const TASKS: [&str; 6] = ["action", "query", "authority", "domain", "title", "read_url"];

/// Differences between the models.
pub(super) struct Dialect {
    /// The section of a prompt that describes tools, around their schemas.
    pub(super) tools: &'static str,
    /// Name of the tag around tool calls.
    pub(super) calls: &'static str,
    /// Prefix of the names of the tags within.
    pub(super) tag_prefix: &'static str,
    /// Whether system messages have a mark. After the first message they ask for an answer, as a user's messages do.
    pub(super) marks_systems: bool,
}

/// Settings from the variables of a chat.
pub(super) struct Settings {
    /// Whether the variables ask for thinking. They do by default.
    pub(super) thinks: bool,
    /// Whether reasoning before the last message of a user is dropped, if no message has tools.
    drops: bool,
    /// Precedes the first message if the model thinks.
    pub(super) preamble: String,
}

impl Settings {
    pub(super) fn of(prepared: &PreparedChat) -> Self {
        let switches = ["thinking", "enable_thinking"].map(|name| variable(prepared, name));
        let thinks = switches.iter().all(Option::is_none) || switches.iter().flatten().any(Json::is_true);
        let drops = variable(prepared, "drop_thinking").is_none_or(|drops| drops.is_true());
        Self { thinks, drops, preamble: String::new() }
    }
}

/// Writes the prompt of messages. Tools belong to the first system message.
pub(super) fn write(
    dialect: &Dialect,
    settings: Settings,
    messages: &[Json],
    tools: &[Json],
) -> Result<String, PrepareError> {
    let Settings { thinks, drops, preamble } = settings;
    let mut messages = merged(messages, tools)?;
    sort_results(&mut messages);
    let drops = drops && !messages.iter().any(|message| !message.tools.is_empty());
    if thinks && drops {
        let last_user = dialect.last_user(&messages);
        let mut at = 0;
        messages.retain(|message| {
            let is_kept = Some(at) >= last_user || KEPT.contains(&message.role.as_str());
            at += 1;
            is_kept
        });
    }
    let last_user = dialect.last_user(&messages);
    let preamble = if thinks { preamble } else { String::new() };
    let text = "<｜begin▁of▁sentence｜>".to_owned();
    let mut writer = Writer { dialect, messages, thinks, drops, preamble, last_user, text };
    for at in 0..writer.messages.len() {
        writer.write(at)?;
    }
    Ok(writer.text)
}

/// The cut before the first image of a prompt. If the encoder wrote none, no part of the prompt is certain.
pub(super) fn cut_before_image(text: &str, kind: &'static str) -> MediaCut {
    MediaCut { kind, bytes: text.find(IMAGE).unwrap_or_default() }
}

impl Dialect {
    /// Position of the last message that asks for an answer.
    fn last_user(&self, messages: &[Message]) -> Option<usize> {
        (0..messages.len()).rfind(|at| match messages[*at].role.as_str() {
            "user" | "developer" => true,
            "system" => self.marks_systems && *at > 0,
            _ => false,
        })
    }
}

/// Roles whose messages are kept before the last one of a user when reasoning is dropped.
const KEPT: [&str; 5] = ["user", "system", "latest_reminder", "direct_search_results", "assistant"];

/// A message after results of tools became parts of a user's message.
#[derive(Default)]
struct Message {
    role: String,
    blocks: Vec<Block>,
    tools: Vec<Json>,
    tool_calls: Vec<Json>,
    reasoning: String,
    task: Option<String>,
    /// The schema that the answer must have, as a section of the prompt.
    answer_schema: String,
    /// Whether the model continues the message.
    is_continued: bool,
    /// Whether later texts and results of tools become parts of the message.
    is_open: bool,
}

enum Block {
    Text(String),
    /// The id of a call and its result.
    Result(String, String),
}

fn merged(given_messages: &[Json], tools: &[Json]) -> Result<Vec<Message>, PrepareError> {
    let mut messages: Vec<Message> = Vec::new();
    for json in given_messages {
        let text = |key: &str| text_of(json, key);
        let role = text("role").unwrap_or_default();
        let (role, block) = match role.as_str() {
            "tool" => {
                let result = Block::Result(text("tool_call_id").unwrap_or_default(), result_text(json));
                ("user".to_owned(), result)
            }
            _ => (role, Block::Text(flat_text(json)?)),
        };
        let is_user = role == "user";
        let is_result = matches!(block, Block::Result(..));
        if let Some(last) =
            messages.last_mut().filter(|last| is_user && last.is_open && (is_result || last.task.is_none()))
        {
            last.blocks.push(block);
            continue;
        }
        let given = |key| given(json, key).filter(|value| value.is_true() && !is_result);
        let reasoning = match given("reasoning") {
            None => String::new(),
            Some(reasoning) => reasoning.as_str().map(str::to_owned).ok_or_else(|| {
                PrepareError::Unsupported("the reasoning of a message is not a text; send token_ids".to_owned())
            })?,
        };
        let tools = match given("tools") {
            None => Vec::new(),
            Some(tools) => items(&tools).ok_or_else(|| PrepareError::rejected("`tools` of a message is not a list"))?,
        };
        messages.push(Message {
            role,
            blocks: vec![block],
            tools,
            tool_calls: given("tool_calls").as_ref().and_then(items).unwrap_or_default(),
            reasoning,
            task: text("task").filter(|_| !is_result),
            answer_schema: given("response_format")
                .map(|schema| format!("\n\n{ANSWER_SCHEMA}{}", schema.to_spaced_text()))
                .unwrap_or_default(),
            is_continued: given("wo_eos").is_some(),
            is_open: is_user,
        });
    }
    if !tools.is_empty() {
        let system = messages.iter().position(|message| message.role == "system").unwrap_or_else(|| {
            messages.insert(0, Message { role: "system".to_owned(), ..Message::default() });
            0
        });
        messages[system].tools = tools.to_vec();
    }
    Ok(messages)
}

/// The texts of a content's parts.
fn flat_text(json: &Json) -> Result<String, PrepareError> {
    let Some(content) = given(json, "content") else { return Ok(String::new()) };
    let Some(parts) = items(&content) else { return Ok(content.as_str().unwrap_or_default().to_owned()) };
    let text = |part: &Json| match text_of(part, "type").as_deref() {
        Some("text") => Ok(text_of(part, "text").unwrap_or_default()),
        Some("image") => Ok(IMAGE.to_owned()),
        kind => Err(PrepareError::rejected(format!("a content part of type {kind:?} is unknown to the model"))),
    };
    Ok(parts.iter().map(text).collect::<Result<Vec<_>, _>>()?.join("\n\n"))
}

fn result_text(json: &Json) -> String {
    let Some(content) = given(json, "content") else { return String::new() };
    let Some(parts) = items(&content) else { return content.as_str().unwrap_or_default().to_owned() };
    let text = |part: &Json| match text_of(part, "type").unwrap_or_default().as_str() {
        "text" => text_of(part, "text").unwrap_or_default(),
        kind => format!("[Unsupported {kind}]"),
    };
    parts.iter().map(text).collect::<Vec<_>>().join("\n\n")
}

/// Sorts the results of tools in a message by the order of the calls.
fn sort_results(messages: &mut [Message]) {
    let mut order: HashMap<String, usize> = HashMap::new();
    for message in messages {
        if message.role == "assistant" && !message.tool_calls.is_empty() {
            let ids = message.tool_calls.iter().enumerate().filter_map(|(at, call)| {
                let id = text_of(call, "id").filter(|id| !id.is_empty());
                let id = id.or_else(|| text_of(&call.get("function")?, "id"));
                Some((id.filter(|id| !id.is_empty())?, at))
            });
            order = ids.collect();
        }
        if order.is_empty() {
            continue;
        }
        let results = message.blocks.iter_mut().filter(|block| matches!(block, Block::Result(..)));
        let mut places: Vec<&mut Block> = results.collect();
        let taken = places.iter_mut().map(|place| mem::replace(*place, Block::Text(String::new())));
        let mut results: Vec<Block> = taken.collect();
        results.sort_by_key(|block| match block {
            Block::Result(id, _) => order.get(id).copied().unwrap_or_default(),
            Block::Text(_) => 0,
        });
        for (place, result) in places.into_iter().zip(results) {
            *place = result;
        }
    }
}

struct Writer<'d> {
    dialect: &'d Dialect,
    messages: Vec<Message>,
    thinks: bool,
    /// Whether reasoning before the last message of a user is dropped.
    drops: bool,
    preamble: String,
    last_user: Option<usize>,
    text: String,
}

impl Writer<'_> {
    fn write(&mut self, at: usize) -> Result<(), PrepareError> {
        let message = &self.messages[at];
        let is_first = at == 0;
        let is_marked = message.role == "system" || is_first && !self.preamble.is_empty();
        if self.dialect.marks_systems && is_marked {
            self.text.push_str("<｜System｜>");
        }
        if is_first {
            self.text.push_str(&self.preamble);
        }
        let blocks = message.blocks.iter().map(|block| match block {
            Block::Text(text) => text.clone(),
            Block::Result(_, text) => format!("<tool_result>{text}</tool_result>"),
        });
        let content = blocks.collect::<Vec<_>>().join("\n\n");
        let tools = match message.tools.as_slice() {
            [] => String::new(),
            tools => format!("\n\n{}", tools_section(self.dialect.tools, tools)?),
        };
        let schema = &message.answer_schema;
        match message.role.as_str() {
            "system" => self.text.push_str(&format!("{content}{tools}{schema}")),
            "developer" if content.is_empty() => {
                return Err(PrepareError::rejected("a developer's message has no content"));
            }
            "developer" => self.text.push_str(&format!("<｜User｜>{content}{tools}{schema}")),
            "user" => self.text.push_str(&format!("<｜User｜>{content}")),
            "latest_reminder" => self.text.push_str(&format!("<｜latest_reminder｜>{content}")),
            "assistant" => {
                let is_task = at.checked_sub(1).is_some_and(|before| self.messages[before].task.is_some());
                if self.thinks && !is_task && (!self.drops || Some(at) > self.last_user) {
                    self.text.push_str(&message.reasoning);
                    self.text.push_str("</think>");
                }
                self.text.push_str(&content);
                if !message.tool_calls.is_empty() {
                    let Dialect { calls: tag, tag_prefix, .. } = self.dialect;
                    let calls = message.tool_calls.iter().map(|call| call_block(call, tag_prefix));
                    let calls = calls.collect::<Vec<_>>().join("\n");
                    self.text.push_str(&format!("\n\n<｜DSML｜{tag}>\n{calls}\n</｜DSML｜{tag}>"));
                }
                if !message.is_continued {
                    self.text.push_str("<｜end▁of▁sentence｜>");
                }
            }
            role => return Err(PrepareError::rejected(format!("the role {role:?} is unknown to the model"))),
        }
        self.write_transition(at)
    }

    /// Writes the transition from a message to the answer.
    fn write_transition(&mut self, at: usize) -> Result<(), PrepareError> {
        let message = &self.messages[at];
        let next = self.messages.get(at + 1).map(|next| next.role.as_str());
        if next.is_some_and(|role| !matches!(role, "assistant" | "latest_reminder")) {
            return Ok(());
        }
        let mark = |thinks: bool| if thinks { "<think>" } else { "</think>" };
        if let Some(task) = message.task.as_deref() {
            if !TASKS.contains(&task) {
                return Err(PrepareError::rejected(format!(
                    "the task {task:?} is unknown; there are {}",
                    TASKS.join(", ")
                )));
            }
            if task == "action" {
                self.text.push_str(&format!("<｜Assistant｜>{}", mark(self.thinks)));
            }
            self.text.push_str(&format!("<｜{task}｜>"));
            return Ok(());
        }
        let opens = match message.role.as_str() {
            "user" | "developer" => true,
            "system" if self.dialect.marks_systems => at > 0,
            "system" => next.is_none_or(|role| role == "assistant"),
            _ => false,
        };
        if opens {
            let thinks = self.thinks && (!self.drops || Some(at) >= self.last_user);
            self.text.push_str(&format!("<｜Assistant｜>{}", mark(thinks)));
        }
        Ok(())
    }
}
