//! SGLang's rules, of its chat completion models and its use of Jinja templates.

use chat_template::{ChatRequest, ChatTemplates, Continuation, Json, JsonParser};

use super::chat::PreparedChat;
use super::content_format::{self, ContentFormat};
use super::error::{PrepareError, read_each};
use super::fields::EngineFields;
use super::lax::truth_of;
use super::media::{Media, MediaPart};
use super::message::{Entries, Message, given, has_role, items, object, text_of, text_part, variables_of};
use super::sglang_schema::with_known_types;

/// Roles other than `user`. Their letter case is ignored.
const ROLES: [&str; 7] = ["system", "assistant", "tool", "function", "developer", "latest_reminder", "root"];

/// Efforts of reasoning.
const EFFORTS: [&str; 8] = ["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"];

/// Choices of tools that name no tool.
const CHOICES: [&str; 3] = ["auto", "required", "none"];

/// Changes a request as SGLang does.
pub(super) fn prepare(
    request: &ChatRequest,
    fields: &EngineFields,
    templates: &ChatTemplates,
    media: &Media,
) -> Result<PreparedChat, PrepareError> {
    let (format, has_low_effort) = templates.inspect(None, false, |source, outline| {
        let has_low_effort = source.contains("low_effort") && source.contains("truncate_history_thinking");
        (content_format::of_sglang(source, outline), has_low_effort)
    })?;
    let mut prepared = prepared(request, fields, format, has_low_effort, media)?;
    check_arguments(&prepared)?;
    prepared.retries_with_functions = prepared.request.tools.is_some();
    Ok(prepared)
}

/// Changes a request as SGLang does for a family of models without media whose prompts it makes by code.
pub(super) fn prepare_for_code(request: &ChatRequest, fields: &EngineFields) -> Result<PreparedChat, PrepareError> {
    let media = Media::as_engine();
    let mut prepared = prepared(request, fields, ContentFormat::Text, false, &media)?;
    if let Some(first) = media.first() {
        return Err(PrepareError::rejected(format!("the model takes no content part of type {:?}", first.kind)));
    }
    if prepared.request.tools.is_some() {
        // The encoder gets all tools, regardless of the choice.
        prepared.request.tools = Some(read_each("tools", request.tools.as_deref().unwrap_or_default(), tool)?);
    }
    Ok(prepared)
}

fn prepared(
    request: &ChatRequest,
    fields: &EngineFields,
    format: ContentFormat,
    has_low_effort: bool,
    media: &Media,
) -> Result<PreparedChat, PrepareError> {
    if request.messages.is_empty() {
        return Err(PrepareError::rejected("`messages` is empty: give at least one message"));
    }
    let mut messages =
        read_each("messages", &request.messages, |message| conversation_message(message, format, media))?;
    let continuation = take_last_answer(&mut messages, request.continue_final_message != Continuation::Nothing)?;
    let kwargs = template_kwargs(request, fields, has_low_effort)?;
    let request = ChatRequest {
        messages,
        tools: tools(request, fields)?,
        add_generation_prompt: Some(true),
        chat_template_kwargs: Some(object(kwargs)?),
        truncate_prompt_tokens: request.truncate_prompt_tokens,
        ..ChatRequest::default()
    };
    Ok(PreparedChat {
        request,
        content_format: Some(format),
        continuation: continuation.filter(|text| !text.is_empty()),
        // SGLang has no field for truncation.
        is_whole: true,
        ..PreparedChat::default()
    })
}

/// Replaces tools by their functions. SGLang tries this when a template fails.
pub(super) fn unwrap_functions(request: &mut ChatRequest) {
    for tool in request.tools.iter_mut().flatten() {
        if let Some(function) = tool.get("function") {
            *tool = function;
        }
    }
}

