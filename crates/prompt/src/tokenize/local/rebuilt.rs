//! Tokenizers as classes of `transformers` make them: classes of version 5 build them from the vocabulary of a `tokenizer.json`,
//! and classes of version 4 change its pipeline.

use std::collections::BTreeMap;
use std::mem::discriminant;
use std::path::Path;

use flash_indexer_engine_chats::ChatEngine;
use serde_json::{Map, Value};
use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::bert::BertNormalizer;
use tokenizers::normalizers::replace::ReplacePattern;
use tokenizers::normalizers::{self, NFC, NormalizerWrapper, Prepend, Replace};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{AddedToken, Result as LibraryResult, Tokenizer};

use super::classes::{ClassChoice, TokenizerClass, is_bert_in_4};
use super::files::{TOKENIZER_CONFIG_FILE, read_object};
use super::tokens::Tokens;
use crate::tokenize::prompt::Transformers;

const QWEN_2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_3_5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Classes for which SGLang adds the token that begins a sequence, unless `add_bos_token` is false.
const CLASSES_WITH_BEGIN: [&str; 7] = [
    "LlamaTokenizer",
    "LlamaTokenizerFast",
    "CodeLlamaTokenizer",
    "CodeLlamaTokenizerFast",
    "GemmaTokenizer",
    "GemmaTokenizerFast",
    "CohereTokenizerFast",
];

/// The tokenizer of an engine with `transformers` 5.
pub(super) enum EngineTokenizer {
    /// The file's tokenizer, with the configured tokens.
    File,
    /// A tokenizer that the class builds from the vocabulary.
    Rebuilt(Box<Tokenizer>),
    /// The tokenizer of a class that is not supported here, by the class's name.
    Unknown(String),
}

/// The tokenizer of an engine with `transformers` 5 for a model's name. `file` is the library's tokenizer for `tokenizer.json`.
pub(super) fn rebuilt(
    file: &Tokenizer,
    (model, directory): (&str, &Path),
    engine: ChatEngine,
) -> Result<EngineTokenizer, String> {
    let [config, model_config] = read_configs(directory)?;
    let class = match ClassChoice::of(engine, model, &config, &model_config) {
        ClassChoice::Generic => return Ok(EngineTokenizer::File),
        ClassChoice::Other(name) => return Ok(EngineTokenizer::Unknown(name)),
        ClassChoice::Class(class) => class,
    };
    let ModelWrapper::BPE(_) = file.get_model() else { return Ok(EngineTokenizer::Unknown(format!("{class:?}"))) };
    let tokens = Tokens::read(file, directory, (Some(class), Transformers::Five))?;
    let failed = |error: tokenizers::Error| format!("{}: {error}", directory.display());
    build(file, &tokens, class, engine).map(|tokenizer| EngineTokenizer::Rebuilt(Box::new(tokenizer))).map_err(failed)
}

/// The configurations of a model's tokenizer and of the model.
fn read_configs(directory: &Path) -> Result<[Value; 2], String> {
    let read = |name: &str| read_object(&directory.join(name)).map(Value::Object);
    Ok([read(TOKENIZER_CONFIG_FILE)?, read("config.json")?])
}

/// Adds the tokens that a model's other files configure, as `transformers` 5 does with a `tokenizer.json` that it takes as it is.
pub(super) fn add_configured_tokens(tokenizer: &mut Tokenizer, directory: &Path) -> Result<(), String> {
    let tokens = Tokens::read(tokenizer, directory, (None, Transformers::Five))?;
    tokens.add_to(tokenizer).map_err(|error| format!("{}: {error}", directory.display()))
}

