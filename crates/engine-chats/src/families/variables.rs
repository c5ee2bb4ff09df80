//! Variables of a chat's template, which encoders read as well.

use chat_template::Json;

use crate::chat::PreparedChat;
use crate::error::PrepareError;
use crate::message::items;

/// The value of a variable.
pub(super) fn variable(prepared: &PreparedChat, name: &str) -> Option<Json> {
    prepared.request.chat_template_kwargs.as_ref().and_then(|variables| variables.get(name))
}

/// The tools of a chat. A variable replaces those of the request.
pub(super) fn tools_of(prepared: &PreparedChat) -> Result<Vec<Json>, PrepareError> {
    match variable(prepared, "tools") {
        Some(tools) if !tools.is_true() => Ok(Vec::new()),
        Some(tools) => items(&tools).ok_or_else(|| PrepareError::rejected("the variable `tools` is not a list")),
        None => Ok(prepared.request.tools.clone().unwrap_or_default()),
    }
}
