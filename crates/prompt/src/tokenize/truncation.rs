//! Truncation of a prompt.

use flash_indexer_engine_chats::TruncationSide;

/// Number and side of the ids of a prompt that truncation keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Truncation {
    /// Maximum number of ids.
    pub(super) count: usize,
    /// The side at which ids are left out, regardless of their values. `None` truncates from the left as the `tokenizers` library does, as
    /// engines use it: the ids that the tokenizer added, by position, and the last of the others. So a token that begins the
    /// sequence stays. If not even the added ids fit, the last ids are kept.
    pub(super) side: Option<TruncationSide>,
}

impl Truncation {
    /// The ids that are kept.
    pub(super) fn of(self, ids: &[u32], is_added: impl Fn(usize) -> bool) -> Vec<u32> {
        let surplus = ids.len().saturating_sub(self.count);
        let content = || (0..ids.len()).filter(|at| !is_added(*at)).count();
        match self.side {
            Some(TruncationSide::Right) => return ids[..ids.len() - surplus].to_vec(),
            Some(TruncationSide::Left) => return ids[surplus..].to_vec(),
            None if surplus > content() => return ids[surplus..].to_vec(),
            None => {}
        }
        let mut left_out = 0;
        let mut is_kept = |at: usize| {
            let is_surplus = left_out < surplus && !is_added(at);
            left_out += usize::from(is_surplus);
            !is_surplus
        };
        ids.iter().enumerate().filter(|(at, _)| is_kept(*at)).map(|(_, id)| *id).collect()
    }
}
