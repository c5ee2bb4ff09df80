//! Tokenizers in Mistral's format, `tekken.json`: a vocabulary of bytes by rank, and special tokens.
//!
//! The library merges the neighbours whose token has the lowest rank. The same merges, in the order of ranks, make a tokenizer of
//! the `tokenizers` crate.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{AddedToken, Tokenizer};

use super::rebuilt::added_around;
use crate::tokenize::pieces::letters;

/// The token that begins a sequence.
const BEGIN: &str = "<s>";
/// Special tokens of files that list none.
const SPECIAL_TOKENS: [&str; 20] = [
    "<unk>",
    BEGIN,
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

#[derive(Deserialize)]
struct Tekken {
    config: Config,
    vocab: Vec<Token>,
    special_tokens: Option<Vec<SpecialToken>>,
}

#[derive(Deserialize)]
struct Config {
    pattern: String,
    default_vocab_size: usize,
    default_num_special_tokens: usize,
}

#[derive(Deserialize)]
struct Token {
    rank: usize,
    token_bytes: String,
}

#[derive(Deserialize)]
struct SpecialToken {
    rank: usize,
    token_str: String,
}

/// Reads a file. The ids of special tokens precede all others.
pub(super) fn read(json: &[u8]) -> Result<Tokenizer, String> {
    let Tekken { config, vocab, special_tokens } = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let special = special_names(special_tokens, config.default_num_special_tokens)?;
    let ordinary = config.default_vocab_size.saturating_sub(special.len());
    let tokens = vocab.get(..ordinary).ok_or("the vocabulary has fewer tokens than `default_vocab_size`")?;
    let tokens = tokens.iter().enumerate().map(|(rank, token)| bytes(token, rank));
    let tokens = tokens.collect::<Result<Vec<_>, _>>()?;
    let letters = letters();
    let word = |bytes: &[u8]| -> String { bytes.iter().map(|byte| letters[usize::from(*byte)]).collect() };
    let words = tokens.iter().enumerate().map(|(rank, bytes)| (word(bytes), rank + special.len()));
    let named = special.iter().cloned().enumerate().map(|(id, name)| (name, id));
    let ids = words.chain(named).map(|(token, id)| Ok((token, u32::try_from(id)?)));
    let ids: Vocab = ids.collect::<Result<_, std::num::TryFromIntError>>().map_err(|error| error.to_string())?;
    let merges = merges(&tokens).into_iter().map(|(left, right)| (word(left), word(right))).collect();
    build(ids, merges, &config.pattern, &special).map_err(|error| error.to_string())
}

/// The names of special tokens by id. Ids without a name have one with their number.
fn special_names(listed: Option<Vec<SpecialToken>>, count: usize) -> Result<Vec<String>, String> {
    let mut names: Vec<String> = match listed {
        None => SPECIAL_TOKENS.iter().map(ToString::to_string).collect(),
        Some(mut listed) => {
            listed.sort_by_key(|token| token.rank);
            if listed.iter().enumerate().any(|(rank, token)| token.rank != rank) {
                return Err("the ranks of `special_tokens` have a gap".to_owned());
            }
            listed.into_iter().map(|token| token.token_str).collect()
        }
    };
    if names.len() > count {
        return Err(format!("there are more special tokens than `default_num_special_tokens`, which is {count}"));
    }
    names.extend((names.len()..count).map(|id| format!("<SPECIAL_{id}>")));
    Ok(names)
}

fn bytes(token: &Token, rank: usize) -> Result<Vec<u8>, String> {
    if token.rank != rank {
        return Err(format!("the token of rank {rank} has rank {}", token.rank));
    }
    STANDARD.decode(&token.token_bytes).map_err(|error| format!("the token of rank {rank}: {error}"))
}

/// The pairs that merge to tokens, ordered by the token's rank, then by the ranks of the pair.
fn merges(tokens: &[Vec<u8>]) -> Vec<(&[u8], &[u8])> {
    let ranks: HashMap<&[u8], usize> = tokens.iter().enumerate().map(|(rank, token)| (&**token, rank)).collect();
    let of_token = |token: &'_ Vec<u8>| {
        let pairs = (1..token.len()).filter_map(|at| {
            let (left, right) = token.split_at(at);
            Some((*ranks.get(left)?, *ranks.get(right)?))
        });
        let mut pairs: Vec<(usize, usize)> = pairs.collect();
        pairs.sort_unstable();
        pairs
    };
    let pairs = tokens.iter().flat_map(of_token);
    pairs.map(|(left, right)| (tokens[left].as_slice(), tokens[right].as_slice())).collect()
}

fn build(
    ids: Vocab,
    merges: Vec<(String, String)>,
    pattern: &str,
    special: &[String],
) -> Result<Tokenizer, Box<dyn std::error::Error + Send + Sync>> {
    let begin = ids.get(BEGIN).copied();
    let model = BPE::builder().vocab_and_merges(ids, merges).ignore_merges(true).build()?;
    let mut tokenizer = Tokenizer::new(model);
    let words = Split::new(SplitPattern::Regex(pattern.to_owned()), SplitDelimiterBehavior::Isolated, false)?;
    let letters = ByteLevel::new(false, true, false);
    let steps = vec![PreTokenizerWrapper::from(words), PreTokenizerWrapper::from(letters)];
    tokenizer.with_pre_tokenizer(Some(Sequence::new(steps)));
    tokenizer.with_decoder(Some(letters));
    if let Some(begin) = begin {
        tokenizer.with_post_processor(Some(added_around(Some((BEGIN.to_owned(), begin)), None)?));
    }
    let special: Vec<AddedToken> = special.iter().map(|name| AddedToken::from(name.clone(), true)).collect();
    tokenizer.add_special_tokens(special)?;
    Ok(tokenizer)
}
