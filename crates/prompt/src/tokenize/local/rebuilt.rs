//! Tokenizers as classes of `transformers` make them: those of version 5 build them from the vocabulary of a `tokenizer.json`, and
//! those of version 4 change its pipeline.

use std::collections::BTreeMap;
use std::mem::discriminant;
use std::path::Path;

use flash_indexer_engine_chats::ChatEngine;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::replace::ReplacePattern;
use tokenizers::normalizers::{NFC, NormalizerWrapper, Replace};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::PostProcessorWrapper;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{AddedToken, Result as LibraryResult, Tokenizer};

use super::classes::TokenizerClass;
use super::files::{TOKENIZER_CONFIG_FILE, read_if_present};
use super::tokens::{ConfiguredToken, NAMED_TOKENS};
use crate::tokenize::prompt::Transformers;

const QWEN_2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_3_5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Classes to whose texts SGLang adds the token that begins a sequence, unless `add_bos_token` is false.
const CLASSES_WITH_BEGIN: [&str; 5] =
    ["LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizer", "GemmaTokenizerFast", "CohereTokenizerFast"];

/// The tokenizer of an engine with `transformers` 5, if it is another one than that of the file. `file` is what the library makes of
/// `tokenizer.json`.
pub(super) fn rebuilt(file: &Tokenizer, directory: &Path, engine: ChatEngine) -> Result<Option<Tokenizer>, String> {
    let config = read_object(&directory.join(TOKENIZER_CONFIG_FILE))?;
    let model_config = Value::Object(read_object(&directory.join("config.json"))?);
    let config = Value::Object(config);
    let Some(class) = TokenizerClass::chosen(engine, &config, &model_config) else { return Ok(None) };
    let Value::Object(config) = config else { return Ok(None) };
    // The class of another model than BPE is not followed.
    let ModelWrapper::BPE(_) = file.get_model() else { return Ok(None) };
    let tokens = Tokens::read(file, directory, config, (Some(class), Transformers::Five))?;
    let failed = |error: tokenizers::Error| format!("{}: {error}", directory.display());
    build(file, &tokens, class, engine).map(Some).map_err(failed)
}

fn build(file: &Tokenizer, tokens: &Tokens, class: TokenizerClass, engine: ChatEngine) -> LibraryResult<Tokenizer> {
    let ModelWrapper::BPE(model) = file.get_model() else { return Ok(file.clone()) };
    let mut model = model.clone();
    let has_bytes = matches!(class, TokenizerClass::Llama | TokenizerClass::Gemma);
    model.dropout = None;
    model.unk_token = tokens.name("unk_token").filter(|_| class == TokenizerClass::Gemma);
    model.fuse_unk = has_bytes;
    model.byte_fallback = has_bytes;
    model.ignore_merges = false;
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_normalizer(normalizer(class)?)?;
    let pre_tokenizer = pre_tokenizer(class, &tokens.config)?;
    let of_file = file.get_pre_tokenizer().filter(|_| engine == ChatEngine::Sglang);
    let restored = of_file.filter(|of_file| discriminant(*of_file) != discriminant(&pre_tokenizer)).cloned();
    tokenizer.with_pre_tokenizer(Some(restored.unwrap_or(pre_tokenizer)));
    tokenizer.add_tokens(tokens.added.iter().cloned())?;
    let adds_begin = engine == ChatEngine::Sglang
        && tokens
            .config
            .get("tokenizer_class")
            .and_then(Value::as_str)
            .is_some_and(|c| CLASSES_WITH_BEGIN.contains(&c))
        && tokens.config.get("add_bos_token").and_then(Value::as_bool) != Some(false);
    let post_processor = match tokens.name("bos_token").filter(|_| adds_begin) {
        Some(begin) => begin_processor(&begin, tokenizer.token_to_id(&begin))?,
        None if adds_begin || class == TokenizerClass::GptNeoX => None,
        None => file.get_post_processor().cloned(),
    };
    tokenizer.with_post_processor(post_processor);
    Ok(tokenizer)
}

