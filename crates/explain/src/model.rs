//! Explanations of generated histories, compared with a plain log of what really happened to each block.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use flash_indexer_core::oracle::Oracle;
use flash_indexer_core::{
    Applied, Block, BlockEvent, DpRank, LocalHash, PrefixIndex, RemovedCopies, SequenceHash, Tier, WorkerId, WorkerRank,
};
use flash_indexer_wire::ClearReason;
use proptest::prelude::*;

use super::history::History;
use super::loss::{Clear, Loss, Removal};
use super::reason::{HeldUnderOtherVariants, Reason};
use super::{Explainer, Subject};
use flash_indexer_types::ClearCause;
use flash_indexer_types::InstanceId;
use flash_indexer_types::Trust;

const RANKS: [WorkerRank; 2] =
    [WorkerRank { worker: WorkerId(1), dp_rank: DpRank(0) }, WorkerRank { worker: WorkerId(1), dp_rank: DpRank(1) }];
/// Names 1 to 5 follow each other and are the prompt; name *n* has content 10·*n*.
const PROMPT_BLOCKS: u64 = 5;

#[derive(Debug, Clone)]
enum Step {
    Event(usize, BlockEvent),
    /// The service forgets a rank.
    Forget(usize),
}

/// What really took a block that a rank does not hold.
#[derive(Debug, Clone, Copy, PartialEq)]
enum RealCause {
    Removed(Removal),
    Cleared(Clear),
}

/// The plain log: everything is kept, and each loss is written down when it happens.
#[derive(Default)]
struct Log {
    index: Oracle,
    taken: BTreeMap<(WorkerRank, u64), RealCause>,
    ever_held: BTreeSet<(WorkerRank, u64)>,
}

impl Log {
    fn holds(&self, rank: WorkerRank, name: u64) -> bool {
        self.index.held(rank).iter().any(|held| held.sequence == SequenceHash(name))
    }

    fn take(&mut self, rank: WorkerRank, step: &Step, at: Instant) -> Applied {
        let mut applied = Applied::default();
        let before: Vec<bool> = (1..=PROMPT_BLOCKS).map(|name| self.holds(rank, name)).collect();
        let cause = match step {
            Step::Event(_, event) => {
                applied = self.index.apply(rank, event);
                match event {
                    BlockEvent::Removed { tier, blocks, .. } => {
                        let taken = RealCause::Removed(Removal { at, tier: *tier });
                        // The engine's word that it had the block until now, known to the index or not.
                        let unheld = blocks.iter().filter(|name| !self.holds(rank, name.0)).map(|name| name.0);
                        for name in unheld.collect::<Vec<_>>() {
                            self.taken.insert((rank, name), taken);
                        }
                        taken
                    }
                    _ => RealCause::Cleared(Clear { at, cause: ClearCause::Engine }),
                }
            }
            Step::Forget(_) => {
                self.index.clear_rank(rank);
                RealCause::Cleared(Clear { at, cause: ClearCause::Stream(ClearReason::Restarted) })
            }
        };
        for (name, was_held) in (1..=PROMPT_BLOCKS).zip(before) {
            if self.holds(rank, name) {
                self.ever_held.insert((rank, name));
            }
            if was_held && !self.holds(rank, name) {
                self.taken.insert((rank, name), cause);
            }
        }
        applied
    }
}

fn step() -> impl Strategy<Value = Step> {
    let tier = prop_oneof![3 => Just(Tier::Device), 1 => Just(Tier::Host)];
    let stored = (1..=PROMPT_BLOCKS, 1..4_u64, tier.clone(), 0..3_u32).prop_map(|(first, count, tier, copies)| {
        let names = first..(first + count).min(PROMPT_BLOCKS + 1);
        let blocks = names.map(|name| Block { sequence: SequenceHash(name), local: LocalHash(10 * name) });
        let parent = (first > 1).then(|| SequenceHash(first - 1));
        BlockEvent::Stored { tier, parent, blocks: blocks.collect(), copies }
    });
    let names = proptest::collection::vec((1..=PROMPT_BLOCKS).prop_map(SequenceHash), 1..3);
    let copied = (tier.clone(), names.clone()).prop_map(|(tier, blocks)| BlockEvent::Copied { tier, blocks });
    let copies = prop_oneof![Just(RemovedCopies::One), Just(RemovedCopies::All)];
    let removed = (tier, names, copies).prop_map(|(tier, blocks, copies)| BlockEvent::Removed { tier, blocks, copies });
    let event = prop_oneof![5 => stored, 2 => copied, 5 => removed, 1 => Just(BlockEvent::Cleared)];
    let event = (0..RANKS.len(), event).prop_map(|(rank, event)| Step::Event(rank, event));
    prop_oneof![20 => event, 1 => (0..RANKS.len()).prop_map(Step::Forget)]
}