/// A message as the template gets it: known fields in the order of SGLang's model, without nulls.
fn conversation_message(json: &Json, format: ContentFormat, media: &Media) -> Result<Json, PrepareError> {
    let message = Message::of(json)?;
    let lowered = message.role.to_lowercase();
    let is_user = message.role == "user";
    if !is_user && !ROLES.contains(&lowered.as_str()) {
        let message = format!("role {:?} is unknown; SGLang has user, {}", message.role, ROLES.join(", "));
        return Err(PrepareError::rejected(message));
    }
    let role = if is_user { message.role.clone() } else { lowered };
    let content = match message.get("content") {
        None if is_user => return Err(PrepareError::rejected("a user's message has no content")),
        None => Json::from(""),
        Some(content) => match items(&content) {
            Some(parts) => content_of_parts(&role, &parts, format, media)?,
            None if content.as_str().is_some() => content,
            None => return Err(PrepareError::rejected("content is neither a text nor a list of parts")),
        },
    };
    let is_list = message.get("content").is_some_and(|content| items(&content).is_some());
    let mut entries: Entries = vec![("role".to_owned(), role.as_str().into())];
    if !is_list || format == ContentFormat::Text {
        entries.push(("content".to_owned(), content.clone()));
    }
    if !is_user {
        for key in ["tool_call_id", "name", "phase", "reasoning_content"] {
            let Some(value) = message.get(key) else { continue };
            if value.as_str().is_none() {
                return Err(PrepareError::rejected(format!("`{key}` of a message is not a text")));
            }
            entries.push((key.to_owned(), value));
        }
        if let Some(calls) = message.get("tool_calls") {
            entries.push(("tool_calls".to_owned(), tool_calls(&calls, &role)?));
        }
        if let Some(tools) = message.get("tools") {
            let tools = items(&tools).ok_or_else(|| PrepareError::rejected("`tools` of a message is not a list"))?;
            let tools = tools.iter().map(tool).collect::<Result<Vec<_>, _>>()?;
            entries.push(("tools".to_owned(), Json::list(tools)?));
        }
        if let Some(prefix) = message.get("prefix") {
            let prefix = truth_of(&prefix)
                .ok_or_else(|| PrepareError::rejected("`prefix` of a message is neither true nor false"))?;
            entries.push(("prefix".to_owned(), prefix.into()));
        }
    }
    if is_list && format == ContentFormat::Parts {
        entries.push(("content".to_owned(), content));
    }
    Ok(object(entries)?)
}

/// Parts as the template gets them: joined by spaces without media, or as a list.
fn content_of_parts(role: &str, parts: &[Json], format: ContentFormat, media: &Media) -> Result<Json, PrepareError> {
    let mut kept = Vec::new();
    let mut texts = Vec::new();
    let mut has_other = false;
    for part in parts {
        match text_of(part, "type").as_deref() {
            Some("text") => {
                let text = given(part, "text").filter(|text| text.as_str().is_some());
                let text = text.ok_or_else(|| PrepareError::rejected("a part of type text has no text"))?;
                texts.push(text.as_str().unwrap_or_default().to_owned());
                kept.push(text_part(text)?);
            }
            // Neither format keeps it.
            Some("thinking" | "reasoning") if role == "assistant" => {}
            Some("tool_reference") => {
                let name = given(part, "name").filter(|name| name.as_str().is_some());
                let name = name.ok_or_else(|| PrepareError::rejected("a part of type tool_reference has no name"))?;
                kept.push(object([("type", "tool_reference".into()), ("name", name)])?);
                has_other = true;
            }
            Some(kind @ ("image_url" | "video_url" | "audio_url" | "input_audio")) => {
                let Some(part) = MediaPart::of(kind)? else { continue };
                match format {
                    ContentFormat::Parts => kept.push(media.part(part, Entries::new())?),
                    // SGLang passes nothing to the template, and its processor chooses the position.
                    ContentFormat::Text => media.leave_out(part),
                }
                has_other = true;
            }
            _ => return Err(PrepareError::rejected(format!("a part of this type is unknown to SGLang: {part:?}"))),
        }
    }
    Ok(match format {
        ContentFormat::Parts if role != "tool" || has_other => Json::list(kept)?,
        ContentFormat::Parts | ContentFormat::Text => texts.join(" ").into(),
    })
}