/// The tokenizer of an engine with `transformers` 4, from that of the file with its configured tokens.
pub(super) fn adjusted(file: &Tokenizer, directory: &Path) -> Result<Tokenizer, String> {
    let config = Value::Object(read_object(&directory.join(TOKENIZER_CONFIG_FILE))?);
    let model_config = Value::Object(read_object(&directory.join("config.json"))?);
    let class = TokenizerClass::declared(&config, &model_config);
    let Value::Object(config) = config else { return Ok(file.clone()) };
    let tokens = Tokens::read(file, directory, config, (class, Transformers::Four))?;
    let failed = |error: tokenizers::Error| format!("{}: {error}", directory.display());
    adjust(file, &tokens, class).map_err(failed)
}

/// The special tokens that a template gets although no file of the model names them: the defaults of the tokenizer's class.
pub(super) fn default_tokens(directory: &Path) -> Result<Vec<(&'static str, &'static str)>, String> {
    let config = Value::Object(read_object(&directory.join(TOKENIZER_CONFIG_FILE))?);
    let model_config = Value::Object(read_object(&directory.join("config.json"))?);
    let Some(class) = TokenizerClass::declared(&config, &model_config) else { return Ok(Vec::new()) };
    // A null means that there is none.
    let is_unnamed = |(name, _): &(&str, &str)| config.get(*name).is_none();
    Ok(class.default_tokens().iter().copied().filter(is_unnamed).collect())
}

fn adjust(file: &Tokenizer, tokens: &Tokens, class: Option<TokenizerClass>) -> LibraryResult<Tokenizer> {
    let mut tokenizer = file.clone();
    let set = |name: &str| tokens.config.get(name).and_then(Value::as_bool);
    // Classes that pass on no value leave the pre-tokenizer of the file.
    let adds_space = match class {
        Some(TokenizerClass::Llama) => set("add_prefix_space"),
        _ => Some(set("add_prefix_space").unwrap_or(false)),
    };
    match (tokenizer.get_pre_tokenizer().cloned(), adds_space) {
        (Some(PreTokenizerWrapper::ByteLevel(bytes)), Some(adds_space)) => {
            tokenizer.with_pre_tokenizer(Some(ByteLevel::new(adds_space, bytes.trim_offsets, bytes.use_regex)));
        }
        (Some(PreTokenizerWrapper::Sequence(sequence)), Some(true)) if class == Some(TokenizerClass::Cohere) => {
            let part = |part: &PreTokenizerWrapper| match part {
                PreTokenizerWrapper::ByteLevel(bytes) => {
                    ByteLevel::new(true, bytes.trim_offsets, bytes.use_regex).into()
                }
                other => other.clone(),
            };
            let parts = sequence.as_ref().iter().map(part).collect();
            tokenizer.with_pre_tokenizer(Some(Sequence::new(parts)));
        }
        _ => {}
    }
    let known = tokenizer.get_added_tokens_decoder();
    let missing = |token: &&AddedToken| !known.values().any(|known| known.content == token.content);
    let missing: Vec<_> = tokens.added.iter().filter(missing).cloned().collect();
    tokenizer.add_tokens(missing)?;
    let Some(begins_by_default) = class.and_then(TokenizerClass::begins_by_default) else { return Ok(tokenizer) };
    let token = |name: &str| {
        let content = tokens.name(name)?;
        let id = tokenizer.token_to_id(&content)?;
        Some((content, id))
    };
    let begin = token("bos_token").filter(|_| set("add_bos_token").unwrap_or(begins_by_default));
    let end = token("eos_token").filter(|_| set("add_eos_token").unwrap_or(false));
    let piece = |token: &Option<(String, u32)>| token.as_ref().map(|(content, _)| format!("{content}:0"));
    let pieces: Vec<String> = piece(&begin).into_iter().chain(["$A:0".to_owned()]).chain(piece(&end)).collect();
    let template = TemplateProcessing::builder()
        .try_single(pieces)?
        .special_tokens(begin.into_iter().chain(end).collect::<Vec<_>>())
        .build()?;
    tokenizer.with_post_processor(Some(template));
    Ok(tokenizer)
}

fn begin_processor(begin: &str, id: Option<u32>) -> LibraryResult<Option<PostProcessorWrapper>> {
    let Some(id) = id else { return Ok(None) };
    let template = TemplateProcessing::builder()
        .try_single(vec![format!("{begin}:0"), "$A:0".to_owned()])?
        .special_tokens(vec![(begin.to_owned(), id)])
        .build()?;
    Ok(Some(template.into()))
}