/// Plays steps into the log and a bounded history, and compares the explanation of every rank after each.
fn check(steps: &[Step], blocks_max: usize) {
    let (start, history, mut log) = (Instant::now(), History::new(blocks_max), Log::default());
    let prompt: Vec<LocalHash> = (1..=PROMPT_BLOCKS).map(|name| LocalHash(10 * name)).collect();
    let is_complete = blocks_max >= 4 * steps.len();
    for (step, second) in steps.iter().zip(0..) {
        // Stamps of engines are in no order.
        let at = start + Duration::from_secs(second ^ 5);
        let (Step::Event(rank, _) | Step::Forget(rank)) = *step;
        let applied = log.take(RANKS[rank], step, at);
        match step {
            Step::Event(_, event) => history.note(RANKS[rank], event, &applied, at),
            Step::Forget(_) => history.forgotten(RANKS[rank], ClearCause::Stream(ClearReason::Restarted), at),
        }
        let mut explainer = Explainer::new(vec![prompt.clone()], &history);
        for rank in RANKS {
            let subject = Subject {
                instance: InstanceId::number(1),
                rank,
                trust: Trust::Exact,
                last_error: None,
                doubt: None,
                is_partial: false,
                elsewhere: HeldUnderOtherVariants::default(),
            };
            explainer.take(subject, &log.index.dump(rank), |_, _, _| None);
        }
        for (rank, explained) in RANKS.into_iter().zip(explainer.explain()) {
            let end = explained.ends.last().expect("every match ends");
            let name = end.position as u64 + 1;
            let context = || format!("block {name} of {rank:?} after {:?}", &steps[..=second as usize]);
            if name > PROMPT_BLOCKS || log.holds(rank, name) {
                assert!(matches!(end.reason, Reason::WholePrompt | Reason::OtherTier(_)), "{}", context());
                continue;
            }
            let taken = log.taken.get(&(rank, name)).copied();
            let is_right = match end.reason {
                Reason::Lost(Loss::Removed(removal)) => taken == Some(RealCause::Removed(removal)),
                Reason::Lost(Loss::Cleared(clear)) => taken == Some(RealCause::Cleared(clear)),
                Reason::Hole { removed, .. } => match removed {
                    Some(removal) => taken == Some(RealCause::Removed(removal)),
                    None => {
                        let was_held = log.ever_held.contains(&(rank, name));
                        !is_complete || !was_held || !matches!(taken, Some(RealCause::Removed(_)))
                    }
                },
                // The name of a block that was only ever removed says nothing of its content.
                Reason::NeverSeen => !is_complete || !log.ever_held.contains(&(rank, name)),
                // What a bounded history may say, and a complete one may not.
                Reason::Lost(Loss::Unremembered) => !is_complete && taken.is_some(),
                Reason::Lost(Loss::RemovedThenCleared(removal, clear)) => {
                    let either = [RealCause::Removed(removal), RealCause::Cleared(clear)];
                    !is_complete && taken.is_some_and(|taken| either.contains(&taken))
                }
                _ => false,
            };
            assert!(is_right, "{:?}, but really {taken:?}: {}", end.reason, context());
        }
    }
}

proptest! {
    #[test]
    fn a_complete_history_always_gives_the_real_cause(steps in proptest::collection::vec(step(), 1..60)) {
        check(&steps, 4 * steps.len());
    }

    #[test]
    fn a_bounded_history_gives_the_real_cause_or_says_that_it_is_not_remembered(
        steps in proptest::collection::vec(step(), 1..60),
        blocks_max in 1..12_usize,
    ) {
        check(&steps, blocks_max);
    }
}
