//! The body of an OpenAI chat request.

use chat_template::{ChatRequest, Continuation, Json, JsonParser, without_constants};
use serde::Deserialize;
use serde::de::Error;
use serde_json::value::RawValue;

use super::chat::ChatEngine;
use super::fields::EngineFields;
use super::lax::{LaxBool, LaxInteger};

/// The fields of a body. Values that templates see are read as Python reads them: integers of any size, and lists and objects
/// of any depth. A prompt may have their upper levels only.
#[derive(Deserialize)]
struct Body<'b> {
    #[serde(borrow)]
    messages: Vec<&'b RawValue>,
    #[serde(borrow)]
    tools: Option<&'b RawValue>,
    #[serde(borrow)]
    chat_template_kwargs: Option<&'b RawValue>,
    #[serde(borrow)]
    tool_choice: Option<&'b RawValue>,
    #[serde(borrow)]
    reasoning_effort: Option<&'b RawValue>,
    #[serde(borrow)]
    reasoning: Option<&'b RawValue>,
    #[serde(borrow)]
    continue_final_message: Option<&'b RawValue>,
    truncate_prompt_tokens: Option<LaxInteger>,
    // SGLang has none of these.
    #[serde(borrow)]
    documents: Option<&'b RawValue>,
    #[serde(borrow)]
    chat_template: Option<&'b RawValue>,
    #[serde(borrow)]
    add_generation_prompt: Option<&'b RawValue>,
    #[serde(borrow)]
    add_special_tokens: Option<&'b RawValue>,
    #[serde(borrow)]
    truncation_side: Option<&'b RawValue>,
}

/// Reads a body for an engine. The body may have `NaN` and infinite numbers. Fields that no prompt of the engine depends on
/// are ignored with any value.
pub(super) fn read(body: &[u8], engine: ChatEngine) -> Result<(ChatRequest, EngineFields), serde_json::Error> {
    match (serde_json::from_slice(body), without_constants(body)) {
        (Err(_), Some(body)) => of_json(serde_json::from_slice(&body)?, engine),
        (parsed, _) => of_json(parsed?, engine),
    }
}

fn of_json(body: Body<'_>, engine: ChatEngine) -> Result<(ChatRequest, EngineFields), serde_json::Error> {
    let truth = |LaxBool(truth)| truth;
    let known = |raw: Option<_>| raw.filter(|_| engine != ChatEngine::Sglang);
    let tools: Option<Vec<&RawValue>> = read_field("tools", body.tools)?;
    let documents: Option<Vec<&RawValue>> = read_field("documents", known(body.documents))?;
    let request = ChatRequest {
        messages: values(&body.messages)?,
        tools: tools.as_deref().map(values).transpose()?,
        documents: documents.as_deref().map(values).transpose()?,
        chat_template: read_field("chat_template", known(body.chat_template))?,
        add_generation_prompt: read_field("add_generation_prompt", known(body.add_generation_prompt))?.map(truth),
        continue_final_message: match read_field("continue_final_message", body.continue_final_message)? {
            Some(LaxBool(true)) => Continuation::Content,
            Some(LaxBool(false)) | None => Continuation::Nothing,
        },
        chat_template_kwargs: body.chat_template_kwargs.map(value).transpose()?,
        // Engines have no such field.
        return_assistant_tokens_mask: None,
        truncate_prompt_tokens: body.truncate_prompt_tokens.map(|LaxInteger(count)| count),
    };
    let fields = EngineFields {
        tool_choice: body.tool_choice.map(value).transpose()?,
        reasoning_effort: body.reasoning_effort.map(value).transpose()?,
        reasoning: body.reasoning.map(value).transpose()?,
        add_special_tokens: read_field("add_special_tokens", known(body.add_special_tokens))?.map(truth),
        truncation_side: read_field("truncation_side", known(body.truncation_side))?,
    };
    Ok((request, fields))
}

/// Reads a field, and names it if its value does not fit.
fn read_field<'b, T: Deserialize<'b>>(name: &str, raw: Option<&'b RawValue>) -> Result<Option<T>, serde_json::Error> {
    let read = |raw: &'b RawValue| serde_json::from_str(raw.get());
    raw.map(read).transpose().map_err(|error| match error.is_data() {
        true => serde_json::Error::custom(format!("{name}: {error}")),
        false => error,
    })
}

fn values(raw: &[&RawValue]) -> Result<Vec<Json>, serde_json::Error> {
    raw.iter().map(|raw| value(raw)).collect()
}

fn value(raw: &RawValue) -> Result<Json, serde_json::Error> {
    // JSON whose integers are short is also what Python parses.
    Json::loads(raw.get(), JsonParser::Python).ok_or_else(|| {
        serde_json::Error::custom("an integer has more than 4300 digits, or a text has an invalid escape")
    })
}
