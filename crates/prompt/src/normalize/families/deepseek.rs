//! What the encoders of DeepSeek's models share.

use chat_template::Json;

use crate::normalize::chat::PreparedChat;
use crate::normalize::error::PrepareError;
use crate::normalize::message::items;

/// Names of the encoders' own parameters. The engine fails if variables of a chat have them.
const PARAMETERS: [&str; 3] = ["self", "messages", "conversation"];

/// A variable of a chat's template, which the encoders read.
pub(super) fn variable(prepared: &PreparedChat, name: &str) -> Option<Json> {
    prepared.request.chat_template_kwargs.as_ref().and_then(|variables| variables.get(name))
}

/// The tools of a chat.
pub(super) fn tools_of(prepared: &PreparedChat) -> Result<Vec<Json>, PrepareError> {
    if PARAMETERS.iter().any(|name| variable(prepared, name).is_some()) {
        return Err(PrepareError::rejected(format!("`chat_template_kwargs` has one of {}", PARAMETERS.join(", "))));
    }
    if variable(prepared, "tokenize").is_some_and(|tokenizes| tokenizes.is_true()) {
        return Err(PrepareError::Unsupported(
            "the tokens of a chat with the variable `tokenize` are known to the engine only; send token_ids".to_owned(),
        ));
    }
    match variable(prepared, "tools") {
        // An empty text or object is as good as an empty list.
        Some(tools) if !tools.is_true() && (tools.as_str().is_some() || tools.entries().is_some()) => Ok(Vec::new()),
        Some(tools) => items(&tools).ok_or_else(|| PrepareError::rejected("the variable `tools` is not a list")),
        None => Ok(prepared.request.tools.clone().unwrap_or_default()),
    }
}

/// The section of a prompt that describes tools: a text with the schemas in it.
pub(super) fn tools_section(around: &str, tools: &[Json]) -> Result<String, PrepareError> {
    let schema = |tool: &Json| tool.get("function").map(|function| function.to_spaced_text());
    let schemas: Option<Vec<String>> = tools.iter().map(schema).collect();
    let schemas = schemas.ok_or_else(|| PrepareError::rejected("a tool has no `function`"))?;
    Ok(around.replacen("{tool_schemas}", &schemas.join("\n"), 1))
}

/// A tool call with its arguments one by one.
pub(super) fn call_block(call: &Json) -> String {
    let function = call.get("function").unwrap_or_else(Json::null);
    let name = function.get("name").and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default();
    let arguments = function.get("arguments").and_then(|arguments| arguments.entries()).unwrap_or_default();
    let parameters = arguments.iter().map(|(key, value)| {
        let (is_text, value) = match value.as_str() {
            Some(text) => (true, text.to_owned()),
            None => (false, value.to_spaced_text()),
        };
        format!("<｜DSML｜parameter name=\"{key}\" string=\"{is_text}\">{value}</｜DSML｜parameter>")
    });
    let parameters = parameters.collect::<Vec<_>>().join("\n");
    format!("<｜DSML｜invoke name=\"{name}\">\n{parameters}\n</｜DSML｜invoke>")
}
