//! TensorRT-LLM's rules, of its server's reading of chat messages. They follow its source; no recording confirms them.

use chat_template::{ChatRequest, ChatTemplates, Json, JsonParser};

use super::chat::PreparedChat;
use super::content_format::ContentFormat;
use super::error::{PrepareError, read_each};
use super::fields::EngineFields;
use super::media::{Media, MediaPart};
use super::message::{Entries, Message, given, items, object, replaced, text_of};
use super::{vllm, vllm_message};

/// Changes a request as TensorRT-LLM does.
pub(super) fn prepare(
    request: &ChatRequest,
    fields: &EngineFields,
    templates: &ChatTemplates,
    media: &Media,
) -> Result<PreparedChat, PrepareError> {
    // Reports a missing or broken template before the messages are read.
    templates.inspect(request.chat_template.as_deref(), request.tools.is_some(), |_, _| ())?;
    let messages = read_each("messages", &request.messages, |message| conversation_message(message, media))?;
    let tools = request.tools.as_deref().map(|tools| read_each("tools", tools, tool));
    let request = ChatRequest {
        messages,
        tools: tools.transpose()?,
        add_generation_prompt: Some(request.add_generation_prompt.unwrap_or(true)),
        return_assistant_tokens_mask: None,
        ..request.clone()
    };
    Ok(PreparedChat {
        request,
        content_format: Some(ContentFormat::Text),
        adds_special_tokens: fields.add_special_tokens.unwrap_or(false),
        ..PreparedChat::default()
    })
}

/// A message as the template gets it.
fn conversation_message(json: &Json, media: &Media) -> Result<Json, PrepareError> {
    let message = Message::of(json)?;
    let mut entries: Entries = vec![("role".to_owned(), message.role.as_str().into())];
    entries.push(("content".to_owned(), content(message.get("content"), media)?));
    match message.role.as_str() {
        "assistant" => {
            let reasoning = message.get("reasoning").or_else(|| message.get("reasoning_content"));
            entries.extend(reasoning.map(|reasoning| ("reasoning_content".to_owned(), reasoning)));
            if let Some(calls) = message.get("tool_calls") {
                let calls = items(&calls).ok_or_else(|| PrepareError::rejected("`tool_calls` is not a list"))?;
                let calls = calls.iter().map(tool_call).collect::<Result<Vec<_>, _>>()?;
                entries.push(("tool_calls".to_owned(), Json::list(calls)?));
            }
        }
        "tool" => entries.extend(message.json.get("tool_call_id").map(|id| ("tool_call_id".to_owned(), id))),
        "system" => entries.extend(message.get("tools").map(|tools| ("tools".to_owned(), tools))),
        _ => {}
    }
    Ok(object(entries)?)
}

/// The texts that are not empty, joined by newlines. Placeholders of media are before or after them.
fn content(content: Option<Json>, media: &Media) -> Result<Json, PrepareError> {
    let parts = content.map_or_else(Vec::new, |content| items(&content).unwrap_or_else(|| vec![content]));
    let mut texts = Vec::new();
    let mut placeholders = Vec::new();
    for part in parts {
        if let Some(text) = part.as_str() {
            texts.push(text.to_owned());
            continue;
        }
        match text_of(&part, "type").as_deref() {
            Some("text") => texts.extend(text_of(&part, "text")),
            kind => match kind.map_or(Ok(None), MediaPart::of)? {
                Some(part) => placeholders.push(media.text(part)),
                None => return Err(PrepareError::rejected("a content part is of no type that TensorRT-LLM takes")),
            },
        }
    }
    texts.retain(|text| !text.is_empty());
    placeholders.extend(texts);
    Ok(placeholders.join("\n").into())
}

/// A tool call with its arguments as an object, in the order of OpenAI's type if it fits it. A malformed text stays as it is.
fn tool_call(call: &Json) -> Result<Json, PrepareError> {
    let call = &vllm_message::tool_call(call).unwrap_or_else(|_| call.clone());
    let function = given(call, "function").and_then(|function| function.entries());
    let mut function = function.ok_or_else(|| PrepareError::rejected("a tool call has no function"))?;
    let arguments = given(call, "function").and_then(|function| given(&function, "arguments"));
    let parsed = match arguments {
        None => Json::object(Entries::new())?,
        Some(arguments) => match arguments.as_str().and_then(|text| Json::loads(text, JsonParser::Python)) {
            None if arguments.as_str().is_some() => arguments,
            parsed => {
                let parsed = parsed.unwrap_or(arguments);
                parsed.entries().ok_or_else(|| PrepareError::rejected("arguments of a tool call are not an object"))?;
                parsed
            }
        },
    };
    match function.iter_mut().find(|(key, _)| key == "arguments") {
        Some((_, arguments)) => *arguments = parsed,
        None => function.push(("arguments".to_owned(), parsed)),
    }
    Ok(replaced(call, "function", &object(function)?)?)
}

/// A tool as TensorRT-LLM's model writes it: vLLM's fields, with `strict` even if null.
fn tool(tool: &Json) -> Result<Json, PrepareError> {
    let written = vllm::tool(tool)?;
    let function = written.get("function").and_then(|function| function.entries()).unwrap_or_default();
    let mut function: Entries = function.into_iter().filter(|(key, _)| key != "defer_loading").collect();
    if !function.iter().any(|(key, _)| key == "strict") {
        function.push(("strict".to_owned(), Json::null()));
    }
    Ok(object([("type", "function".into()), ("function", object(function)?)])?)
}
