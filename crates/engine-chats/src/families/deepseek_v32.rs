//! Prompts of DeepSeek-V3.2, which vLLM and SGLang write with the encoder of the model's repository.

use chat_template::Json;

use super::deepseek::{call_block, check_variables, counted_tools_of, tools_section};
use super::variables::variable;
use crate::chat::PreparedChat;
use crate::error::PrepareError;
use crate::message::{given, has_role, items, object, text_of};

/// The section of a prompt that describes tools, around their schemas.
const TOOLS: &str = include_str!("deepseek_v32_tools.txt");

/// Renders a chat as vLLM does.
pub(super) fn render_of_vllm(prepared: &PreparedChat) -> Result<String, PrepareError> {
    check_variables(prepared)?;
    let tools = counted_tools_of(prepared)?;
    let thinks =
        ["thinking", "enable_thinking"].iter().any(|name| variable(prepared, name).is_some_and(|it| it.is_true()));
    let messages = &prepared.request.messages;
    let drops = messages.last().is_some_and(|last| has_role(last, "user"));
    write(messages, &tools, Thinking { is_on: thinks, drops })
}

/// Renders a chat as SGLang does: with a system message at the front that has the tools.
pub(super) fn render_of_sglang(prepared: &PreparedChat) -> Result<String, PrepareError> {
    let thinks = variable(prepared, "thinking").is_some_and(|thinks| thinks.is_true());
    let mut messages = prepared.request.messages.iter().map(with_reasoning).collect::<Result<Vec<_>, _>>()?;
    if !messages.first().is_some_and(|first| has_role(first, "system")) {
        messages.insert(0, object([("role", "system".into())])?);
    }
    if let (Some(tools), Some(first)) = (&prepared.request.tools, messages.first_mut()) {
        let entries = first.entries().unwrap_or_default().into_iter().filter(|(key, _)| key != "tools");
        *first = object(entries.chain([("tools".to_owned(), Json::list(tools.iter().cloned())?)]))?;
    }
    write(&messages, &[], Thinking { is_on: thinks, drops: true })
}

/// How reasoning is written.
#[derive(Clone, Copy)]
struct Thinking {
    is_on: bool,
    /// Whether earlier reasoning is dropped.
    drops: bool,
}

/// A message with its reasoning under vLLM's name, and objects as arguments of its calls.
fn with_reasoning(message: &Json) -> Result<Json, PrepareError> {
    let calls = given(message, "tool_calls").as_ref().and_then(items).unwrap_or_default();
    let arguments = |call: &Json| call.get("function").and_then(|function| function.get("arguments")?.entries());
    if calls.iter().any(|call| arguments(call).is_none()) {
        return Err(PrepareError::rejected("the arguments of a tool call are not a JSON object"));
    }
    let entries = message.entries().unwrap_or_default().into_iter();
    let renamed = entries.map(|(key, value)| match key.as_str() {
        "reasoning_content" => ("reasoning".to_owned(), value),
        _ => (key, value),
    });
    Ok(object(renamed)?)
}

fn write(messages: &[Json], tools: &[Json], thinking: Thinking) -> Result<String, PrepareError> {
    let mut conversation = Conversation::new(messages, tools, thinking)?;
    for at in 0..conversation.messages.len() {
        conversation.write(at)?;
    }
    Ok(conversation.text)
}

/// A conversation while its prompt is written.
struct Conversation<'m> {
    messages: Vec<Message<'m>>,
    thinks: bool,
    /// Position of the last message of a user or developer. `None` precedes all positions.
    last_user: Option<usize>,
    text: String,
}

enum Message<'m> {
    /// The tools of the request, before all messages.
    Tools(&'m [Json]),
    Given {
        role: String,
        json: &'m Json,
    },
}

impl Message<'_> {
    fn role(&self) -> &str {
        match self {
            Self::Tools(_) => "system",
            Self::Given { role, .. } => role,
        }
    }

    /// The value of a key, unless it is missing or false to Python.
    fn get(&self, key: &str) -> Option<Json> {
        match self {
            Self::Tools(_) => None,
            Self::Given { json, .. } => given(json, key).filter(Json::is_true),
        }
    }

    /// The text of a key. It is empty if the key is missing.
    fn text(&self, key: &str) -> Result<String, PrepareError> {
        let Some(value) = self.get(key) else { return Ok(String::new()) };
        let text = value.as_str().map(str::to_owned);
        text.ok_or_else(|| PrepareError::Unsupported(format!("`{key}` of a message is not a text; send token_ids")))
    }

    /// The section about the tools of the message.
    fn tools_text(&self) -> Result<String, PrepareError> {
        let Some(tools) = self.get("tools") else { return Ok(String::new()) };
        let tools = items(&tools).ok_or_else(|| PrepareError::rejected("`tools` of a message is not a list"))?;
        Ok(format!("\n\n{}", tools_section(TOOLS, &tools)?))
    }

    fn tool_calls(&self) -> Vec<Json> {
        self.get("tool_calls").as_ref().and_then(items).unwrap_or_default()
    }
}

