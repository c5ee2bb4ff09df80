//! Time of each step from a chat to scored pods, with this project's and other systems' keys and indexes.

mod chat;
mod keys;
mod lookup;

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use serde::{Deserialize, Serialize};

/// Results of the prompt part.
#[derive(Serialize, Deserialize)]
pub(crate) struct PromptReport {
    /// Rounds and sizes.
    pub(crate) setting: Vec<(String, String)>,
    pub(crate) parts: Vec<Part>,
}

/// A table of figures.
#[derive(Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) title: String,
    pub(crate) about: String,
    pub(crate) lines: Vec<Line>,
}

/// One figure.
#[derive(Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) what: String,
    pub(crate) median_us: f64,
    /// The figure that another system's authors have published, from another machine.
    pub(crate) published: Option<String>,
}

/// Tokens of the prompt that is scored.
pub(crate) const PROMPT_TOKENS: usize = 10_000;
/// Tokens of a block: llm-d's default.
pub(crate) const BLOCK_TOKENS: u32 = 16;
/// Blocks of the lookup for which llm-d's authors have published figures.
pub(crate) const LOOKUP_BLOCKS: usize = 10_000;

/// Takes all measures; figures are medians over `rounds`. `tokenizers` is a directory of models.
pub(crate) fn measure(tokenizers: &Path, rounds: usize) -> Result<PromptReport> {
    let rounds = rounds.max(1);
    eprintln!("prompt: a chat");
    let (chat, tokens) = chat::measure(tokenizers, rounds)?;
    eprintln!("prompt: keys");
    let keys = keys::measure(&tokens, rounds);
    eprintln!("prompt: lookup");
    let lookup = lookup::measure(rounds);
    let setting = vec![
        ("rounds (figures are medians)".to_owned(), rounds.to_string()),
        ("tokens of the chat".to_owned(), tokens.len().to_string()),
        ("tokens of a block".to_owned(), BLOCK_TOKENS.to_string()),
    ];
    Ok(PromptReport { setting, parts: vec![chat, keys, lookup] })
}

/// Median time of `work` in microseconds, after one warm-up round.
fn time<T>(rounds: usize, mut work: impl FnMut() -> T) -> f64 {
    time_prepared(rounds, || (), |()| work())
}

/// Median time of `work` in microseconds, with a fresh input for each round.
fn time_prepared<P, T>(rounds: usize, mut prepare: impl FnMut() -> P, mut work: impl FnMut(P) -> T) -> f64 {
    let mut took: Vec<f64> = (0..=rounds)
        .map(|_| {
            let prepared = prepare();
            let start = Instant::now();
            let result = work(prepared);
            let took = start.elapsed();
            drop(std::hint::black_box(result));
            took.as_secs_f64() * 1e6
        })
        .skip(1)
        .collect();
    took.sort_unstable_by(f64::total_cmp);
    took[took.len() / 2]
}

fn line(what: &str, median_us: f64, published: Option<&str>) -> Line {
    Line { what: what.to_owned(), median_us, published: published.map(str::to_owned) }
}
