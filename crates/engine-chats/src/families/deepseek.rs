//! Common parts of the encoders of DeepSeek's models.

use chat_template::Json;

use super::variables::{tools_of, variable};
use crate::chat::PreparedChat;
use crate::error::PrepareError;
use crate::message::{items, text_of};

/// Names of the encoders' own parameters. The engine fails if variables of a chat have them.
const PARAMETERS: [&str; 3] = ["self", "messages", "conversation"];

/// Checks that no variable of a chat has the name of an encoder's parameter.
pub(super) fn check_variables(prepared: &PreparedChat) -> Result<(), PrepareError> {
    if PARAMETERS.iter().any(|name| variable(prepared, name).is_some()) {
        return Err(PrepareError::rejected(format!("`chat_template_kwargs` has one of {}", PARAMETERS.join(", "))));
    }
    if variable(prepared, "tokenize").is_some_and(|tokenizes| tokenizes.is_true()) {
        return Err(PrepareError::Unsupported(
            "the tokens of a chat with the variable `tokenize` are known to the engine only; send token_ids".to_owned(),
        ));
    }
    Ok(())
}

/// The tools of a chat. The encoder reads their number.
pub(super) fn counted_tools_of(prepared: &PreparedChat) -> Result<Vec<Json>, PrepareError> {
    match variable(prepared, "tools") {
        Some(tools) if tools.as_str().is_none() && tools.entries().is_none() && items(&tools).is_none() => {
            Err(PrepareError::rejected("the variable `tools` is not a list"))
        }
        _ => tools_of(prepared),
    }
}

/// The section of a prompt that describes tools: a text with the schemas in it.
pub(super) fn tools_section(around: &str, tools: &[Json]) -> Result<String, PrepareError> {
    let schema = |tool: &Json| tool.get("function").map(|function| function.to_spaced_text());
    let schemas: Option<Vec<String>> = tools.iter().map(schema).collect();
    let schemas = schemas.ok_or_else(|| PrepareError::rejected("a tool has no `function`"))?;
    Ok(around.replacen("{tool_schemas}", &schemas.join("\n"), 1))
}

/// A tool call with its arguments one by one. A prefix precedes the names of its tags.
pub(super) fn call_block(call: &Json, prefix: &str) -> String {
    let function = call.get("function").unwrap_or_else(Json::null);
    let name = text_of(&function, "name").unwrap_or_default();
    let arguments = function.get("arguments").and_then(|arguments| arguments.entries()).unwrap_or_default();
    let parameters = arguments.iter().map(|(key, value)| {
        let (is_text, value) = match value.as_str() {
            Some(text) => (true, text.to_owned()),
            None => (false, value.to_spaced_text()),
        };
        format!("<｜DSML｜{prefix}parameter name=\"{key}\" string=\"{is_text}\">{value}</｜DSML｜{prefix}parameter>")
    });
    let parameters = parameters.collect::<Vec<_>>().join("\n");
    format!("<｜DSML｜{prefix}invoke name=\"{name}\">\n{parameters}\n</｜DSML｜{prefix}invoke>")
}
