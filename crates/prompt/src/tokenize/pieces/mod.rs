//! Incremental tokenization: a text is cut into pieces, and each piece is tokenized once.
//!
//! A text is cut where the tokens of both sides do not depend on each other: around the tokenizer's added tokens
//! (`added_tokens.rs`), and, for tokenizers whose pre-tokenizer or vocabulary proves it, between words (`cuts.rs`). The ids
//! of the pieces, one after another, are the ids of the text. [`PieceCache`] keeps them, bounded by bytes, for all threads.
//!
//! A tokenizer with a component that `analysis.rs` does not cover tokenizes each text in one piece.

mod added_tokens;
mod analysis;
mod cache;
mod cuts;
mod encoder;
mod frame;
mod local_normalization;
#[cfg(test)]
mod tests;
mod text;

pub use analysis::Cutting;
pub use cache::{PieceCache, PieceStatistics};
pub(super) use encoder::letters;
pub(super) use text::{PieceTokenizer, TextTokenization};
