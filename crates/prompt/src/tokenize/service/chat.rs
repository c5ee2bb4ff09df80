//! Conversion of a chat request to the service's message.

use std::collections::BTreeMap;

use chat_template::{ChatError, ChatRequest, Continuation, Json, check_rendered};
use flash_indexer_proto::tokenization::{ChatMessage, ContentPart, ImageUrl, RenderChatCompletionRequest};
use serde::Deserialize;

/// A chat message, split into the fields that the service has and the others.
#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    role: String,
    #[serde(default)]
    content: Option<Content>,
    #[serde(flatten)]
    other: BTreeMap<String, Json>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
struct Part {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    image_url: Option<Image>,
    #[serde(flatten)]
    other: BTreeMap<String, Json>,
}

#[derive(Deserialize)]
struct Image {
    url: String,
}

/// Builds the request of `RenderChatCompletion`.
pub(super) fn to_message(model: &str, request: &ChatRequest) -> Result<RenderChatCompletionRequest, ChatError> {
    let continue_final_message = match &request.continue_final_message {
        Continuation::Nothing => false,
        Continuation::Content => true,
        Continuation::Field(field) => {
            let why = format!("the tokenizer service continues the content of a message, not its {field:?}");
            return Err(ChatError::Request(why));
        }
    };
    let kwargs = request.chat_template_kwargs.iter();
    let lists = [Some(&request.messages), request.tools.as_ref(), request.documents.as_ref()];
    for value in lists.into_iter().flatten().flatten().chain(kwargs) {
        check_rendered(&value.to_text())?;
    }
    let messages: Result<_, _> = request.messages.iter().map(chat_message).collect();
    Ok(RenderChatCompletionRequest {
        model_name: model.to_owned(),
        messages: messages?,
        tools_json: request.tools.as_deref().map(list),
        chat_template: request.chat_template.clone(),
        add_generation_prompt: request.add_generation_prompt.unwrap_or(!continue_final_message),
        continue_final_message,
        chat_template_kwargs: template_kwargs(request)?,
    })
}

/// The template variables of the request as JSON, with its documents unless a variable has that name.
fn template_kwargs(request: &ChatRequest) -> Result<Option<String>, ChatError> {
    let variables: BTreeMap<String, Json> = match &request.chat_template_kwargs {
        Some(kwargs) if !kwargs.is_null() => read(kwargs, "chat_template_kwargs")?,
        _ => BTreeMap::new(),
    };
    let mut texts = texts(&variables);
    if let Some(documents) = &request.documents {
        texts.entry("documents").or_insert_with(|| list(documents));
    }
    Ok(object(&texts))
}

fn chat_message(message: &Json) -> Result<ChatMessage, ChatError> {
    let Message { role, content, other } = read(message, "a message")?;
    let (content, content_parts) = match content {
        None => (None, Vec::new()),
        Some(Content::Text(text)) => (Some(text), Vec::new()),
        Some(Content::Parts(parts)) => (None, parts.into_iter().map(content_part).collect()),
    };
    Ok(ChatMessage { role, content, content_parts, other_json: object(&texts(&other)) })
}

fn content_part(part: Part) -> ContentPart {
    ContentPart {
        r#type: part.kind,
        text: part.text,
        image_url: part.image_url.map(|image| ImageUrl { url: image.url }),
        other_json: object(&texts(&part.other)),
    }
}

/// The JSON texts of values, by their names.
fn texts(values: &BTreeMap<String, Json>) -> BTreeMap<&str, String> {
    values.iter().map(|(name, value)| (name.as_str(), value.to_text())).collect()
}

/// Deserializes a value. Parts of type [`Json`] keep the order of their keys.
fn read<T: for<'de> Deserialize<'de>>(value: &Json, what: &str) -> Result<T, ChatError> {
    serde_json::from_str(&value.to_text())
        .map_err(|error| ChatError::Request(format!("{what} cannot be sent to the tokenizer service: {error}")))
}

fn list(values: &[Json]) -> String {
    let texts: Vec<String> = values.iter().map(Json::to_text).collect();
    format!("[{}]", texts.join(","))
}

/// The object with these JSON texts. `None` if there are none.
fn object(texts: &BTreeMap<&str, String>) -> Option<String> {
    let pairs: Vec<String> = texts.iter().map(|(name, text)| format!("{}:{text}", serde_json::json!(name))).collect();
    (!pairs.is_empty()).then(|| format!("{{{}}}", pairs.join(",")))
}