fn build(file: &Tokenizer, tokens: &Tokens, class: TokenizerClass, engine: ChatEngine) -> LibraryResult<Tokenizer> {
    let ModelWrapper::BPE(model) = file.get_model() else { return Ok(file.clone()) };
    let mut model = model.clone();
    let has_unknown = matches!(class, TokenizerClass::CodeLlama | TokenizerClass::Gemma);
    let has_bytes = has_unknown || class == TokenizerClass::Llama;
    model.dropout = None;
    model.unk_token = tokens.name("unk_token").filter(|_| has_unknown);
    model.fuse_unk = has_bytes;
    model.byte_fallback = has_bytes;
    model.ignore_merges = false;
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_normalizer(normalizer(class)?)?;
    let pre_tokenizer = pre_tokenizer(class, &tokens.config)?;
    let of_file = file.get_pre_tokenizer().filter(|_| engine == ChatEngine::Sglang);
    let restored = of_file.filter(|of_file| discriminant(*of_file) != discriminant(&pre_tokenizer)).cloned();
    tokenizer.with_pre_tokenizer(Some(restored.unwrap_or(pre_tokenizer)));
    tokens.add_to(&mut tokenizer)?;
    if class == TokenizerClass::Qwen2 {
        // The class adds its special tokens again, without their flags.
        tokenizer.add_tokens(tokens.special().map(|token| AddedToken::from(token.content.clone(), true)))?;
    }
    let declared = tokens.config.get("tokenizer_class").and_then(Value::as_str);
    let is_restored = engine == ChatEngine::Sglang && declared.is_some_and(|name| CLASSES_WITH_BEGIN.contains(&name));
    let is_refused = tokens.config.get("add_bos_token").and_then(Value::as_bool) == Some(false);
    let adds_begin = if is_restored { !is_refused } else { class == TokenizerClass::CodeLlama };
    let post_processor = match tokens.name("bos_token").filter(|_| adds_begin) {
        Some(begin) => match tokenizer.token_to_id(&begin) {
            Some(id) => Some(added_around(Some((begin, id)), None)?.into()),
            None => None,
        },
        None if adds_begin || matches!(class, TokenizerClass::CodeLlama | TokenizerClass::GptNeoX) => None,
        None => file.get_post_processor().cloned(),
    };
    tokenizer.with_post_processor(post_processor);
    Ok(tokenizer)
}

/// The tokenizer of an engine with `transformers` 4, from the file's tokenizer.
pub(super) fn adjusted(file: &Tokenizer, directory: &Path) -> Result<Tokenizer, String> {
    let [config, model_config] = read_configs(directory)?;
    let class = TokenizerClass::declared(&config, &model_config);
    let tokens = Tokens::read(file, directory, (class, Transformers::Four))?;
    let failed = |error: tokenizers::Error| format!("{}: {error}", directory.display());
    let mut tokenizer = adjust(file, &tokens, class).map_err(failed)?;
    if class == Some(TokenizerClass::Llama)
        && let Some(adds_space) = config["add_prefix_space"].as_bool()
    {
        convert_pieces(&mut tokenizer, adds_space, config["legacy"].as_bool().unwrap_or(true)).map_err(failed)?;
    }
    if is_bert_in_4(&config, &model_config)
        && let Some(NormalizerWrapper::BertNormalizer(of_file)) = tokenizer.get_normalizer()
    {
        let set = |name: &str| config[name].as_bool();
        let (chinese, lower) = (set("tokenize_chinese_chars"), set("do_lower_case"));
        let clean = of_file.clean_text;
        let normalizer =
            BertNormalizer::new(clean, chinese.unwrap_or(true), set("strip_accents"), lower.unwrap_or(true));
        tokenizer.with_normalizer(Some(normalizer)).map_err(failed)?;
    }
    Ok(tokenizer)
}

/// The special tokens that a template gets although no file of the model names them: the defaults of the tokenizer's class.
pub(super) fn default_tokens(directory: &Path) -> Result<Vec<(&'static str, &'static str)>, String> {
    let [config, model_config] = read_configs(directory)?;
    let Some(class) = TokenizerClass::declared(&config, &model_config) else { return Ok(Vec::new()) };
    // A null means that there is none.
    let is_unnamed = |(name, _): &(&str, &str)| config.get(*name).is_none();
    Ok(class.default_tokens().iter().copied().filter(is_unnamed).collect())
}

