//! Reading and building messages.

use chat_template::{ChatError, Json};

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
        let role = json.get("role").and_then(|role| role.as_str().map(str::to_owned));
        let role =
            role.ok_or_else(|| PrepareError::rejected("a message has no `role`; write {\"role\": …, \"content\": …}"))?;
        Ok(Self { json, role })
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

/// The items of a list.
pub(super) fn items(json: &Json) -> Option<Vec<Json>> {
    json.as_list().map(Iterator::collect)
}

/// An object of these entries.
pub(super) fn object(entries: impl IntoIterator<Item = (impl Into<String>, Json)>) -> Result<Json, ChatError> {
    Json::object(entries.into_iter().map(|(key, value)| (key.into(), value)))
}

/// A part with a text.
pub(super) fn text_part(text: Json) -> Result<Json, ChatError> {
    object([("type", "text".into()), ("text", text)])
}
