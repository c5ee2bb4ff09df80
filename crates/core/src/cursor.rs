//! Cursors: names of long prefixes, for queries that continue an earlier prompt.
//!
//! A prefix has a cursor at each checkpoint: after every [`CHECKPOINT_BLOCKS`] blocks. A checkpoint's hash chains the
//! hashes of whole sections of local hashes, so it costs a fraction of the prefix hashes of all blocks. It depends on
//! the local hashes alone: every replica and every index gives a prefix the same cursor.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::hashing::{HashVariant, TokenWindow};
use crate::{LocalHash, SequenceHash, hashing};

/// Blocks between two checkpoints of a prefix.
pub const CHECKPOINT_BLOCKS: usize = 32;

/// Hash of a prefix that ends at a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PrefixCursor(pub u64);

impl PrefixCursor {
    /// Start of every sequence.
    pub(crate) const START: Self = Self(0);

    /// The checkpoint after one more section.
    #[must_use]
    pub(crate) fn next(self, section: &[LocalHash; CHECKPOINT_BLOCKS]) -> Self {
        let mut bytes = [0; CHECKPOINT_BLOCKS * size_of::<u64>()];
        let (places, _) = bytes.as_chunks_mut();
        places.iter_mut().zip(section).for_each(|(place, local)| *place = local.0.to_le_bytes());
        Self(hashing::next_sequence_hash(Some(SequenceHash(self.0)), LocalHash(xxh3_64(&bytes))).0)
    }

    /// The last checkpoint of a prompt, and the number of blocks up to it; none if the prompt has no complete section.
    #[must_use]
    pub fn last_of(locals: &[LocalHash]) -> Option<(Self, usize)> {
        let (sections, _) = locals.as_chunks();
        let last = sections.iter().fold(Self::START, |cursor, section| cursor.next(section));
        (!sections.is_empty()).then_some((last, sections.len() * CHECKPOINT_BLOCKS))
    }

    /// The cursor as clients of prompts in tokens see it, or such a cursor restored: it is bound to the adapter, the
    /// salt and the token window with which the tokens were hashed. Bound to others, it names no prefix.
    #[must_use]
    pub fn bound_to(self, variant: HashVariant, window: TokenWindow) -> Self {
        let bytes = [variant.seed().to_le_bytes(), (window as u64).to_le_bytes()];
        Self(self.0 ^ xxh3_64_with_seed(bytes.as_flattened(), CURSOR_SEED))
    }
}

const CURSOR_SEED: u64 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_match_the_contract() {
        let locals: Vec<LocalHash> = (0..100).map(LocalHash).collect();
        assert_eq!(PrefixCursor::last_of(&locals[..31]), None);
        let (first, blocks) = PrefixCursor::last_of(&locals[..63]).expect("one section");
        assert_eq!(blocks, 32);
        let section = locals[32..64].try_into().expect("a section");
        assert_eq!(PrefixCursor::last_of(&locals[..64]), Some((first.next(section), 64)));
        assert_eq!(PrefixCursor::last_of(&locals), PrefixCursor::last_of(&locals[..96]));
    }

    #[test]
    fn a_cursor_is_restored_only_with_its_own_adapter_salt_and_window() {
        let cursor = PrefixCursor(7);
        let (plain, other) = (HashVariant::default(), HashVariant::new(Some("adapter"), None));
        let bound = cursor.bound_to(plain, TokenWindow::Block);
        assert_eq!(bound.bound_to(plain, TokenWindow::Block), cursor);
        assert_ne!(bound.bound_to(other, TokenWindow::Block), cursor);
        assert_ne!(bound.bound_to(plain, TokenWindow::BlockAndNext), cursor);
    }
}
