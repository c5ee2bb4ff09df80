//! vLLM's rules, of its chat completion models and its renderer for Hugging Face templates.

use chat_template::{ChatRequest, ChatTemplates, Continuation, Json, JsonParser};

use super::chat::PreparedChat;
use super::content_format::{self, ContentFormat};
use super::error::{PrepareError, read_each};
use super::fields::EngineFields;
use super::lax::truth_of;
use super::media::{Media, MediaPart};
use super::message::{Entries, given, has_role, items, object, replaced, text_of, variables_of};
use super::vllm_message::{ValidMessage, validate};

/// Keys of content parts that vLLM's types define. Others are copied to the template.
const PART_KEYS: [&str; 18] = [
    "type",
    "text",
    "refusal",
    "thinking",
    "closed",
    "name",
    "uuid",
    "data",
    "file",
    "image_url",
    "image_pil",
    "image_embeds",
    "audio_url",
    "audio_embeds",
    "input_audio",
    "video_url",
    "video_embeds",
    "prompt_cache_breakpoint",
];

/// Beginning of a line that some clients put before their system prompt. It changes with every request, so vLLM drops it.
const BILLING_LINE: &str = "x-anthropic-billing-header";

/// Efforts of reasoning.
pub(super) const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// Changes a request as vLLM does for a template.
pub(super) fn prepare(
    request: &ChatRequest,
    fields: &EngineFields,
    templates: &ChatTemplates,
    media: &Media,
) -> Result<PreparedChat, PrepareError> {
    let tools = tools(request, fields)?;
    let (format, knows_developers) =
        templates.inspect(request.chat_template.as_deref(), tools.is_some(), |source, outline| {
            let knows_developers = source.contains("\"developer\"") || source.contains("'developer'");
            (content_format::of_vllm(outline), knows_developers)
        })?;
    let mut messages = conversation(request, format, media)?;
    if !knows_developers && messages.iter().any(|message| has_role(message, "developer")) {
        messages = merge_systems(messages.into_iter().map(|message| as_system(&message)).collect::<Result<_, _>>()?)?;
    }
    prepared(request, fields, messages, tools, Some(format))
}

/// Changes everything except the messages as vLLM does for a family of models whose prompts it makes by code.
pub(super) fn prepare_for_code(
    request: &ChatRequest,
    fields: &EngineFields,
    messages: Vec<Json>,
    format: Option<ContentFormat>,
) -> Result<PreparedChat, PrepareError> {
    prepared(request, fields, messages, tools(request, fields)?, format)
}

/// The messages as vLLM gives them to a template.
pub(super) fn conversation(
    request: &ChatRequest,
    format: ContentFormat,
    media: &Media,
) -> Result<Vec<Json>, PrepareError> {
    read_each("messages", &request.messages, |message| conversation_message(&validate(message)?, format, media))
}

fn prepared(
    request: &ChatRequest,
    fields: &EngineFields,
    messages: Vec<Json>,
    tools: Option<Vec<Json>>,
    format: Option<ContentFormat>,
) -> Result<PreparedChat, PrepareError> {
    let kwargs = template_kwargs(request, fields)?;
    let continue_final_message = match &request.continue_final_message {
        Continuation::Field(_) => return Err(PrepareError::rejected("`continue_final_message` is not true or false")),
        continuation => continuation.clone(),
    };
    if continue_final_message != Continuation::Nothing && request.add_generation_prompt == Some(true) {
        return Err(PrepareError::rejected("`continue_final_message` and `add_generation_prompt` exclude each other"));
    }
    let request = ChatRequest {
        messages,
        tools,
        chat_template: request.chat_template.clone(),
        add_generation_prompt: Some(request.add_generation_prompt.unwrap_or(true)),
        continue_final_message,
        chat_template_kwargs: Some(object(kwargs)?),
        truncate_prompt_tokens: request.truncate_prompt_tokens,
        ..ChatRequest::default()
    };
    Ok(PreparedChat {
        request,
        content_format: format,
        adds_special_tokens: fields.add_special_tokens.unwrap_or(false),
        ..PreparedChat::default()
    })
}

