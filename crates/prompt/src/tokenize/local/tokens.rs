//! Tokens that `tokenizer_config.json` adds to a tokenizer, as `transformers` does when it loads one.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::{AddedToken, Tokenizer};

use super::files::{TOKENIZER_CONFIG_FILE, read_if_present};

pub(super) const NAMED_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
const TOKEN_LISTS: [&str; 2] = ["additional_special_tokens", "extra_special_tokens"];

/// The tokens in `tokenizer_config.json`.
#[derive(Debug, Default, Deserialize)]
struct TokenizerConfig {
    #[serde(default)]
    added_tokens_decoder: BTreeMap<String, ConfiguredToken>,
    #[serde(flatten)]
    other: BTreeMap<String, Value>,
}

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

/// Adds the tokens of `tokenizer_config.json` that are not added tokens of the tokenizer yet.
pub(super) fn add_configured_tokens(tokenizer: &mut Tokenizer, directory: &Path) -> Result<(), String> {
    let path = directory.join(TOKENIZER_CONFIG_FILE);
    let Some(bytes) = read_if_present(&path)? else { return Ok(()) };
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let config: TokenizerConfig = serde_json::from_slice(&bytes).map_err(|error| failed(&error))?;

    let mut numbered: Vec<(u32, AddedToken)> = Vec::new();
    for (id, token) in config.added_tokens_decoder {
        let id = id.parse().map_err(|_| failed(&format!("added_tokens_decoder: {id:?} is not a token id")))?;
        numbered.push((id, token.into()));
    }
    numbered.sort_by_key(|(id, _)| *id);
    tokenizer.add_tokens(numbered.into_iter().map(|(_, token)| token)).map_err(|error| failed(&error))?;

    let named = NAMED_TOKENS.iter().filter_map(|name| config.other.get(*name));
    let listed = TOKEN_LISTS.iter().filter_map(|name| config.other.get(*name)?.as_array()).flatten();
    let known = tokenizer.get_added_tokens_decoder();
    let missing: Vec<AddedToken> = named
        .chain(listed)
        .filter_map(special_token)
        .filter(|token| !known.values().any(|known| known.content == token.content))
        .collect();
    tokenizer.add_special_tokens(missing).map_err(|error| failed(&error))?;
    Ok(())
}

fn special_token(value: &Value) -> Option<AddedToken> {
    match value {
        Value::String(content) => Some(AddedToken::from(content.clone(), true)),
        Value::Object(_) => {
            let token = ConfiguredToken::deserialize(value).ok()?;
            Some(ConfiguredToken { special: true, ..token }.into())
        }
        _ => None,
    }
}
