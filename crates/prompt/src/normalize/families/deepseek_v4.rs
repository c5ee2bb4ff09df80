//! Prompts of DeepSeek-V4, which vLLM writes with the encoder of the model's repository.

use std::collections::HashMap;

use chat_template::Json;

use super::deepseek::{call_block, tools_of, tools_section, variable};
use crate::normalize::chat::PreparedChat;
use crate::normalize::error::PrepareError;
use crate::normalize::message::{given, items};

const TOOLS: &str = include_str!("deepseek_v4_tools.txt");
const EFFORT_HIGH: &str = include_str!("deepseek_v4_effort_high.txt");
const EFFORT_MAX: &str = include_str!("deepseek_v4_effort_max.txt");

/// Tasks of a message, and their tokens.
const TASKS: [&str; 6] = ["action", "query", "authority", "domain", "title", "read_url"];

/// Renders a chat.
pub(super) fn render(prepared: &PreparedChat) -> Result<String, PrepareError> {
    let tools = tools_of(prepared)?;
    let switches = ["thinking", "enable_thinking"].map(|name| variable(prepared, name));
    let mut thinks = switches.iter().all(Option::is_none) || switches.iter().flatten().any(Json::is_true);
    let effort = variable(prepared, "reasoning_effort");
    let preamble = match effort.as_ref().map(Json::as_str) {
        Some(Some("none")) => {
            thinks = false;
            ""
        }
        Some(Some("max")) => EFFORT_MAX,
        Some(Some("low" | "minimal" | "medium")) => "",
        _ => EFFORT_HIGH,
    };
    let mut messages = merged(&prepared.request.messages, &tools)?;
    sort_results(&mut messages);
    let drops = variable(prepared, "drop_thinking").is_none_or(|drops| drops.is_true())
        && !messages.iter().any(|message| !message.tools.is_empty());
    if thinks && drops {
        let last_user = last_user(&messages);
        let mut at = 0;
        messages.retain(|message| {
            let is_kept = Some(at) >= last_user || KEPT.contains(&message.role.as_str());
            at += 1;
            is_kept
        });
    }
    let last_user = last_user(&messages);
    let mut writer = Writer { messages, thinks, drops, last_user, text: "<｜begin▁of▁sentence｜>".to_owned() };
    if thinks && !writer.messages.is_empty() {
        writer.text.push_str(preamble);
    }
    for at in 0..writer.messages.len() {
        writer.write(at)?;
    }
    Ok(writer.text)
}

/// Roles whose messages are kept before the last one of a user when reasoning is dropped.
const KEPT: [&str; 5] = ["user", "system", "latest_reminder", "direct_search_results", "assistant"];

/// A message after results of tools became parts of a user's message.
struct Message {
    role: String,
    blocks: Vec<Block>,
    tools: Vec<Json>,
    tool_calls: Vec<Json>,
    reasoning: String,
    task: Option<String>,
    /// Whether later texts and results of tools become parts of the message.
    is_open: bool,
}

enum Block {
    Text(String),
    /// The id of a call and its result.
    Result(String, String),
}

fn last_user(messages: &[Message]) -> Option<usize> {
    messages.iter().rposition(|message| matches!(message.role.as_str(), "user" | "developer"))
}

