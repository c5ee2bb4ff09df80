//! Prompts of gpt-oss in the harmony format, as vLLM makes them.

use std::collections::HashMap;

use chat_template::Json;

use super::typescript::type_of;
use crate::error::PrepareError;
use crate::message::{given, items, text_of};
use crate::vllm_message::ValidMessage;

const EFFORTS: [&str; 3] = ["low", "medium", "high"];

/// Names of the special tokens, without reserved ones.
const SPECIAL_TOKENS: [&str; 10] =
    ["startoftext", "endoftext", "return", "constrain", "channel", "start", "end", "message", "call", "endofprompt"];

/// A text, and where it is cut before it is tokenized.
#[derive(Debug, Default)]
pub(super) struct Harmony {
    pub(super) text: String,
    /// Positions that no token spans.
    pub(super) cuts: Vec<usize>,
}

/// Renders a chat on a date.
pub(super) fn render(
    messages: &[ValidMessage<'_>],
    tools: &[Json],
    reasoning_effort: Option<&Json>,
    date: &str,
) -> Result<Harmony, PrepareError> {
    let effort = match reasoning_effort.filter(|effort| !effort.is_null()) {
        None => "medium",
        Some(effort) => EFFORTS.into_iter().find(|known| effort.as_str() == Some(known)).ok_or_else(|| {
            PrepareError::rejected(format!("reasoning_effort is unknown to gpt-oss, which has {}", EFFORTS.join(", ")))
        })?,
    };
    let (instructions, messages) = match messages.split_first() {
        Some((first, rest)) if is_instructing(first) => (joined_text(first), rest),
        _ => (None, messages),
    };
    let mut sections = vec![system_section(effort, tools, date)];
    if instructions.as_ref().is_some_and(|it| !it.is_empty()) || !tools.is_empty() {
        sections.push(Section::developer(instructions.as_deref(), tools));
    }
    let names = names_of_calls(messages)?;
    for message in messages {
        sections.extend(sections_of(message, &names)?);
    }
    // Reasoning is dropped once its answer is given.
    let answered = sections.iter().rposition(|section| section.is_answer).unwrap_or(0);
    let mut out = Harmony::default();
    for (at, section) in sections.iter().enumerate() {
        if at >= answered || !section.is_reasoning {
            out.write(section)?;
        }
    }
    out.text.push_str("<|start|>assistant");
    Ok(out)
}

/// A message in the harmony format.
#[derive(Default)]
struct Section {
    /// Author and recipient.
    author: String,
    channel: Option<&'static str>,
    /// Texts that are tokenized one by one.
    texts: Vec<String>,
    is_call: bool,
    is_reasoning: bool,
    is_answer: bool,
}

impl Section {
    fn new(author: impl Into<String>, channel: Option<&'static str>, text: impl Into<String>) -> Self {
        Self { author: author.into(), channel, texts: vec![text.into()], ..Self::default() }
    }

    fn developer(instructions: Option<&str>, tools: &[Json]) -> Self {
        let instructions = instructions.map(|instructions| format!("# Instructions\n\n{instructions}"));
        let tools = Some(tools).filter(|tools| !tools.is_empty()).map(tools_text);
        let parts: Vec<String> = instructions.into_iter().chain(tools).collect();
        Self::new("developer", None, parts.join("\n\n"))
    }

    fn reasoning(text: String) -> Self {
        Self { is_reasoning: true, ..Self::new("assistant", Some("analysis"), text) }
    }

    fn call(name: &str, arguments: String) -> Self {
        Self {
            is_call: true,
            ..Self::new(format!("assistant to=functions.{name}"), Some("commentary json"), arguments)
        }
    }
}

impl Harmony {
    fn write(&mut self, section: &Section) -> Result<(), PrepareError> {
        self.text.push_str("<|start|>");
        self.write_ordinary(&section.author)?;
        if let Some(channel) = section.channel {
            self.text.push_str("<|channel|>");
            self.text.push_str(channel);
        }
        self.text.push_str("<|message|>");
        let mut has_text = false;
        for text in section.texts.iter().filter(|text| !text.is_empty()) {
            if has_text {
                self.cuts.push(self.text.len());
            }
            self.write_ordinary(text)?;
            has_text = true;
        }
        self.text.push_str(if section.is_call { "<|call|>" } else { "<|end|>" });
        Ok(())
    }

    /// Writes a text that the engine tokenizes as ordinary tokens, including names of special tokens in it.
    fn write_ordinary(&mut self, text: &str) -> Result<(), PrepareError> {
        if has_special_token(text) {
            return Err(PrepareError::Unsupported(
                "the tokens of a text that spells out a special token of gpt-oss are known to the engine only; send token_ids"
                    .to_owned(),
            ));
        }
        self.text.push_str(text);
        Ok(())
    }
}

/// Whether a text spells out a special token of the model's vocabulary, such as `<|end|>`.
fn has_special_token(text: &str) -> bool {
    let is_special = |name: &str| SPECIAL_TOKENS.contains(&name) || name.starts_with("reserved_");
    text.split("<|").skip(1).any(|rest| rest.split_once("|>").is_some_and(|(name, _)| is_special(name)))
}

fn system_section(effort: &str, tools: &[Json], date: &str) -> Section {
    let calls = match tools {
        [] => "",
        _ => "\nCalls to these tools must go to the commentary channel: 'functions'.",
    };
    let text = format!(
        "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\nCurrent date: {date}\n\n\
         Reasoning: {effort}\n\n\
         # Valid channels: analysis, commentary, final. Channel must be included for every message.{calls}"
    );
    Section::new("system", None, text)
}

fn tools_text(tools: &[Json]) -> String {
    let mut lines = vec!["# Tools\n\n## functions\n\nnamespace functions {\n".to_owned()];
    for tool in tools {
        let function = tool.get("function").unwrap_or_else(Json::null);
        let text = |key: &str| text_of(&function, key).unwrap_or_default();
        lines.extend(text("description").lines().map(|line| format!("// {line}")));
        let parameters = given(&function, "parameters").map(|schema| format!("_: {}", type_of(&schema, "")));
        lines.push(format!("type {} = ({}) => any;\n", text("name"), parameters.unwrap_or_default()));
    }
    lines.push("} // namespace functions".to_owned());
    lines.join("\n")
}

fn is_instructing(message: &ValidMessage<'_>) -> bool {
    matches!(message.message.role.as_str(), "system" | "developer")
}

/// The names of called functions by the ids of their calls.
fn names_of_calls(messages: &[ValidMessage<'_>]) -> Result<HashMap<String, String>, PrepareError> {
    let mut names = HashMap::new();
    for message in messages {
        let misplaced = message.message.json.get("tool_calls").filter(|_| message.message.role != "assistant");
        if misplaced.as_ref().is_some_and(Json::is_true) {
            return Err(PrepareError::Unsupported(
                "a message besides an assistant's has tool calls; send token_ids".to_owned(),
            ));
        }
        if misplaced.is_some_and(|calls| calls.is_null()) {
            return Err(PrepareError::rejected("`tool_calls` of a message besides an assistant's is null"));
        }
        let calls = message.tool_calls.iter().flatten();
        names.extend(calls.map(|call| (text_of(call, "id").unwrap_or_default(), name_of(call))));
    }
    Ok(names)
}

fn name_of(call: &Json) -> String {
    call.get("function").and_then(|function| text_of(&function, "name")).unwrap_or_default()
}

/// A message of the request in the harmony format.
fn sections_of(message: &ValidMessage<'_>, names: &HashMap<String, String>) -> Result<Vec<Section>, PrepareError> {
    Ok(match message.message.role.as_str() {
        "assistant" => answer(message)?,
        "system" | "developer" => {
            joined_text(message).map(|text| Section::developer(Some(&text), &[])).into_iter().collect()
        }
        "user" => vec![Section { texts: texts(message)?, ..Section::new("user", None, "") }],
        "tool" => {
            let id = text_of(message.message.json, "tool_call_id").unwrap_or_default();
            let name = names.get(&id).map_or("", String::as_str);
            let text = joined_text(message).unwrap_or_default();
            vec![Section::new(format!("functions.{name}"), Some("commentary to=assistant"), text)]
        }
        role => return Err(PrepareError::rejected(format!("the role {role:?} is unknown to gpt-oss"))),
    })
}

fn answer(message: &ValidMessage<'_>) -> Result<Vec<Section>, PrepareError> {
    let reasoning = match message.reasoning.as_ref().filter(|reasoning| reasoning.is_true()) {
        None => None,
        Some(reasoning) => match reasoning.as_str() {
            Some(text) => Some(Section::reasoning(text.to_owned())),
            None => return Err(PrepareError::rejected("the reasoning of a message is not a text")),
        },
    };
    let calls = message.tool_calls.as_deref().unwrap_or_default();
    if calls.is_empty() {
        let texts = texts(message)?;
        let has_answer = texts.first().is_some_and(|text| !text.is_empty());
        let answer = Section { texts, is_answer: true, ..Section::new("assistant", Some("final"), "") };
        return Ok(reasoning.into_iter().chain(has_answer.then_some(answer)).collect());
    }
    let preamble = joined_text(message).filter(|text| !text.is_empty());
    let preamble = preamble.map(|text| Section::new("assistant", Some("commentary"), text));
    let calls = calls.iter().map(|call| {
        let function = call.get("function").unwrap_or_else(Json::null);
        Section::call(&name_of(call), text_of(&function, "arguments").unwrap_or_default())
    });
    Ok(preamble.into_iter().chain(reasoning).chain(calls).collect())
}

/// The texts of a message's content, one for each part.
fn texts(message: &ValidMessage<'_>) -> Result<Vec<String>, PrepareError> {
    let Some(content) = message.message.get("content") else { return Ok(vec![String::new()]) };
    let Some(parts) = items(&content) else { return Ok(vec![content.as_str().unwrap_or_default().to_owned()]) };
    if parts.is_empty() {
        return Ok(vec![String::new()]);
    }
    message.check_parts()?;
    let text = |part: &Json| match part.entries().and(Some(part.get("text"))) {
        Some(None) => Ok(String::new()),
        Some(Some(text)) if text.as_str().is_some() => Ok(text.as_str().unwrap_or_default().to_owned()),
        _ => Err(PrepareError::rejected("a content part is not an object, or its text is not a string")),
    };
    parts.iter().map(text).collect()
}

/// The texts of a message's content in one. `None` if it has none.
fn joined_text(message: &ValidMessage<'_>) -> Option<String> {
    let content = message.message.get("content")?;
    if let Some(text) = content.as_str() {
        return Some(text.to_owned());
    }
    // vLLM does not read the parts of OpenAI's types here.
    let parts = items(&content).filter(|_| message.is_own)?;
    let text = |part: &Json| match part.as_str() {
        Some(text) => Some(text.to_owned()),
        None => text_of(part, "text"),
    };
    let texts: Vec<String> = parts.iter().filter_map(text).collect();
    (!texts.is_empty()).then(|| texts.concat())
}
