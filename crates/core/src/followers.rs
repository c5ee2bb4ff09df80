//! Held blocks that follow one another.

use crate::keyed::KeyedMap;
use crate::{HeldBlock, LocalHash, SequenceHash, Tier};

/// A held block that follows another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Follower {
    /// Its sequence hash.
    pub sequence: SequenceHash,
    /// The fastest tier that holds it.
    pub fastest: Tier,
}

/// `SharedIndex::held_along` of a rank that holds these blocks.
pub(crate) fn held_along(held: &[HeldBlock], query: &[LocalHash]) -> Vec<Option<Tier>> {
    chain_after(held, None, query).into_iter().map(|follower| Some(follower.fastest)).collect()
}

/// `SharedIndex::sequence_along` of a rank that holds these blocks.
pub(crate) fn sequence_along(held: &[HeldBlock], prefix: &[LocalHash]) -> Option<SequenceHash> {
    let chain = chain_after(held, None, prefix);
    chain.last().filter(|_| chain.len() == prefix.len()).map(|follower| follower.sequence)
}

/// The blocks of a query that follow one another after a block, out of held ones.
pub(crate) fn chain_after(held: &[HeldBlock], parent: Option<SequenceHash>, query: &[LocalHash]) -> Vec<Follower> {
    let mut parent = parent;
    let links: KeyedMap<(Option<SequenceHash>, LocalHash), &HeldBlock> =
        held.iter().map(|block| ((block.parent, block.local), block)).collect();
    let next = |&local: &LocalHash| {
        let block = links.get(&(parent, local))?;
        parent = Some(block.sequence);
        Some(Follower { sequence: block.sequence, fastest: block.fastest_tier()? })
    };
    query.iter().map_while(next).collect()
}