fn normalizer(class: TokenizerClass) -> LibraryResult<Option<NormalizerWrapper>> {
    use TokenizerClass::{CodeGen, Cohere, Gemma, Gpt2, GptNeoX, Llama, Qwen2, Qwen35};
    Ok(match class {
        Llama | Gpt2 | CodeGen => None,
        GptNeoX | Qwen2 | Qwen35 | Cohere => Some(NFC.into()),
        Gemma => Some(Replace::new(ReplacePattern::String(" ".to_owned()), "▁")?.into()),
    })
}

fn pre_tokenizer(class: TokenizerClass, config: &Map<String, Value>) -> LibraryResult<PreTokenizerWrapper> {
    let set = |name: &str| config.get(name).and_then(Value::as_bool);
    let adds_space = set("add_prefix_space");
    let has_space = adds_space.unwrap_or(false);
    let trims = set("trim_offsets").unwrap_or(true);
    let words_of = |pattern: &str| {
        let words = Split::new(SplitPattern::Regex(pattern.to_owned()), SplitDelimiterBehavior::Isolated, false)?;
        Ok::<_, tokenizers::Error>(Sequence::new(vec![words.into(), ByteLevel::new(has_space, true, false).into()]))
    };
    Ok(match class {
        TokenizerClass::Llama => {
            let scheme = match (adds_space, set("legacy")) {
                (Some(false), _) => PrependScheme::Never,
                (_, Some(true)) => PrependScheme::Always,
                _ => PrependScheme::First,
            };
            Metaspace::new('▁', scheme, false).into()
        }
        TokenizerClass::Gpt2 | TokenizerClass::CodeGen => ByteLevel::new(has_space, true, true).into(),
        TokenizerClass::GptNeoX => ByteLevel::new(has_space, trims, true).into(),
        TokenizerClass::Qwen2 => words_of(QWEN_2)?.into(),
        TokenizerClass::Qwen35 => words_of(QWEN_3_5)?.into(),
        TokenizerClass::Gemma => {
            let space = SplitPattern::String(" ".to_owned());
            Split::new(space, SplitDelimiterBehavior::MergedWithPrevious, false)?.into()
        }
        TokenizerClass::Cohere => {
            Sequence::new(vec![Digits::new(true).into(), ByteLevel::new(has_space, true, true).into()]).into()
        }
    })
}

/// The configuration of a tokenizer, and the tokens that a class adds to the vocabulary.
struct Tokens {
    config: Map<String, Value>,
    /// The special tokens with names, of the configuration or of the class.
    named: Vec<(String, AddedToken)>,
    /// In the order in which they get ids.
    added: Vec<AddedToken>,
}

impl Tokens {
    fn read(
        file: &Tokenizer,
        directory: &Path,
        mut config: Map<String, Value>,
        class: (Option<TokenizerClass>, Transformers),
    ) -> Result<Self, String> {
        let mut added: BTreeMap<u32, AddedToken> = BTreeMap::new();
        let of_map = |value: &Value| ConfiguredToken::deserialize(value).ok();
        if let Some(listed) = config.get("added_tokens_decoder").and_then(Value::as_object) {
            let tokens = listed.iter().filter_map(|(id, token)| Some((id.parse().ok()?, of_map(token)?.into())));
            added.extend(tokens);
        } else {
            for (name, value) in read_object(&directory.join("special_tokens_map.json"))? {
                let value = match value {
                    Value::Object(mut token) => {
                        token.insert("special".to_owned(), true.into());
                        Value::Object(token)
                    }
                    other => other,
                };
                config.insert(name, value);
            }
            let is_special = |content: &str| {
                let named = NAMED_TOKENS.iter().filter_map(|name| config.get(*name));
                let listed = config.get("extra_special_tokens").and_then(Value::as_array).into_iter().flatten();
                named.chain(listed).any(|value| value.as_str().or(value["content"].as_str()) == Some(content))
            };
            for (content, id) in read_object(&directory.join("added_tokens.json"))? {
                let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
                let special = is_special(&content);
                added.extend(id.map(|id| (id, AddedToken::from(content, special))));
            }
            added.extend(file.get_added_tokens_decoder());
        }
        let named = named_tokens(&config, class);
        let listed = |name: &str| config.get(name).and_then(Value::as_array).filter(|tokens| !tokens.is_empty());
        let extra = listed("extra_special_tokens").or_else(|| listed("additional_special_tokens"));
        let extra = extra.into_iter().flatten().filter_map(added_token);
        let mut all: Vec<AddedToken> = Vec::new();
        for mut token in added.into_values().chain(named.iter().map(|(_, token)| token.clone())).chain(extra) {
            token.special |= named.iter().any(|(_, named)| named.content == token.content);
            if !all.iter().any(|known| known.content == token.content) {
                all.push(token);
            }
        }
        Ok(Self { config, named, added: all })
    }

