//! The definition of a right answer, as literal as it can be written.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Applied, BlockEvent, HeldBlock, LocalHash, MatchScores, PerTier, PrefixIndex, RankMatch, RankSize, RemovedCopies,
    SequenceHash, Tier, WorkerRank,
};

/// Brute force: a list of held blocks for each rank, searched from the start for every query.
///
/// It exists to be obviously right. Every other design is tested against it; nothing else uses it.
#[derive(Debug, Default)]
pub struct Oracle {
    ranks: BTreeMap<WorkerRank, BTreeMap<SequenceHash, HeldBlock>>,
}

impl PrefixIndex for Oracle {
    fn apply(&mut self, rank: WorkerRank, event: &BlockEvent) -> Applied {
        let held = self.ranks.entry(rank).or_default();
        let mut applied = Applied::default();
        match event {
            BlockEvent::Stored { copies: 0, .. } => {}
            BlockEvent::Stored { tier, parent, blocks, copies } => {
                let mut parent = *parent;
                for block in blocks {
                    let new =
                        HeldBlock { sequence: block.sequence, parent, local: block.local, copies: PerTier::default() };
                    let entry = held.entry(block.sequence).or_insert(new);
                    if (entry.parent, entry.local) != (new.parent, new.local) {
                        *entry = new;
                        applied.moved += 1;
                    }
                    match entry.copies[*tier] {
                        0 => applied.stored += 1,
                        _ => applied.duplicate += 1,
                    }
                    entry.copies[*tier] = entry.copies[*tier].saturating_add(*copies);
                    parent = Some(block.sequence);
                }
            }
            BlockEvent::Copied { tier, blocks } => {
                for sequence in blocks {
                    match held.get_mut(sequence) {
                        None => applied.unknown += 1,
                        Some(entry) => {
                            match entry.copies[*tier] {
                                0 => applied.stored += 1,
                                _ => applied.duplicate += 1,
                            }
                            entry.copies[*tier] = entry.copies[*tier].saturating_add(1);
                        }
                    }
                }
            }
            BlockEvent::Removed { tier, blocks, copies } => {
                for sequence in blocks {
                    match held.get_mut(sequence).filter(|entry| entry.copies[*tier] > 0) {
                        None => applied.unknown += 1,
                        Some(entry) => {
                            applied.removed += 1;
                            entry.copies[*tier] = match copies {
                                RemovedCopies::One => entry.copies[*tier] - 1,
                                RemovedCopies::All => 0,
                            };
                            if entry.copies.is_zero() {
                                held.remove(sequence);
                            }
                        }
                    }
                }
            }
            BlockEvent::Cleared => {
                applied.removed = held.len() as u64;
                held.clear();
            }
        }
        self.ranks.retain(|_, held| !held.is_empty());
        applied
    }

    fn find(&self, query: &[LocalHash]) -> MatchScores {
        let matches = self.ranks.iter().map(|(&rank, held)| {
            let mut blocks = PerTier::default();
            for slowest in Tier::ALL {
                blocks[slowest] = depth(held, query, slowest);
            }
            RankMatch { rank, blocks }
        });
        MatchScores { ranks: matches.filter(|found| found.longest() > 0).collect() }
    }

    fn ranks(&self) -> Vec<WorkerRank> {
        self.ranks.keys().copied().collect()
    }

    fn held(&self, rank: WorkerRank) -> Vec<HeldBlock> {
        self.ranks.get(&rank).into_iter().flat_map(BTreeMap::values).copied().collect()
    }

    fn clear_rank(&mut self, rank: WorkerRank) {
        self.ranks.remove(&rank);
    }

    fn size(&self, rank: WorkerRank) -> RankSize {
        let mut size = RankSize::default();
        let Some(held) = self.ranks.get(&rank) else { return size };
        size.blocks = held.len();
        for entry in held.values() {
            for (tier, &copies) in entry.copies.iter() {
                size.by_tier[tier] += usize::from(copies > 0);
            }
        }
        size
    }
}

/// Leading blocks of `query` that are held in `slowest` or a faster tier.
fn depth(held: &BTreeMap<SequenceHash, HeldBlock>, query: &[LocalHash], slowest: Tier) -> u32 {
    let mut reached: BTreeSet<Option<SequenceHash>> = BTreeSet::from([None]);
    let mut depth = 0;
    for &local in query {
        let usable = |entry: &&HeldBlock| Tier::ALL.iter().any(|&t| t <= slowest && entry.copies[t] > 0);
        let next = held.values().filter(|entry| entry.local == local && reached.contains(&entry.parent));
        reached = next.filter(usable).map(|entry| Some(entry.sequence)).collect();
        if reached.is_empty() {
            break;
        }
        depth += 1;
    }
    depth
}
