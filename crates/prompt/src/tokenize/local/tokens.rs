//! Tokens that the files of a model add to its tokenizer, as `transformers` does when it loads one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};
use tokenizers::{AddedToken, Result as LibraryResult, Tokenizer};

use super::classes::TokenizerClass;
use super::files::{TOKENIZER_CONFIG_FILE, read_object};
use crate::tokenize::prompt::Transformers;

const NAMED_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

const EXTRA_TOKENS: &str = "extra_special_tokens";
const ADDITIONAL_TOKENS: &str = "additional_special_tokens";

/// The configuration of a tokenizer, and the tokens that it adds to the vocabulary.
pub(super) struct Tokens {
    pub(super) config: Map<String, Value>,
    /// Tokens with ids, in the order of their ids.
    numbered: Vec<AddedToken>,
    /// The special tokens with names, of the configuration or of the class.
    named: Vec<(String, AddedToken)>,
    /// Further special tokens.
    extra: Vec<AddedToken>,
}

impl Tokens {
    pub(super) fn read(
        file: &Tokenizer,
        directory: &Path,
        class: (Option<TokenizerClass>, Transformers),
    ) -> Result<Self, String> {
        let mut config = read_object(&directory.join(TOKENIZER_CONFIG_FILE))?;
        let is_given = |value: Option<&Value>| match value {
            Some(Value::Array(tokens)) => !tokens.is_empty(),
            Some(Value::Object(tokens)) => !tokens.is_empty(),
            _ => false,
        };
        if !is_given(config.get(EXTRA_TOKENS))
            && let Some(additional) = config.remove(ADDITIONAL_TOKENS)
        {
            config.insert(EXTRA_TOKENS.to_owned(), additional);
        }
        let numbered = match config.get("added_tokens_decoder") {
            Some(Value::Object(listed)) => {
                let token = |(id, token): (&String, &Value)| {
                    let id: u32 = id.parse().map_err(|_| format!("{id:?} is not a token id"))?;
                    let token = ConfiguredToken::deserialize(token).map_err(|error| error.to_string())?;
                    Ok((id, token.into()))
                };
                let tokens: Result<BTreeMap<u32, AddedToken>, String> = listed.iter().map(token).collect();
                let path = directory.join(TOKENIZER_CONFIG_FILE);
                tokens.map_err(|why| format!("{}: added_tokens_decoder: {why}", path.display()))?
            }
            _ => {
                read_special_tokens_map(directory, &mut config)?;
                older_tokens(file, directory, &config)?
            }
        };
        let named = named_tokens(&config, class);
        let extra = match config.get(EXTRA_TOKENS) {
            None | Some(Value::Object(_)) => config.get(ADDITIONAL_TOKENS),
            listed => listed,
        };
        let extra = extra.and_then(Value::as_array).into_iter().flatten().filter_map(added_token);
        let own = class.0.filter(|_| class.1 == Transformers::Four).map_or(&[] as &[_], TokenizerClass::own_tokens);
        let own = own.iter().filter(|(name, _)| *name != "fill_token").filter_map(|(name, default)| {
            config.get(*name).map_or_else(|| Some(AddedToken::from((*default).to_owned(), true)), added_token)
        });
        let extra = extra.chain(own).collect();
        Ok(Self { numbered: numbered.into_values().collect(), named, extra, config })
    }

    pub(super) fn name(&self, name: &str) -> Option<String> {
        self.named.iter().find(|(known, _)| known == name).map(|(_, token)| token.content.clone())
    }

    /// The special tokens: the named ones, then the additional ones.
    pub(super) fn special(&self) -> impl Iterator<Item = &AddedToken> {
        self.named.iter().map(|(_, token)| token).chain(&self.extra)
    }

    /// Adds the tokens that a tokenizer lacks or has with other flags, and sets whether special tokens in texts are text.
    pub(super) fn add_to(&self, tokenizer: &mut Tokenizer) -> LibraryResult<()> {
        let known: Vec<AddedToken> = tokenizer.get_added_tokens_decoder().into_values().collect();
        let mut added: Vec<AddedToken> = self.numbered.iter().filter(|token| !known.contains(token)).cloned().collect();
        let contents: BTreeSet<String> = known.iter().chain(&added).map(|token| token.content.clone()).collect();
        for token in self.special() {
            if !contents.contains(&token.content) && !added.contains(token) {
                added.push(token.clone());
            }
        }
        for token in &mut added {
            token.special |= self.named.iter().any(|(_, named)| named.content == token.content);
        }
        tokenizer.add_tokens(added)?;
        tokenizer.set_encode_special_tokens(self.config.get("split_special_tokens") == Some(&Value::Bool(true)));
        Ok(())
    }
}

