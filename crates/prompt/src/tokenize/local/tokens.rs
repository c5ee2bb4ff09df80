//! Tokens as the configuration of a tokenizer writes them.

use serde::Deserialize;
use tokenizers::AddedToken;

pub(super) const NAMED_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// A token as an object.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct ConfiguredToken {
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    normalized: Option<bool>,
    #[serde(default)]
    special: bool,
}

impl From<ConfiguredToken> for AddedToken {
    fn from(token: ConfiguredToken) -> Self {
        Self {
            content: token.content,
            single_word: token.single_word,
            lstrip: token.lstrip,
            rstrip: token.rstrip,
            normalized: token.normalized.unwrap_or(!token.special),
            special: token.special,
        }
    }
}