/// A message as the template gets it.
fn conversation_message(valid: &ValidMessage<'_>, format: ContentFormat, media: &Media) -> Result<Json, PrepareError> {
    let message = &valid.message;
    let role = message.role.as_str();
    let mut entries: Entries = vec![("role".to_owned(), role.into())];
    entries.push(("content".to_owned(), content(role, message.get("content"), format, media)?));
    if role == "assistant" {
        // An empty list is dropped.
        if let Some(calls) = valid.tool_calls.as_ref().filter(|calls| !calls.is_empty()) {
            let calls = calls.iter().map(with_parsed_arguments).collect::<Result<Vec<_>, _>>()?;
            entries.push(("tool_calls".to_owned(), Json::list(calls)?));
        }
        if let Some(reasoning) = valid.reasoning.clone() {
            entries.push(("reasoning".to_owned(), reasoning.clone()));
            entries.push(("reasoning_content".to_owned(), reasoning));
        }
    }
    if let Some(id) = message.json.get("tool_call_id").filter(|_| role == "tool") {
        entries.push(("tool_call_id".to_owned(), id));
    }
    for key in ["name", "task"] {
        let text = message.get(key).filter(|value| value.as_str().is_some());
        entries.extend(text.map(|text| (key.to_owned(), text)));
    }
    if role == "developer" {
        entries.push(("tools".to_owned(), valid.tools.clone().unwrap_or_else(Json::null)));
    }
    Ok(object(entries)?)
}

/// The content in the template's format: texts joined by newlines after placeholders of media, or a list of parts.
fn content(role: &str, content: Option<Json>, format: ContentFormat, media: &Media) -> Result<Json, PrepareError> {
    let parts = match content {
        None => Vec::new(),
        // Python iterates over an object without keys.
        Some(content) if content.entries().is_some_and(|entries| entries.is_empty()) => Vec::new(),
        Some(content) => items(&content).unwrap_or_else(|| vec![content]),
    };
    let mut kept = Vec::new();
    let mut texts: Vec<Json> = Vec::new();
    let mut placeholders: Vec<Json> = Vec::new();
    let mut is_structured = false;
    for part in parts {
        let part = if role == "system" { without_billing_line(part)? } else { Some(part) };
        let Some(part) = part.as_ref().map(read_part).transpose()?.flatten() else { continue };
        let (text, extra) = match part {
            Part::Text(text, extra) => (text, extra),
            Part::Media(part, extra) => {
                is_structured = true;
                match format {
                    ContentFormat::Parts => kept.push(media.part(part, extra)?),
                    ContentFormat::Text => placeholders.push(media.text(part).into()),
                }
                continue;
            }
            Part::ToolReference(name) => {
                is_structured = true;
                kept.push(object([("type", "tool_reference".into()), ("name", name.clone())])?);
                texts.push(name);
                continue;
            }
        };
        let entries = [("type".to_owned(), "text".into()), ("text".to_owned(), text.clone())];
        kept.push(object(entries.into_iter().chain(extra))?);
        texts.push(text);
    }
    Ok(match format {
        ContentFormat::Parts if role != "tool" || is_structured => Json::list(kept)?,
        ContentFormat::Parts => joined(&texts)?.into(),
        ContentFormat::Text => {
            texts.retain(is_true);
            placeholders.extend(texts);
            joined(&placeholders)?.into()
        }
    })
}

/// Texts as lines. vLLM fails if one is something else.
fn joined(texts: &[Json]) -> Result<String, PrepareError> {
    let lines: Option<Vec<&str>> = texts.iter().map(Json::as_str).collect();
    let lines = lines.ok_or_else(|| PrepareError::rejected("the text of a content part is not a text"))?;
    Ok(lines.join("\n"))
}

/// Whether a value is true in Python.
fn is_true(value: &Json) -> bool {
    let is_empty = |length: Option<usize>| length == Some(0);
    let is_zero =
        value.as_str().is_none() && matches!(value.to_text().as_str(), "null" | "false" | "0" | "0.0" | "-0.0");
    !is_zero
        && !value.as_str().is_some_and(str::is_empty)
        && !is_empty(items(value).map(|items| items.len()))
        && !is_empty(value.entries().map(|entries| entries.len()))
}

/// A part of a message's content, with its keys that are unknown to vLLM.
enum Part {
    /// A text. vLLM does not check its type.
    Text(Json, Entries),
    Media(MediaPart, Entries),
    ToolReference(Json),
}

