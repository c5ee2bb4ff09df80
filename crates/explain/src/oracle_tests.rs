//! Explanations of generated histories, compared with a complete log of every block's losses.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use flash_indexer_core::oracle::Oracle;
use flash_indexer_core::{
    AppliedChanges, Block, BlockEvent, DpRank, LocalHash, PrefixIndex, RemovedCopies, SequenceHash, Tier, WorkerId,
    WorkerRank,
};
use flash_indexer_types::{ClearCause, InstanceId, Trust};
use flash_indexer_wire::ClearReason;
use proptest::prelude::*;

use crate::{Clear, Explainer, HeldUnderOtherVariants, History, Loss, Reason, Removal, Subject};

const RANKS: [WorkerRank; 2] =
    [WorkerRank { worker: WorkerId(1), dp_rank: DpRank(0) }, WorkerRank { worker: WorkerId(1), dp_rank: DpRank(1) }];
/// Sequence hashes 1 to 5 form the prompt. Sequence hash *n* has local hash 10·*n*.
const PROMPT_BLOCKS: u64 = 5;

#[derive(Debug, Clone)]
enum Step {
    Event(usize, BlockEvent),
    /// The service clears a rank.
    Clear(usize),
}

/// The event that took a block.
#[derive(Debug, Clone, Copy, PartialEq)]
enum RealCause {
    Removed(Removal),
    Cleared(Clear),
}

/// A complete log: an oracle index, and the cause of each loss as it happens.
#[derive(Default)]
struct LossLog {
    index: Oracle,
    causes: BTreeMap<(WorkerRank, u64), RealCause>,
    ever_held: BTreeSet<(WorkerRank, u64)>,
}

impl LossLog {
    fn holds(&self, rank: WorkerRank, hash: u64) -> bool {
        self.index.held(rank).iter().any(|held| held.sequence == SequenceHash(hash))
    }

    fn apply(&mut self, rank: WorkerRank, step: &Step, at: Instant) -> AppliedChanges {
        let mut applied = AppliedChanges::default();
        let before: Vec<bool> = (1..=PROMPT_BLOCKS).map(|hash| self.holds(rank, hash)).collect();
        let cause = match step {
            Step::Event(_, event) => {
                applied = self.index.apply(rank, event);
                match event {
                    BlockEvent::Removed { tier, blocks, .. } => {
                        let cause = RealCause::Removed(Removal { at, tier: *tier, reason: None });
                        // A removal shows that the engine held the block, even if the index did not.
                        let unheld = blocks.iter().filter(|hash| !self.holds(rank, hash.0)).map(|hash| hash.0);
                        for hash in unheld.collect::<Vec<_>>() {
                            self.causes.insert((rank, hash), cause);
                        }
                        cause
                    }
                    _ => RealCause::Cleared(Clear { at, cause: ClearCause::Engine }),
                }
            }
            Step::Clear(_) => {
                self.index.clear_rank(rank);
                RealCause::Cleared(Clear { at, cause: ClearCause::Stream(ClearReason::Restarted) })
            }
        };
        for (hash, was_held) in (1..=PROMPT_BLOCKS).zip(before) {
            if self.holds(rank, hash) {
                self.ever_held.insert((rank, hash));
            }
            if was_held && !self.holds(rank, hash) {
                self.causes.insert((rank, hash), cause);
            }
        }
        applied
    }
}

fn step() -> impl Strategy<Value = Step> {
    let tier = prop_oneof![3 => Just(Tier::Device), 1 => Just(Tier::Host)];
    let stored = (1..=PROMPT_BLOCKS, 1..4_u64, tier.clone(), 0..3_u32).prop_map(|(first, count, tier, copies)| {
        let hashes = first..(first + count).min(PROMPT_BLOCKS + 1);
        let blocks = hashes.map(|hash| Block { sequence: SequenceHash(hash), local: LocalHash(10 * hash) });
        let parent = (first > 1).then(|| SequenceHash(first - 1));
        BlockEvent::Stored { tier, parent, blocks: blocks.collect(), copies }
    });
    let hashes = proptest::collection::vec((1..=PROMPT_BLOCKS).prop_map(SequenceHash), 1..3);
    let copied = (tier.clone(), hashes.clone()).prop_map(|(tier, blocks)| BlockEvent::Copied { tier, blocks });
    let copies =
        prop_oneof![Just(RemovedCopies::One), Just(RemovedCopies::All), (0..3u32).prop_map(RemovedCopies::AllBut)];
    let removed =
        (tier, hashes, copies).prop_map(|(tier, blocks, copies)| BlockEvent::Removed { tier, blocks, copies });
    let event = prop_oneof![5 => stored, 2 => copied, 5 => removed, 1 => Just(BlockEvent::Cleared)];
    let event = (0..RANKS.len(), event).prop_map(|(rank, event)| Step::Event(rank, event));
    prop_oneof![20 => event, 1 => (0..RANKS.len()).prop_map(Step::Clear)]
}