/// Tool calls in the order of SGLang's model, with arguments as objects in an assistant's message.
fn tool_calls(calls: &Json, role: &str) -> Result<Json, PrepareError> {
    let calls = items(calls).ok_or_else(|| PrepareError::rejected("`tool_calls` is not a list"))?;
    let calls = calls.iter().map(|call| {
        let function = given(call, "function").filter(|function| function.entries().is_some());
        let function = function.ok_or_else(|| PrepareError::rejected("a tool call has no function"))?;
        if given(call, "type").is_some_and(|kind| kind.as_str() != Some("function")) {
            return Err(PrepareError::rejected("a tool call is of another type than function"));
        }
        let arguments = match given(&function, "arguments") {
            Some(arguments) if role == "assistant" && arguments.as_str().is_some() => {
                let parsed = arguments.as_str().and_then(|text| Json::loads(text, JsonParser::Orjson));
                let parsed = parsed.filter(|value| value.entries().is_some());
                parsed.ok_or_else(|| PrepareError::rejected("the arguments of a tool call are not a JSON object"))?
            }
            arguments => arguments.unwrap_or_else(Json::null),
        };
        let of = |json: &Json, key| given(json, key).unwrap_or_else(Json::null);
        let function = object([("name", of(&function, "name")), ("arguments", arguments)])?;
        let entries =
            [("id", of(call, "id")), ("index", of(call, "index")), ("type", "function".into()), ("function", function)];
        Ok(object(entries)?)
    });
    Ok(Json::list(calls.collect::<Result<Vec<_>, PrepareError>>()?)?)
}

/// The tools that the template gets; `None` if the model must call none.
fn tools(request: &ChatRequest, fields: &EngineFields) -> Result<Option<Vec<Json>>, PrepareError> {
    let Some(tools) = request.tools.as_deref().filter(|tools| !tools.is_empty()) else { return Ok(None) };
    let choice = fields.tool_choice.as_ref().filter(|choice| !choice.is_null());
    let named = choice.and_then(|choice| given(choice, "function")).and_then(|function| given(&function, "name"));
    if choice.is_some_and(|choice| choice.as_str().is_some_and(|choice| !CHOICES.contains(&choice))) {
        return Err(PrepareError::rejected(format!("`tool_choice` is unknown; SGLang has {}", CHOICES.join(", "))));
    }
    if choice.is_some_and(|choice| choice.as_str() == Some("none")) {
        return Ok(None);
    }
    let tools = read_each("tools", tools, tool)?;
    let Some(named) = named else { return Ok(Some(tools)) };
    let is_named =
        |tool: &Json| tool.get("function").and_then(|function| function.get("name")).as_ref() == Some(&named);
    let tools: Vec<Json> = tools.into_iter().filter(is_named).collect();
    if tools.is_empty() {
        return Err(PrepareError::rejected("`tool_choice` names a tool that is not in `tools`"));
    }
    Ok(Some(tools))
}

/// A tool as SGLang's model writes it: the client's order of keys, with `description` and `parameters` even if null.
fn tool(tool: &Json) -> Result<Json, PrepareError> {
    let function = given(tool, "function").and_then(|function| function.entries());
    let function = function.ok_or_else(|| PrepareError::rejected("a tool has no function"))?;
    let find = |key: &str| function.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone());
    if find("name").is_none_or(|name| name.as_str().is_none()) {
        return Err(PrepareError::rejected("the function of a tool has no name"));
    }
    let wrong = || PrepareError::rejected("`strict` or `defer_loading` of a tool is neither true nor false");
    let flag = |flag: Json| truth_of(&flag).map(Json::from).ok_or_else(wrong);
    let deferred = given(tool, "defer_loading").map(flag).transpose()?;
    let parameters = with_known_types(&find("parameters").unwrap_or_else(Json::null))?;
    let known = ["description", "name", "parameters", "strict", "defer_loading"];
    let missing = known.iter().filter(|key| !function.iter().any(|(name, _)| name == *key));
    let keys = function.iter().map(|(name, _)| name.as_str()).filter(|name| known.contains(name));
    let mut entries = Entries::new();
    for key in keys.chain(missing.copied()) {
        let value = find(key).filter(|value| !value.is_null());
        let value = match key {
            "strict" => value.map(flag).transpose()?,
            "defer_loading" => value.map(flag).transpose()?.or_else(|| deferred.clone()),
            "parameters" => Some(parameters.clone()),
            _ => Some(value.unwrap_or_else(Json::null)),
        };
        entries.extend(value.map(|value| (key.to_owned(), value)));
    }
    let function = object(entries)?;
    let kind = given(tool, "type").unwrap_or_else(|| "function".into());
    let deferred = deferred.unwrap_or_else(Json::null);
    Ok(object([("type", kind), ("function", function), ("defer_loading", deferred)])?)
}