    fn name(&self, name: &str) -> Option<String> {
        self.named.iter().find(|(known, _)| known == name).map(|(_, token)| token.content.clone())
    }
}

/// The special tokens with names: those of all models, and then those of this one, such as `image_token`, which version 4 reads from
/// `extra_special_tokens` only.
fn named_tokens(
    config: &Map<String, Value>,
    (class, transformers): (Option<TokenizerClass>, Transformers),
) -> Vec<(String, AddedToken)> {
    let default = |name: &str| {
        let class = class.filter(|class| transformers == Transformers::Five || class.has_default_in_4(name))?;
        let (_, token) = class.default_tokens().iter().find(|(known, _)| *known == name)?;
        Some(AddedToken::from((*token).to_owned(), true))
    };
    let usual = NAMED_TOKENS.iter().filter_map(|name| {
        let token = config.get(*name).map_or_else(|| default(name), added_token)?;
        Some(((*name).to_owned(), token))
    });
    let reads_own = |name: &str| transformers == Transformers::Five && name.ends_with("_token");
    let own = config.iter().filter(|(name, _)| reads_own(name) && !NAMED_TOKENS.contains(&name.as_str()));
    let mapped = config.get("extra_special_tokens").and_then(Value::as_object).into_iter().flatten();
    let own = own.chain(mapped).filter_map(|(name, value)| Some((name.clone(), added_token(value)?)));
    usual.chain(own).collect()
}

/// A token of a configuration: its text, or an object.
fn added_token(value: &Value) -> Option<AddedToken> {
    match value {
        Value::String(content) => Some(AddedToken::from(content.clone(), true)),
        _ => ConfiguredToken::deserialize(value).ok().map(Into::into),
    }
}

/// Reads a JSON object. It is empty if the file does not exist.
fn read_object(path: &Path) -> Result<Map<String, Value>, String> {
    let Some(bytes) = read_if_present(path)? else { return Ok(Map::new()) };
    serde_json::from_slice(&bytes).map_err(|error| format!("{}: {error}", path.display()))
}

/// Whether two tokenizers have the same pipeline and the same added tokens. Their vocabularies are the same.
pub(super) fn is_same(left: &Tokenizer, right: &Tokenizer) -> bool {
    let model = |tokenizer: &Tokenizer| match tokenizer.get_model() {
        ModelWrapper::BPE(model) => {
            let BPE { dropout, unk_token, fuse_unk, byte_fallback, ignore_merges, .. } = model;
            Some((*dropout, unk_token.clone(), *fuse_unk, *byte_fallback, *ignore_merges))
        }
        _ => None,
    };
    let added = |tokenizer: &Tokenizer| -> BTreeMap<u32, String> {
        let tokens = tokenizer.get_added_tokens_decoder().into_iter();
        tokens.map(|(id, token)| (id, format!("{token:?}"))).collect()
    };
    let components = |tokenizer: &Tokenizer| {
        let normalizer = serde_json::to_value(tokenizer.get_normalizer());
        let pre_tokenizer = serde_json::to_value(tokenizer.get_pre_tokenizer());
        let post_processor = serde_json::to_value(tokenizer.get_post_processor());
        (normalizer.ok(), pre_tokenizer.ok(), post_processor.ok())
    };
    model(left) == model(right) && added(left) == added(right) && components(left) == components(right)
}