impl<'m> Conversation<'m> {
    fn new(messages: &'m [Json], tools: &'m [Json], thinking: Thinking) -> Result<Self, PrepareError> {
        let given =
            messages.iter().map(|json| Message::Given { role: text_of(json, "role").unwrap_or_default(), json });
        let tools = Some(Message::Tools(tools)).filter(|_| !tools.is_empty());
        let messages: Vec<Message<'_>> = tools.into_iter().chain(given).collect();
        let last_user = messages.iter().rposition(|message| matches!(message.role(), "user" | "developer"));
        if messages.is_empty() {
            return Err(PrepareError::rejected("`messages` is empty: give at least one message"));
        }
        // The encoder leaves such messages out, and then fails to find them.
        if thinking.is_on && thinking.drops {
            let before = &messages[..last_user.unwrap_or_default()];
            if before.iter().any(|message| message.role() == "developer") {
                return Err(PrepareError::rejected(
                    "the encoder of DeepSeek-V3.2 fails on a developer's message before the last one of a user that thinking follows",
                ));
            }
        }
        Ok(Self { messages, thinks: thinking.is_on, last_user, text: "<｜begin▁of▁sentence｜>".to_owned() })
    }

    /// Writes the message at a position.
    fn write(&mut self, at: usize) -> Result<(), PrepareError> {
        match &self.messages[at] {
            Message::Tools(tools) => {
                self.text.push_str("\n\n");
                let section = tools_section(TOOLS, tools)?;
                self.text.push_str(&section);
            }
            message => match message.role() {
                "system" => {
                    let text = message.text("content")? + &message.tools_text()?;
                    self.text.push_str(&text);
                }
                "user" => {
                    let content = message.text("content")?;
                    self.write_question(at, &content);
                }
                "developer" => self.write_developer(at)?,
                "assistant" => self.write_answer(at)?,
                "tool" => self.write_result(at)?,
                role => return Err(PrepareError::rejected(format!("the role {role:?} is unknown to DeepSeek-V3.2"))),
            },
        }
        Ok(())
    }

    fn write_developer(&mut self, at: usize) -> Result<(), PrepareError> {
        let message = &self.messages[at];
        let content = message.text("content")?;
        if content.is_empty() {
            return Err(PrepareError::rejected("a developer's message has no content"));
        }
        let tools = message.tools_text()?;
        self.write_question(at, &format!("{tools}\n\n# The user's message is: {content}"));
        Ok(())
    }

    fn write_question(&mut self, at: usize, question: &str) {
        self.text.push_str("<｜User｜>");
        self.text.push_str(question);
        self.text.push_str("<｜Assistant｜>");
        self.write_thinking_mark(self.last_user == Some(at));
    }

    /// Begins the reasoning, or ends it at once.
    fn write_thinking_mark(&mut self, is_current: bool) {
        self.text.push_str(if self.thinks && is_current { "<think>" } else { "</think>" });
    }

    fn write_answer(&mut self, at: usize) -> Result<(), PrepareError> {
        let message = &self.messages[at];
        let calls = message.tool_calls();
        if self.thinks && Some(at) > self.last_user {
            let reasoning = message.text("reasoning")?;
            if reasoning.is_empty() && calls.is_empty() {
                return Err(PrepareError::rejected(
                    "an assistant's message after the last one of a user has neither reasoning nor tool calls, and thinking is on",
                ));
            }
            self.text.push_str(&reasoning);
            self.text.push_str("</think>");
        }
        self.text.push_str(&message.text("content")?);
        if !calls.is_empty() {
            let calls = calls.iter().map(|call| call_block(call, "")).collect::<Vec<_>>().join("\n");
            self.text.push_str("\n\n<｜DSML｜function_calls>\n");
            self.text.push_str(&calls);
            self.text.push_str("\n</｜DSML｜function_calls>");
        }
        self.text.push_str("<｜end▁of▁sentence｜>");
        Ok(())
    }

    /// Writes the result of a tool call. Results have the order of the calls.
    fn write_result(&mut self, at: usize) -> Result<(), PrepareError> {
        let caller = match self.messages[..at].iter().rposition(|message| message.role() != "tool") {
            Some(caller) if self.messages[caller].role() == "assistant" => Some(caller),
            // The encoder takes the last message as the one before the first.
            None if at == 0 => None,
            _ => return Err(PrepareError::rejected("a tool's message follows no message of an assistant")),
        };
        let order = at - caller.map_or(0, |caller| caller + 1);
        let calls = self.messages[caller.unwrap_or(self.messages.len() - 1)].tool_calls().len();
        if order >= calls {
            return Err(PrepareError::rejected("a tool's message has no tool call"));
        }
        let content = self.messages[at].text("content")?;
        if order == 0 {
            self.text.push_str("\n\n<function_results>");
        }
        self.text.push_str("\n<result>");
        self.text.push_str(&content);
        self.text.push_str("</result>");
        if order + 1 == calls {
            self.text.push_str("\n</function_results>\n\n");
            self.write_thinking_mark(Some(at) >= self.last_user);
        }
        Ok(())
    }
}
