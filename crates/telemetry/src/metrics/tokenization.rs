//! Counters and latencies of tokenization.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use super::declarations::{Declarations, is_declared};
use super::histogram::Histogram;
use super::{LabelValue, Metrics};

/// Buckets of tokenization time, in seconds: from a short text to a long chat whose tokenizer is loaded first.
const DURATIONS: [f64; 14] =
    [50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 1.0, 5.0];

const KINDS: [LabelValue; 2] = [("text", "A text."), ("chat", "A chat.")];
const OUTCOMES: [LabelValue; 14] = [
    ("done", "Tokenized."),
    ("queue_full", "The queue was full, or one client's share of it."),
    ("stopped", "The service is shutting down."),
    ("withdrawn", "The client disconnected, or its deadline ended, before the prompt was tokenized."),
    ("unknown_model", "No source has the model; the answer lists the sources."),
    ("load_failed", "A source has the model, and its files cannot be loaded; the answer lists the sources."),
    ("chat", "The chat cannot be rendered."),
    (
        "unsupported",
        "The prompt of the chat is known to the engine only: a part of type `file` or `image`, or a family whose prompts are made by code.",
    ),
    ("tokenizer", "The tokenizer rejected the prompt."),
    ("too_long", "More than 4 MiB of a text had no place where this tokenizer's texts can be cut."),
    ("service_unreachable", "The tokenizer service did not respond."),
    ("service_timed_out", "The tokenizer service exceeded its deadline."),
    ("service_refused", "The tokenizer service rejected the prompt."),
    ("panicked", "The tokenizer panicked."),
];

#[derive(Debug)]
pub(super) struct TokenizationMetrics {
    prompts: Family<[(&'static str, &'static str); 2], Counter>,
    tokens: Counter,
    waited: Histogram,
    worked: Histogram,
}

impl TokenizationMetrics {
    pub(super) fn declare(declarations: &mut Declarations) -> Self {
        let help = "Prompts given to the pipeline, by kind and outcome";
        let prompts = declarations.add("tokenizations", help, Family::default());
        declarations.describe("tokenizations_total", "kind", &KINDS);
        declarations.describe("tokenizations_total", "outcome", &OUTCOMES);
        let tokens = declarations.counter("tokenized_tokens", "Tokens of tokenized prompts");
        let help = "Time that a prompt spends in the tokenization queue";
        let waited = declarations.durations("tokenization_wait", help, &DURATIONS);
        let help = "Time to render and tokenize a prompt, including loading its tokenizer";
        let worked = declarations.durations("tokenization_work", help, &DURATIONS);
        Self { prompts, tokens, waited, worked }
    }
}

/// Measurements of one tokenized prompt.
#[derive(Debug, Clone, Copy)]
pub struct TokenizedPrompt {
    /// Tokens of the prompt.
    pub tokens: usize,
    /// Time in the queue.
    pub waited: Duration,
    /// Time of rendering and tokenizing.
    pub worked: Duration,
}

impl Metrics {
    /// Counts a prompt of this kind, with its measurements or the reason of its failure.
    pub fn tokenized(&self, kind: &'static str, result: Result<TokenizedPrompt, &'static str>) {
        let metrics = &self.tokenization;
        let outcome = match result {
            Ok(tokenized) => {
                metrics.tokens.inc_by(tokenized.tokens as u64);
                metrics.waited.observe(tokenized.waited.as_secs_f64());
                metrics.worked.observe(tokenized.worked.as_secs_f64());
                "done"
            }
            Err(reason) => reason,
        };
        debug_assert!(is_declared(&OUTCOMES, outcome) && is_declared(&KINDS, kind));
        metrics.prompts.get_or_create(&[("kind", kind), ("outcome", outcome)]).inc();
    }
}