/// The template's further variables.
fn template_kwargs(
    request: &ChatRequest,
    fields: &EngineFields,
    has_low_effort: bool,
) -> Result<Entries, PrepareError> {
    let mut kwargs = variables_of(request)?;
    let (effort, reasons) = effort_of(fields)?;
    if let Some(reasons) = reasons {
        for key in ["thinking", "enable_thinking"] {
            if !kwargs.iter().any(|(name, _)| name == key) {
                kwargs.push((key.to_owned(), reasons.into()));
            }
        }
    }
    let of_kwargs = kwargs.iter().position(|(name, _)| name == "reasoning_effort").map(|at| kwargs.remove(at).1);
    let effort = of_kwargs.filter(|effort| !effort.is_null()).or(effort);
    if has_low_effort && effort.as_ref().and_then(Json::as_str) == Some("low") {
        kwargs.push(("low_effort".to_owned(), true.into()));
    }
    if let Some(effort) = effort {
        kwargs.push(("reasoning_effort".to_owned(), effort));
    }
    Ok(kwargs)
}

/// Checks that no variable has the name of an argument with which SGLang calls the template.
fn check_arguments(prepared: &PreparedChat) -> Result<(), PrepareError> {
    let kwargs = prepared.request.chat_template_kwargs.as_ref();
    let is_given = |name: &&&str| kwargs.is_some_and(|kwargs| kwargs.get(name).is_some());
    match ["add_generation_prompt", "tools", "tokenize", "return_dict"].iter().find(is_given) {
        Some(name) => {
            Err(PrepareError::rejected(format!("`{name}` cannot be in `chat_template_kwargs` of a chat for SGLang")))
        }
        None => Ok(()),
    }
}

/// The effort of reasoning, and whether it enables reasoning.
fn effort_of(fields: &EngineFields) -> Result<(Option<Json>, Option<bool>), PrepareError> {
    let reasoning = fields.reasoning.as_ref().filter(|reasoning| reasoning.entries().is_some());
    let of_reasoning = reasoning.and_then(|it| given(it, "effort").or_else(|| given(it, "reasoning_effort")));
    let effort = of_reasoning.or_else(|| fields.reasoning_effort.clone()).filter(|effort| !effort.is_null());
    if effort.as_ref().is_some_and(|effort| effort.as_bool().is_some()) {
        return Err(PrepareError::rejected("reasoning_effort is true or false; name an effort"));
    }
    if let Some(text) = effort.as_ref().and_then(Json::as_str)
        && !EFFORTS.contains(&text)
    {
        let message = format!("reasoning_effort {text:?} is unknown; SGLang has {}", EFFORTS.join(", "));
        return Err(PrepareError::rejected(message));
    }
    let enabled = reasoning.and_then(|it| given(it, "enabled").or_else(|| given(it, "enable")));
    let enabled = enabled.is_some_and(|enabled| match enabled.as_str() {
        Some(text) => matches!(text.trim().to_lowercase().as_str(), "1" | "true" | "yes" | "y" | "on"),
        None => enabled.as_bool() == Some(true),
    });
    let reasons = effort.as_ref().map(|effort| effort.as_str() != Some("none")).or(enabled.then_some(true));
    Ok((effort, reasons))
}

/// Removes an assistant's last message to continue it, or turns it into a user's message.
fn take_last_answer(messages: &mut Vec<Json>, continues: bool) -> Result<Option<String>, PrepareError> {
    let answer = messages.last().filter(|last| has_role(last, "assistant"));
    let Some(text) = answer.and_then(|answer| text_of(answer, "content")) else { return Ok(None) };
    messages.pop();
    if continues {
        return Ok(Some(text));
    }
    messages.push(object([("role", "user".into()), ("content", text.into())])?);
    Ok(None)
}