/// Reads a part. `None` if it has no text.
fn read_part(part: &Json) -> Result<Option<Part>, PrepareError> {
    if part.as_str().is_some() {
        return Ok(Some(Part::Text(part.clone(), Vec::new())));
    }
    let kind = given(part, "type");
    let Some(kind) = kind.as_ref().and_then(Json::as_str) else {
        return Err(PrepareError::rejected("a content part has no type; write {\"type\": \"text\", \"text\": …}"));
    };
    let extra = || {
        let entries = part.entries().unwrap_or_default().into_iter();
        entries.filter(|(key, _)| !PART_KEYS.contains(&key.as_str())).collect()
    };
    match kind {
        "text" | "refusal" | "thinking" | "input_text" | "output_text" => {
            let text = part.get(if kind.ends_with("_text") { "text" } else { kind }).unwrap_or_else(Json::null);
            // For the other kinds, a list of parts keeps the null.
            let is_skipped = text.is_null() && matches!(kind, "text" | "refusal");
            Ok((!is_skipped).then(|| Part::Text(text, extra())))
        }
        "tool_reference" => Ok(given(part, "name").map(Part::ToolReference)),
        kind => match MediaPart::of(kind)? {
            Some(media) => Ok(Some(Part::Media(media, extra()))),
            None => Err(PrepareError::rejected(format!("a content part of type {kind:?} is unknown to vLLM"))),
        },
    }
}

/// A part of a system message without its first line, if clients change that line with every request. `None` if nothing follows it.
fn without_billing_line(part: Json) -> Result<Option<Json>, PrepareError> {
    let is_text = text_of(&part, "type").as_deref() == Some("text");
    let text = if is_text { given(&part, "text") } else { Some(part.clone()) };
    let Some(text) = text.as_ref().and_then(Json::as_str).filter(|text| text.starts_with(BILLING_LINE)) else {
        return Ok(Some(part));
    };
    let rest = text.split_once('\n').map_or("", |(_, rest)| rest);
    if rest.is_empty() {
        return Ok(None);
    }
    if !is_text {
        return Ok(Some(rest.into()));
    }
    Ok(Some(replaced(&part, "text", &rest.into())?))
}

/// A tool call with its arguments as an object. A value that is not an object becomes an empty object.
pub(super) fn with_parsed_arguments(call: &Json) -> Result<Json, PrepareError> {
    let function = given(call, "function").unwrap_or_else(Json::null);
    let arguments = function.get("arguments").and_then(|arguments| match arguments.as_str() {
        Some(text) => Json::loads(text, JsonParser::Python),
        None => Some(arguments),
    });
    let arguments = arguments.filter(|arguments| arguments.entries().is_some());
    let arguments = arguments.map_or_else(|| Json::object(Entries::new()), Ok)?;
    Ok(replaced(call, "function", &replaced(&function, "arguments", &arguments)?)?)
}

/// A developer's message as a system message, for templates that do not handle developers.
fn as_system(message: &Json) -> Result<Json, PrepareError> {
    if !has_role(message, "developer") {
        return Ok(message.clone());
    }
    let entries = message.entries().unwrap_or_default().into_iter().filter(|(key, _)| key != "tools");
    Ok(object(entries.map(|(key, value)| if key == "role" { (key, "system".into()) } else { (key, value) }))?)
}

/// Joins all system messages to one at the front, unless the only one is already the first message.
fn merge_systems(messages: Vec<Json>) -> Result<Vec<Json>, PrepareError> {
    let is_system = |message: &Json| has_role(message, "system");
    let contents = messages.iter().filter(|message| is_system(message)).filter_map(|message| message.get("content"));
    let texts = contents.map(|content| match items(&content) {
        Some(parts) => joined(&parts.iter().filter_map(|part| part.get("text")).collect::<Vec<_>>()),
        None => Ok(content.as_str().unwrap_or_default().to_owned()),
    });
    let mut texts = texts.collect::<Result<Vec<String>, _>>()?;
    if !messages.iter().skip(1).any(is_system) {
        return Ok(messages);
    }
    texts.retain(|text| !text.is_empty());
    let merged = object([("role", "system".into()), ("content", texts.join("\n\n").into())])?;
    let others = messages.into_iter().filter(|message| !is_system(message));
    Ok(std::iter::once(merged).chain(others).collect())
}

