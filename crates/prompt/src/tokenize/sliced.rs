//! Tokenization in slices, between which a worker serves other prompts.

use super::error::TokenizeError;

/// The tokenization of one prompt, in slices. A worker serves other prompts between two slices.
pub trait SlicedTokenization: Send {
    /// Does the work of a few milliseconds, or tokenizes one piece that cannot be cut. Returns the ids of the prompt after the
    /// last slice.
    ///
    /// # Errors
    ///
    /// If the prompt cannot be rendered or tokenized. It is not called again then.
    fn step(&mut self) -> Result<Option<Vec<u32>>, TokenizeError>;

    /// Whether the next step tokenizes a long piece that cannot be cut. Steps on other threads continue meanwhile.
    fn is_before_uncut_piece(&self) -> bool {
        false
    }

    /// The type of the content part before which the ids end, see [`Tokenized::media`](super::Tokenized::media).
    fn media(&self) -> Option<&'static str> {
        None
    }
}