/// Merges the tokens of `special_tokens_map.json` into a configuration, where they replace tokens of the same names.
fn read_special_tokens_map(directory: &Path, config: &mut Map<String, Value>) -> Result<(), String> {
    for (name, value) in read_object(&directory.join("special_tokens_map.json"))? {
        let value = match (value, config.get(&name)) {
            (Value::Array(more), Some(Value::Array(given))) if name == EXTRA_TOKENS => {
                let mut all = given.clone();
                all.extend(more.into_iter().filter(|token| !given.contains(token)));
                Value::Array(all)
            }
            (Value::Object(mut token), _) if name != EXTRA_TOKENS => {
                token.insert("special".to_owned(), true.into());
                Value::Object(token)
            }
            (value, _) => value,
        };
        config.insert(name, value);
    }
    Ok(())
}

/// The tokens with ids of a model without `added_tokens_decoder`: from `added_tokens.json` and the file, which takes precedence.
fn older_tokens(
    file: &Tokenizer,
    directory: &Path,
    config: &Map<String, Value>,
) -> Result<BTreeMap<u32, AddedToken>, String> {
    let is_special = |content: &str| {
        let named = NAMED_TOKENS.iter().filter_map(|name| config.get(*name));
        let listed = config.get(EXTRA_TOKENS).and_then(Value::as_array).into_iter().flatten();
        named.chain(listed).any(|value| value.as_str().or(value["content"].as_str()) == Some(content))
    };
    let mut tokens = BTreeMap::new();
    for (content, id) in read_object(&directory.join("added_tokens.json"))? {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        let special = is_special(&content);
        tokens.extend(id.map(|id| (id, AddedToken::from(content, special))));
    }
    tokens.extend(file.get_added_tokens_decoder());
    Ok(tokens)
}

/// The special tokens with names: first the names that all models have, then this model's, such as `image_token`. Version 4 reads
/// the latter from `extra_special_tokens` only.
fn named_tokens(
    config: &Map<String, Value>,
    (class, transformers): (Option<TokenizerClass>, Transformers),
) -> Vec<(String, AddedToken)> {
    let class = |name: &str| class.filter(|class| transformers == Transformers::Five || class.has_default_in_4(name));
    let default = |name: &str| {
        let (_, token) = class(name)?.default_tokens().iter().find(|(known, _)| *known == name)?;
        Some(AddedToken::from((*token).to_owned(), true))
    };
    let usual = NAMED_TOKENS.iter().filter_map(|name| {
        let token = config.get(*name).map_or_else(|| default(name), added_token)?;
        Some(((*name).to_owned(), token))
    });
    let own_defaults = class("prefix_token").map_or(&[] as &[_], TokenizerClass::own_tokens);
    let is_default = |name: &str| own_defaults.iter().any(|(known, _)| *known == name);
    let own_defaults = own_defaults.iter().map(|(name, default)| {
        let token = config.get(*name).and_then(added_token);
        ((*name).to_owned(), token.unwrap_or_else(|| AddedToken::from((*default).to_owned(), true)))
    });
    let reads_own = |name: &str| transformers == Transformers::Five && name.ends_with("_token");
    let is_own = |name: &str| reads_own(name) && !NAMED_TOKENS.contains(&name) && !is_default(name);
    let own = config.iter().filter(|(name, _)| is_own(name));
    let mapped = config.get(EXTRA_TOKENS).and_then(Value::as_object).into_iter().flatten();
    let own = own.chain(mapped).filter_map(|(name, value)| Some((name.clone(), added_token(value)?)));
    usual.chain(own_defaults).chain(own).collect()
}

/// A token of a configuration: its text, or an object.
fn added_token(value: &Value) -> Option<AddedToken> {
    match value {
        Value::String(content) => Some(AddedToken::from(content.clone(), true)),
        _ => ConfiguredToken::deserialize(value).ok().map(Into::into),
    }
}

/// A token as an object.
#[derive(Debug, Clone, Deserialize)]
struct ConfiguredToken {
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