/// The tools as vLLM's models write them: known fields in their order, with `description` and `parameters` even if null.
fn tools(request: &ChatRequest, fields: &EngineFields) -> Result<Option<Vec<Json>>, PrepareError> {
    let choice = fields.tool_choice.as_ref().filter(|choice| !choice.is_null());
    let choice = choice.filter(|choice| choice.as_str() != Some("none"));
    let Some(tools) = &request.tools else {
        return match choice {
            Some(_) => Err(PrepareError::rejected("`tool_choice` needs `tools`")),
            None => Ok(None),
        };
    };
    if tools.is_empty() {
        return Err(PrepareError::rejected("`tools` is empty: leave it out, or give at least one tool"));
    }
    let tools = read_each("tools", tools, tool)?;
    if let Some(choice) = choice {
        let named = given(choice, "function").and_then(|function| given(&function, "name"));
        let is_named = |tool: &Json| tool.get("function").and_then(|function| function.get("name")) == named;
        if !matches!(choice.as_str(), Some("auto" | "required")) && (named.is_none() || !tools.iter().any(is_named)) {
            return Err(PrepareError::rejected("`tool_choice` names no tool of `tools`"));
        }
    }
    Ok(Some(tools))
}

pub(super) fn tool(tool: &Json) -> Result<Json, PrepareError> {
    let wrong = || {
        let shape = "{\"type\": \"function\", \"function\": {\"name\": …, \"parameters\": {…}}}";
        PrepareError::rejected(format!("a tool does not fit vLLM's type; write {shape}"))
    };
    let function = given(tool, "function").filter(|function| function.entries().is_some()).ok_or_else(wrong)?;
    let (description, parameters) = (given(&function, "description"), given(&function, "parameters"));
    let fits = given(&function, "name").is_some_and(|name| name.as_str().is_some())
        && description.as_ref().is_none_or(|it| it.as_str().is_some())
        && parameters.as_ref().is_none_or(|it| it.entries().is_some())
        && tool.get("type").is_none_or(|kind| kind.as_str() == Some("function"));
    if !fits {
        return Err(wrong());
    }
    let flag =
        |of: &Json, key| given(of, key).map(|flag| truth_of(&flag).map(Json::from).ok_or_else(wrong)).transpose();
    let deferred = flag(tool, "defer_loading")?;
    let mut entries: Entries = vec![
        ("name".to_owned(), given(&function, "name").unwrap_or_else(Json::null)),
        ("description".to_owned(), description.unwrap_or_else(Json::null)),
        ("parameters".to_owned(), parameters.unwrap_or_else(Json::null)),
    ];
    entries.extend(flag(&function, "strict")?.map(|strict| ("strict".to_owned(), strict)));
    let function_deferred = flag(&function, "defer_loading")?.or_else(|| deferred.clone());
    entries.extend(function_deferred.map(|deferred| ("defer_loading".to_owned(), deferred)));
    let function = object(entries)?;
    let entries = [("type", Some("function".into())), ("function", Some(function)), ("defer_loading", deferred)];
    Ok(object(entries.into_iter().filter_map(|(key, value)| Some((key, value?))))?)
}

/// The template's further variables. Null and `"auto"` count as unset.
fn template_kwargs(request: &ChatRequest, fields: &EngineFields) -> Result<Entries, PrepareError> {
    let mut kwargs = variables_of(request)?;
    let effort = fields.reasoning_effort.as_ref().filter(|effort| !effort.is_null());
    if let Some(effort) = effort
        && !effort.as_str().is_some_and(|effort| EFFORTS.contains(&effort))
    {
        return Err(PrepareError::rejected(format!("reasoning_effort is unknown; vLLM has {}", EFFORTS.join(", "))));
    }
    // Fields of the request replace these, even with their defaults.
    kwargs.retain(|(key, _)| !matches!(key.as_str(), "add_generation_prompt" | "continue_final_message"));
    let mut set = |key: &str, value: Json| {
        kwargs.retain(|(name, _)| name != key);
        kwargs.push((key.to_owned(), value));
    };
    if let Some(effort) = effort {
        set("reasoning_effort", effort.clone());
    }
    if let Some(documents) = &request.documents {
        let is_text = |(_, value): &(String, Json)| value.as_str().is_some();
        if !documents.iter().all(|document| document.entries().is_some_and(|it| it.iter().all(is_text))) {
            return Err(PrepareError::rejected("a document is not an object of texts"));
        }
        set("documents", Json::list(documents.iter().cloned())?);
    }
    if let Some(effort) = effort
        && !kwargs.iter().any(|(key, _)| key == "enable_thinking")
    {
        kwargs.push(("enable_thinking".to_owned(), (effort.as_str() != Some("none")).into()));
    }
    kwargs.retain(|(_, value)| !value.is_null() && value.as_str() != Some("auto"));
    Ok(kwargs)
}