/// Gives a tokenizer the pipeline that Llama's class builds for a SentencePiece model; `tokenizer.json` has that model's vocabulary.
fn convert_pieces(tokenizer: &mut Tokenizer, adds_space: bool, is_legacy: bool) -> LibraryResult<()> {
    let signs = Replace::new(ReplacePattern::String(" ".to_owned()), "▁")?.into();
    let first = adds_space.then(|| NormalizerWrapper::from(Prepend::new("▁".to_owned())));
    let normalizer = normalizers::Sequence::new(first.into_iter().chain([signs]).collect());
    tokenizer.with_normalizer(is_legacy.then_some(normalizer))?;
    let scheme = if adds_space { PrependScheme::First } else { PrependScheme::Never };
    tokenizer.with_pre_tokenizer((!is_legacy).then(|| Metaspace::new('▁', scheme, false)));
    Ok(())
}

fn adjust(file: &Tokenizer, tokens: &Tokens, class: Option<TokenizerClass>) -> LibraryResult<Tokenizer> {
    let mut tokenizer = file.clone();
    let set = |name: &str| tokens.config.get(name).and_then(Value::as_bool);
    // Classes that pass no value keep the pre-tokenizer of the file.
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
    tokens.add_to(&mut tokenizer)?;
    let Some(begins_by_default) = class.and_then(TokenizerClass::begins_by_default) else { return Ok(tokenizer) };
    let token = |name: &str| {
        let content = tokens.name(name)?;
        let id = tokenizer.token_to_id(&content)?;
        Some((content, id))
    };
    let begin = token("bos_token").filter(|_| set("add_bos_token").unwrap_or(begins_by_default));
    let end = token("eos_token").filter(|_| set("add_eos_token").unwrap_or(false));
    let template = added_around(begin, end)?;
    tokenizer.with_post_processor(Some(template));
    Ok(tokenizer)
}

/// A post-processor that adds tokens around a text.
pub(super) fn added_around(
    begin: Option<(String, u32)>,
    end: Option<(String, u32)>,
) -> LibraryResult<TemplateProcessing> {
    let piece = |token: &Option<(String, u32)>| token.as_ref().map(|(content, _)| format!("{content}:0"));
    let pieces: Vec<String> = piece(&begin).into_iter().chain(["$A:0".to_owned()]).chain(piece(&end)).collect();
    let tokens: Vec<_> = begin.into_iter().chain(end).collect();
    Ok(TemplateProcessing::builder().try_single(pieces)?.special_tokens(tokens).build()?)
}

fn normalizer(class: TokenizerClass) -> LibraryResult<Option<NormalizerWrapper>> {
    use TokenizerClass::{CodeGen, CodeLlama, Cohere, Gemma, Gpt2, GptNeoX, Llama, Qwen2, Qwen35};
    Ok(match class {
        Llama | CodeLlama | Gpt2 | CodeGen => None,
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
        TokenizerClass::CodeLlama => {
            let scheme = if adds_space == Some(false) { PrependScheme::Never } else { PrependScheme::First };
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
    let splits = |tokenizer: &Tokenizer| tokenizer.get_encode_special_tokens();
    let components = |tokenizer: &Tokenizer| {
        let normalizer = serde_json::to_value(tokenizer.get_normalizer());
        let pre_tokenizer = serde_json::to_value(tokenizer.get_pre_tokenizer());
        let post_processor = serde_json::to_value(tokenizer.get_post_processor());
        (normalizer.ok(), pre_tokenizer.ok(), post_processor.ok())
    };
    model(left) == model(right)
        && added(left) == added(right)
        && splits(left) == splits(right)
        && components(left) == components(right)
}
