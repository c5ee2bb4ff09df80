//! Limits of texts that clients, peers, discovery sources and engines choose, and shortening of such texts in messages.
//!
//! Every input is checked here: HTTP, gRPC, dumps, peers, discovery sources, pods, the shared store and the command line.

use std::borrow::Cow;

/// Longest name of a model, a tenant or an adapter, in bytes.
pub const NAME_BYTES_MAX: usize = flash_indexer_wire::ADAPTER_NAME_BYTES_MAX;
/// Longest instance id, in bytes.
pub const INSTANCE_ID_BYTES_MAX: usize = 256;
/// Longest endpoint of an engine and longest URL of a peer, in bytes.
pub const ENDPOINT_BYTES_MAX: usize = 1_024;
/// Longest cache salt of a request, in bytes. A salt is hashed and not retained.
pub const SALT_BYTES_MAX: usize = 4_096;
/// Longest error or log field that repeats a client's text, in bytes.
pub const TEXT_BYTES_MAX: usize = 1_024;
/// Pattern of a text without control characters, for JSON schemas.
pub const PRINTABLE: &str = r"^[^\u0000-\u001f\u007f-\u009f]*$";

flash_indexer_core::named_enum! {
    /// Field of a text that a client chooses.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    #[allow(missing_docs, reason = "each variant is the field of its name")]
    pub enum NameField {
        ModelName = "model_name",
        TenantId = "tenant_id",
        InstanceId = "instance_id",
        LoraName = "lora_name",
        CacheSalt = "cache_salt",
        Endpoint = "endpoint",
        ReplayEndpoint = "replay_endpoint",
        Source = "source",
        RequestId = "request_id",
        TokenName = "name",
    }
}

impl NameField {
    const fn bytes_max(self) -> usize {
        match self {
            Self::ModelName | Self::TenantId | Self::LoraName | Self::Source | Self::RequestId | Self::TokenName => {
                NAME_BYTES_MAX
            }
            Self::InstanceId => INSTANCE_ID_BYTES_MAX,
            Self::CacheSalt => SALT_BYTES_MAX,
            Self::Endpoint | Self::ReplayEndpoint => ENDPOINT_BYTES_MAX,
        }
    }
}

/// Text that is longer than its field allows, or has a control character. The error does not repeat the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{} {flaw}", .field.as_str())]
pub struct NameError {
    field: NameField,
    flaw: Flaw,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Flaw {
    #[error("has {len} bytes; at most {max} are allowed: give a shorter one")]
    TooLong { len: usize, max: usize },
    #[error("has the control character U+{:04X} at byte {at}: give one without control characters", *.character as u32)]
    ControlCharacter { character: char, at: usize },
}

/// Rejects a text that is longer than its field allows, and a name with a control character, which would break log lines.
/// A salt is hashed and may contain any character.
///
/// # Errors
///
/// Fails if the text is too long, or has a control character.
pub fn check_name(field: NameField, text: &str) -> Result<(), NameError> {
    let invalid = |flaw| Err(NameError { field, flaw });
    if text.len() > field.bytes_max() {
        return invalid(Flaw::TooLong { len: text.len(), max: field.bytes_max() });
    }
    match text.char_indices().find(|(_, character)| character.is_control()) {
        Some((at, character)) if field != NameField::CacheSalt => invalid(Flaw::ControlCharacter { character, at }),
        _ => Ok(()),
    }
}

/// Checks several texts with [`check_name`]. Absent texts are valid.
///
/// # Errors
///
/// Returns the error of the first invalid text.
pub fn check_names<const N: usize>(texts: [(NameField, Option<&str>); N]) -> Result<(), NameError> {
    texts.into_iter().try_for_each(|(field, text)| text.map_or(Ok(()), |text| check_name(field, text)))
}

/// Shortens a text for errors and logs: a text longer than [`TEXT_BYTES_MAX`] keeps its beginning and end.
pub fn shortened(text: &str) -> Cow<'_, str> {
    if text.len() <= TEXT_BYTES_MAX {
        return Cow::Borrowed(text);
    }
    let head = &text[..text.floor_char_boundary(TEXT_BYTES_MAX / 2)];
    let tail = &text[text.ceil_char_boundary(text.len() - TEXT_BYTES_MAX / 4)..];
    Cow::Owned(format!("{head} … ({} bytes left out) … {tail}", text.len() - head.len() - tail.len()))
}

/// [`shortened`] of an owned text.
pub fn shorten(text: String) -> String {
    match shortened(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(short) => short,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_keeps_its_beginning_and_end() {
        let long = format!("begin{}end", "é".repeat(8 << 20));
        let short = shortened(&long);
        assert!(short.starts_with("begin") && short.ends_with("end") && short.len() <= TEXT_BYTES_MAX, "{short}");
        assert_eq!(shortened("as it is"), "as it is");
    }

    #[test]
    fn a_name_error_has_field_limit_and_length_but_not_the_text() {
        assert_eq!(check_name(NameField::ModelName, &"m".repeat(NAME_BYTES_MAX)), Ok(()));
        let error = check_name(NameField::TenantId, &"t".repeat(NAME_BYTES_MAX + 1)).expect_err("too long").to_string();
        assert_eq!(error, "tenant_id has 513 bytes; at most 512 are allowed: give a shorter one");
    }

    #[test]
    fn names_reject_control_characters_and_salts_accept_them() {
        for (text, shown) in [("a\nb", "U+000A at byte 1"), ("\0", "U+0000 at byte 0"), ("é\u{85}", "U+0085 at byte 2")]
        {
            for field in [NameField::ModelName, NameField::TenantId, NameField::InstanceId, NameField::LoraName] {
                let error = check_name(field, text).expect_err(text).to_string();
                assert!(error.starts_with(field.as_str()) && error.contains(shown), "{error}");
                assert!(error.contains("give one without control characters"), "{error}");
            }
            assert_eq!(check_name(NameField::CacheSalt, text), Ok(()));
        }
        assert_eq!(check_name(NameField::ModelName, "org/model é \"7\" \\"), Ok(()));
    }
}
