//! Reading and building messages.

use chat_template::{ChatError, ChatRequest, Json};

use super::error::PrepareError;

/// The keys and values of an object, in their order.
pub(super) type Entries = Vec<(String, Json)>;

/// A message of a request.
pub(super) struct Message<'j> {
    pub(super) json: &'j Json,
    pub(super) role: String,
}

impl<'j> Message<'j> {
    /// Reads a message, which needs a role.
    pub(super) fn of(json: &'j Json) -> Result<Self, PrepareError> {
        let wrong = || PrepareError::rejected("a message has no `role`; write {\"role\": …, \"content\": …}");
        Ok(Self { json, role: text_of(json, "role").ok_or_else(wrong)? })
    }

    /// The value of a key, unless it is missing or null.
    pub(super) fn get(&self, key: &str) -> Option<Json> {
        given(self.json, key)
    }
}

/// The value of a key, unless it is missing or null.
pub(super) fn given(json: &Json, key: &str) -> Option<Json> {
    json.get(key).filter(|value| !value.is_null())
}

/// The text of a key, if it has one.
pub(super) fn text_of(json: &Json, key: &str) -> Option<String> {
    json.get(key).and_then(|value| value.as_str().map(str::to_owned))
}

/// Whether a message has a role.
pub(super) fn has_role(message: &Json, role: &str) -> bool {
    message.get("role").is_some_and(|of| of.as_str() == Some(role))
}

/// The items of a list.
pub(super) fn items(json: &Json) -> Option<Vec<Json>> {
    json.as_list().map(Iterator::collect)
}

/// An object of these entries.
pub(super) fn object(entries: impl IntoIterator<Item = (impl Into<String>, Json)>) -> Result<Json, ChatError> {
    Json::object(entries.into_iter().map(|(key, value)| (key.into(), value)))
}

/// An object with another value of one of its keys.
pub(super) fn replaced(json: &Json, key: &str, value: &Json) -> Result<Json, ChatError> {
    let entries = json.entries().unwrap_or_default().into_iter();
    object(entries.map(|(name, old)| if name == key { (name, value.clone()) } else { (name, old) }))
}

/// The further variables of a request's template.
pub(super) fn variables_of(request: &ChatRequest) -> Result<Entries, PrepareError> {
    let variables = request.chat_template_kwargs.as_ref().filter(|variables| !variables.is_null());
    let wrong = || PrepareError::rejected("`chat_template_kwargs` is not an object");
    variables.map_or_else(|| Ok(Entries::new()), |variables| variables.entries().ok_or_else(wrong))
}

/// A part with a text.
pub(super) fn text_part(text: Json) -> Result<Json, ChatError> {
    object([("type", "text".into()), ("text", text)])
}