fn merged(given_messages: &[Json], tools: &[Json]) -> Result<Vec<Message>, PrepareError> {
    let mut messages: Vec<Message> = Vec::new();
    for json in given_messages {
        let text = |key: &str| given(json, key).and_then(|value| value.as_str().map(str::to_owned));
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
        let reasoning = match given(json, "reasoning").filter(Json::is_true) {
            None => String::new(),
            Some(reasoning) => reasoning.as_str().map(str::to_owned).ok_or_else(|| {
                PrepareError::Unsupported("the reasoning of a message is not a text; send token_ids".to_owned())
            })?,
        };
        let tools = match given(json, "tools").filter(Json::is_true) {
            None => Vec::new(),
            Some(tools) => items(&tools).ok_or_else(|| PrepareError::rejected("`tools` of a message is not a list"))?,
        };
        let tool_calls = given(json, "tool_calls").as_ref().and_then(items).unwrap_or_default();
        let task = text("task").filter(|_| !is_result);
        messages.push(Message { role, blocks: vec![block], tools, tool_calls, reasoning, task, is_open: is_user });
    }
    if !tools.is_empty() {
        let system = messages.iter().position(|message| message.role == "system").unwrap_or_else(|| {
            messages.insert(
                0,
                Message {
                    role: "system".to_owned(),
                    blocks: Vec::new(),
                    tools: Vec::new(),
                    tool_calls: Vec::new(),
                    reasoning: String::new(),
                    task: None,
                    is_open: false,
                },
            );
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
    let text = |part: &Json| match part.get("type").as_ref().and_then(Json::as_str) {
        Some("text") => Ok(part.get("text").and_then(|text| text.as_str().map(str::to_owned)).unwrap_or_default()),
        kind => Err(PrepareError::rejected(format!("a content part of type {kind:?} is unknown to DeepSeek-V4"))),
    };
    Ok(parts.iter().map(text).collect::<Result<Vec<_>, _>>()?.join("\n\n"))
}

fn result_text(json: &Json) -> String {
    let Some(content) = given(json, "content") else { return String::new() };
    let Some(parts) = items(&content) else { return content.as_str().unwrap_or_default().to_owned() };
    let text = |part: &Json| {
        let text_of = |key: &str| part.get(key).and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default();
        match text_of("type").as_str() {
            "text" => text_of("text"),
            kind => format!("[Unsupported {kind}]"),
        }
    };
    parts.iter().map(text).collect::<Vec<_>>().join("\n\n")
}

/// Gives the results of tools in a message the order of the calls.
fn sort_results(messages: &mut [Message]) {
    let mut order: HashMap<String, usize> = HashMap::new();
    for message in messages {
        if message.role == "assistant" && !message.tool_calls.is_empty() {
            let ids = message.tool_calls.iter().enumerate().filter_map(|(at, call)| {
                let text = |json: &Json| given(json, "id").and_then(|id| id.as_str().map(str::to_owned));
                let id = text(call).filter(|id| !id.is_empty());
                let id = id.or_else(|| call.get("function").and_then(|function| text(&function)));
                Some((id.filter(|id| !id.is_empty())?, at))
            });
            order = ids.collect();
        }
        if order.is_empty() {
            continue;
        }
        let is_result = |block: &Block| matches!(block, Block::Result(..));
        let mut blocks: Vec<Option<Block>> = message.blocks.drain(..).map(Some).collect();
        let places: Vec<usize> = (0..blocks.len()).filter(|at| blocks[*at].as_ref().is_some_and(is_result)).collect();
        let mut results: Vec<Block> = places.iter().filter_map(|at| blocks[*at].take()).collect();
        results.sort_by_key(|block| match block {
            Block::Result(id, _) => order.get(id).copied().unwrap_or_default(),
            Block::Text(_) => 0,
        });
        for (place, result) in places.into_iter().zip(results) {
            blocks[place] = Some(result);
        }
        message.blocks = blocks.into_iter().flatten().collect();
    }
}

struct Writer {
    messages: Vec<Message>,
    thinks: bool,
    /// Whether reasoning before the last message of a user is dropped.
    drops: bool,
    last_user: Option<usize>,
    text: String,
}

impl Writer {
    fn write(&mut self, at: usize) -> Result<(), PrepareError> {
        let message = &self.messages[at];
        let blocks = message.blocks.iter().map(|block| match block {
            Block::Text(text) => text.clone(),
            Block::Result(_, text) => format!("<tool_result>{text}</tool_result>"),
        });
        let content = blocks.collect::<Vec<_>>().join("\n\n");
        let tools = match message.tools.as_slice() {
            [] => String::new(),
            tools => format!("\n\n{}", tools_section(TOOLS, tools)?),
        };
        match message.role.as_str() {
            "system" => self.text.push_str(&format!("{content}{tools}")),
            "developer" if content.is_empty() => {
                return Err(PrepareError::rejected("a developer's message has no content"));
            }
            "developer" => self.text.push_str(&format!("<｜User｜>{content}{tools}")),
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
                    let calls = message.tool_calls.iter().map(call_block).collect::<Vec<_>>().join("\n");
                    self.text.push_str(&format!("\n\n<｜DSML｜tool_calls>\n{calls}\n</｜DSML｜tool_calls>"));
                }
                self.text.push_str("<｜end▁of▁sentence｜>");
            }
            role => return Err(PrepareError::rejected(format!("the role {role:?} is unknown to DeepSeek-V4"))),
        }
        self.write_transition(at)
    }

    /// Writes what leads from a message to the answer.
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
