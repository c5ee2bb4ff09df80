//! The ids that a tokenizer's post-processor puts around a text.

use tokenizers::{Encoding, Token, Tokenizer};

use crate::tokenize::truncation::Truncation;

/// Ids before and after the ids of a text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Frame {
    before: Vec<u32>,
    after: Vec<u32>,
}

/// Ids that no vocabulary has.
const PROBES: [u32; 2] = [u32::MAX - 1, u32::MAX];

impl Frame {
    /// Runs the post-processor on no, one and two ids. `None` if it does more than put ids around them.
    pub(super) fn of(tokenizer: &Tokenizer, adds_special_tokens: bool) -> Option<Self> {
        let probe = |ids: &[u32]| {
            let tokens = ids.iter().map(|id| Token::new(*id, String::new(), (0, 0))).collect();
            tokenizer.post_process(Encoding::from_tokens(tokens, 0), None, adds_special_tokens).ok()
        };
        let one = probe(&PROBES[..1])?;
        let at = one.get_ids().iter().position(|id| *id == PROBES[0])?;
        let frame = Self { before: one.get_ids()[..at].to_vec(), after: one.get_ids()[at + 1..].to_vec() };
        for count in 0..=PROBES.len() {
            let probed = probe(&PROBES[..count])?;
            let (begin, end) = (frame.before.len(), frame.before.len() + count);
            let is_added = |(at, mask): (usize, &u32)| (*mask != 0) != (begin..end).contains(&at);
            let ids = frame.clone_around(&PROBES[..count]);
            if probed.get_ids() != ids || !probed.get_special_tokens_mask().iter().enumerate().all(is_added) {
                return None;
            }
        }
        Some(frame)
    }

    /// Puts the ids around those of a text, and truncates them.
    pub(super) fn around(&self, ids: Vec<u32>, kept: Option<Truncation>) -> Vec<u32> {
        let content = self.before.len()..self.before.len() + ids.len();
        let is_framed = self.before.is_empty() && self.after.is_empty();
        let all = if is_framed { ids } else { self.clone_around(&ids) };
        match kept {
            Some(kept) => kept.of(&all, |at| !content.contains(&at)),
            None => all,
        }
    }

    /// Puts the leading ids before the ids of the beginning of a text.
    pub(super) fn before(&self, ids: &[u32]) -> Vec<u32> {
        [&self.before, ids].concat()
    }

    fn clone_around(&self, ids: &[u32]) -> Vec<u32> {
        [&self.before, ids, &self.after].concat()
    }
}