/// Applies steps to the log and to a bounded history, and compares the explanation of every rank after each step.
fn check(steps: &[Step], blocks_max: usize) {
    let (start, history, mut log) = (Instant::now(), History::new(blocks_max), LossLog::default());
    let prompt: Vec<LocalHash> = (1..=PROMPT_BLOCKS).map(|hash| LocalHash(10 * hash)).collect();
    let is_complete = blocks_max >= 4 * steps.len();
    for (step, second) in steps.iter().zip(0..) {
        // Time stamps of engines are not in order.
        let at = start + Duration::from_secs(second ^ 5);
        let (Step::Event(rank, _) | Step::Clear(rank)) = *step;
        let applied = log.apply(RANKS[rank], step, at);
        match step {
            Step::Event(_, event) => history.record(RANKS[rank], event, &applied, at),
            Step::Clear(_) => history.record_clear(RANKS[rank], ClearCause::Stream(ClearReason::Restarted), at),
        }
        let mut explainer = Explainer::new(vec![prompt.clone()], &history);
        for rank in RANKS {
            let subject = Subject {
                instance: InstanceId::number(1),
                rank,
                trust: Trust::Exact,
                last_error: None,
                gap: None,
                is_partial: false,
                other_variants: HeldUnderOtherVariants::default(),
            };
            explainer.add_rank(subject, &log.index.dump(rank), |_, _, _| None);
        }
        for (rank, explained) in RANKS.into_iter().zip(explainer.explain()) {
            let end = explained.ends.last().expect("every match ends");
            let hash = end.position as u64 + 1;
            let context = || format!("block {hash} of {rank:?} after {:?}", &steps[..=second as usize]);
            if hash > PROMPT_BLOCKS || log.holds(rank, hash) {
                assert!(matches!(end.reason, Reason::WholePrompt | Reason::OtherTier(_)), "{}", context());
                continue;
            }
            let cause = log.causes.get(&(rank, hash)).copied();
            let is_right = match end.reason {
                Reason::Lost(Loss::Removed(removal)) => cause == Some(RealCause::Removed(removal)),
                Reason::Lost(Loss::Cleared(clear)) => cause == Some(RealCause::Cleared(clear)),
                Reason::Gap { removed, .. } => match removed {
                    Some(removal) => cause == Some(RealCause::Removed(removal)),
                    None => {
                        let was_held = log.ever_held.contains(&(rank, hash));
                        !is_complete || !was_held || !matches!(cause, Some(RealCause::Removed(_)))
                    }
                },
                // A removal alone does not show the content of its block.
                Reason::NeverSeen => !is_complete || !log.ever_held.contains(&(rank, hash)),
                // Only a bounded history may give this reason.
                Reason::Lost(Loss::NotInHistory) => !is_complete && cause.is_some(),
                Reason::Lost(Loss::RemovedThenCleared(removal, clear)) => {
                    let either = [RealCause::Removed(removal), RealCause::Cleared(clear)];
                    !is_complete && cause.is_some_and(|cause| either.contains(&cause))
                }
                _ => false,
            };
            assert!(is_right, "{:?}, but the log has {cause:?}: {}", end.reason, context());
        }
    }
}

/// A removal leaves two copies, and another one removes one of them. Then the rank is cleared. The history has the last removal and the clear.
#[test]
fn a_clear_may_have_taken_a_copy_that_an_evicted_removal_left() {
    let block = Block { sequence: SequenceHash(1), local: LocalHash(10) };
    let stored = BlockEvent::Stored { tier: Tier::Device, parent: None, blocks: vec![block], copies: 1 };
    let removed = |copies| BlockEvent::Removed { tier: Tier::Device, blocks: vec![SequenceHash(1)], copies };
    let events = [stored, removed(RemovedCopies::AllBut(2)), removed(RemovedCopies::One), BlockEvent::Cleared];
    check(&events.map(|event| Step::Event(1, event)), 1);
}

proptest! {
    #[test]
    fn an_explanation_from_a_complete_history_gives_the_real_cause(steps in proptest::collection::vec(step(), 1..60)) {
        check(&steps, 4 * steps.len());
    }

    #[test]
    fn an_explanation_from_a_bounded_history_gives_the_real_cause_or_none(
        steps in proptest::collection::vec(step(), 1..60),
        blocks_max in 1..12_usize,
    ) {
        check(&steps, blocks_max);
    }
}
