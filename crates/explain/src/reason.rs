//! The reason for the end of a rank's match, from the rank's blocks and the model's history.

use flash_indexer_core::{LocalHash, SequenceHash, Tier, WorkerRank};
use flash_indexer_types::{ClearCause, Ordinal, Trust, UnrepairedGap};
use flash_indexer_wire::ClearReason;

use crate::loss::{Clear, Loss, Removal};
use crate::matched::{ExplainedMatch, GroupShortfall};
use crate::subject::{HeldUnderOtherVariants, Subject};
use crate::timeline::BlockTimeline;
use crate::walk::{DetachedRun, KnownHashes, Walk};

/// The end of a match, and its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// Position of the first block that does not match, counted from zero. If all blocks match, the number of blocks.
    pub position: usize,
    /// Local hash of that block.
    pub local: Option<LocalHash>,
    /// Sequence hash of that block, if a rank holds the block or the history has it.
    pub sequence: Option<SequenceHash>,
    /// The reason.
    pub reason: Reason,
    /// Changes of the rank that are missing after the last known change of the block. None for a block that the rank
    /// holds.
    pub gap: Option<UnrepairedGap>,
    /// Longer matches of the same tokens under another adapter or salt, for every reason. Empty for a block that the
    /// rank holds.
    pub other_variants: HeldUnderOtherVariants,
}

/// Why a block does not match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// The rank holds the whole prompt.
    WholePrompt,
    /// The rank holds the block in no faster tier than this one.
    OtherTier(Tier),
    /// The primary cache group of a hybrid model holds the block, and secondary groups cannot use it.
    CacheGroups(GroupShortfall),
    /// The rank does not hold the block, and holds blocks after it.
    Gap {
        /// The blocks held after the missing one.
        after_gap: HeldAfterGap,
        /// The removal of the missing block, if the history has it.
        removed: Option<Removal>,
    },
    /// The rank held the block and lost it.
    Lost(Loss),
    /// The rank has a longer match of the same tokens under another adapter or salt: [`End::other_variants`].
    OtherVariant,
    /// The rank has not published anything yet.
    Cold,
    /// The rank may hold the block: its bounded index has no room for all of its blocks.
    MemoryLimit,
    /// The rank may hold the block: messages were lost or could not be read. With the last known loss of the block, if
    /// there is one.
    Degraded(Option<Loss>),
    /// The rank may hold the block: its engine publishes no events, and no prompt with the block was recorded for it.
    Approximate,
    /// The history shows no store of the block by the rank.
    NeverSeen,
}

impl Loss {
    /// Whether the block was cleared because messages are missing, so the loss itself explains the gap.
    fn is_by_missing_messages(self) -> bool {
        let Self::Cleared(Clear { cause, .. }) = self else { return false };
        matches!(cause, ClearCause::Stream(ClearReason::TooMuchLost | ClearReason::EpochUnknown))
    }
}

/// Blocks of the prompt held after a missing one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldAfterGap {
    /// Position of the first one.
    pub position: usize,
    /// Length of the run that starts there, in blocks.
    pub blocks: usize,
}

/// A query, and the facts about its blocks from sources other than the dump of the rank.
pub(super) struct ExplainContext<'a> {
    pub(super) query: &'a [LocalHash],
    /// Sequence hashes that any rank has for the query's blocks.
    pub(super) known_hashes: &'a KnownHashes,
    pub(super) timeline: &'a BlockTimeline,
}

/// The end of a rank's match in device memory. If all tiers together match more blocks, their end follows.
pub(super) fn ends(
    context: &ExplainContext<'_>,
    subject: &Subject,
    ExplainedMatch { walk, shortfalls }: &ExplainedMatch,
) -> Vec<End> {
    let local = |position: usize| context.query.get(position).copied();
    let end_of_held = |position, sequence, reason| End {
        position,
        local: local(position),
        sequence,
        reason,
        gap: None,
        other_variants: HeldUnderOtherVariants::default(),
    };
    let cut_off = |shortfall: &GroupShortfall| {
        end_of_held(shortfall.usable, shortfall.sequence, Reason::CacheGroups(shortfall.clone()))
    };
    let mut ends = Vec::new();
    if let Some(shortfall) = &shortfalls[Tier::Device] {
        ends.push(cut_off(shortfall));
    } else if let Some(slower) = walk.slower {
        ends.push(end_of_held(walk.blocks[Tier::Device], Some(slower.sequence), Reason::OtherTier(slower.tier)));
    }
    if let Some(shortfall) = &shortfalls[Tier::External] {
        let is_listed = shortfalls[Tier::Device].as_ref().is_some_and(|listed| listed.usable == shortfall.usable);
        ends.extend((!is_listed).then(|| cut_off(shortfall)));
        return ends;
    }
    let position = walk.longest();
    let Some(missing) = local(position) else {
        if ends.is_empty() {
            ends.push(end_of_held(position, None, Reason::WholePrompt));
        }
        return ends;
    };
    ends.push(end_at_missing_block(context, subject, walk, missing));
    ends
}

/// The end of a match at a block that the rank does not hold.
fn end_at_missing_block(context: &ExplainContext<'_>, subject: &Subject, walk: &Walk, local: LocalHash) -> End {
    let position = walk.longest();
    let block = MissingBlock::new(context, subject.rank, walk, local);
    let other_variants = subject.other_variants.clone().longer_than(position);
    let gap = subject.gap.as_ref().filter(|gap| block.loss.is_none_or(|(lost, _)| gap.follows(lost))).cloned();
    let from_history =
        block.reason(gap.as_ref()).filter(|reason| !subject.is_partial || *reason != Reason::Lost(Loss::NotInHistory));
    let reason = from_history.or_else(|| other_variants.by_rank.as_ref().map(|_| Reason::OtherVariant));
    let reason = reason.unwrap_or(match subject.trust {
        Trust::Cold => Reason::Cold,
        Trust::Recovering | Trust::Degraded => Reason::Degraded(None),
        Trust::Approximate => Reason::Approximate,
        Trust::Exact if subject.is_partial => Reason::MemoryLimit,
        Trust::Exact => Reason::NeverSeen,
    });
    End { position, local: Some(local), sequence: block.sequence, reason, gap, other_variants }
}

/// A block that a rank does not hold.
struct MissingBlock {
    /// Sequence hash that the rank itself had for it, else one that any rank has.
    sequence: Option<SequenceHash>,
    /// The first run of the prompt that the rank holds after it.
    after_gap: Option<DetachedRun>,
    /// The loss of the block, and the ordinal of the event that caused it.
    loss: Option<(Ordinal, Loss)>,
}

impl MissingBlock {
    fn new(context: &ExplainContext<'_>, rank: WorkerRank, walk: &Walk, local: LocalHash) -> Self {
        let position = walk.longest();
        let known_at = |position: usize| context.known_hashes.get(position).map_or(&[][..], Vec::as_slice);
        // Content may repeat. A detached run belongs to this prompt if its parent is the prompt's block, or if no rank has the sequence
        // hash of that block.
        let belongs = |run: &&DetachedRun| {
            let known = known_at(run.position - 1);
            known.is_empty() || known.contains(&run.parent)
        };
        let after_gap = walk.detached_runs.iter().find(belongs).copied();
        let next = after_gap.filter(|run| run.position == position + 1).map(|run| run.parent);
        let hashes = || next.into_iter().chain(known_at(position).iter().copied());
        // A rank can have several sequence hashes for one block. It held the block until it lost the last of them.
        let losses = hashes().filter_map(|hash| {
            let (ordinal, loss): (Ordinal, Loss) = context.timeline.loss(rank, hash, local)?;
            Some((ordinal, hash, loss))
        });
        let last = losses.max_by_key(|&(ordinal, ..)| ordinal);
        Self {
            sequence: next.or(last.map(|(_, hash, _)| hash)).or_else(|| hashes().next()),
            after_gap,
            loss: last.map(|(ordinal, _, loss)| (ordinal, loss)),
        }
    }

    /// The reason that the detached runs and the history give. With a `gap` a loss need not be the last change of
    /// the block.
    fn reason(&self, gap: Option<&UnrepairedGap>) -> Option<Reason> {
        if let Some(DetachedRun { position, blocks, .. }) = self.after_gap {
            let removed = if let Some((_, Loss::Removed(removal))) = self.loss { Some(removal) } else { None };
            return Some(Reason::Gap { after_gap: HeldAfterGap { position, blocks }, removed });
        }
        let (_, loss) = self.loss?;
        Some(if gap.is_some() && !loss.is_by_missing_messages() {
            Reason::Degraded(Some(loss))
        } else {
            Reason::Lost(loss)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use flash_indexer_core::hashing::Salt;
    use flash_indexer_core::{AppliedChanges, Block, BlockEvent, DpRank, RemovedCopies, WorkerId};
    use flash_indexer_types::InstanceId;
    use flash_indexer_wire::AdapterSalt;

    use super::*;
    use crate::history::History;
    use crate::subject::OtherVariant;

    const RANK: WorkerRank = WorkerRank { worker: WorkerId(1), dp_rank: DpRank(0) };
    const OTHER: WorkerRank = WorkerRank { worker: WorkerId(2), dp_rank: DpRank(0) };

    /// A history with one event a second.
    struct Timeline {
        start: Instant,
        history: History,
        seconds: u64,
    }

    impl Timeline {
        fn new() -> Self {
            Self { start: Instant::now(), history: History::new(100), seconds: 0 }
        }

        fn at(&self, second: u64) -> Instant {
            self.start + Duration::from_secs(second)
        }

        fn record(&mut self, rank: WorkerRank, event: &BlockEvent) {
            self.seconds += 1;
            self.history.record(rank, event, &AppliedChanges::default(), self.at(self.seconds));
        }

        /// The ends of the match of prompt 1, 2, 3 in a rank that holds `dump`.
        fn ends(&self, dump: &[BlockEvent], trust: Trust, other: Option<&OtherVariant>) -> Vec<End> {
            let query = [10, 20, 30].map(LocalHash);
            let (timeline, mut known_hashes) = (BlockTimeline::new(&self.history.snapshot()), KnownHashes::new());
            let walk = Walk::new(&query, dump, &mut known_hashes);
            timeline.add_sequence_hashes(&query, &mut known_hashes);
            let matched = ExplainedMatch { walk, ..ExplainedMatch::default() };
            let other_variants = HeldUnderOtherVariants { by_rank: other.cloned(), by_fleet: None };
            let subject = Subject { trust, other_variants, ..subject() };
            let context = ExplainContext { query: &query, known_hashes: &known_hashes, timeline: &timeline };
            ends(&context, &subject, &matched)
        }

        fn reason(&self, dump: &[BlockEvent]) -> Reason {
            self.ends(dump, Trust::Exact, None).pop().expect("an end").reason
        }
    }

    fn subject() -> Subject {
        Subject {
            instance: InstanceId::number(1),
            rank: RANK,
            trust: Trust::Exact,
            last_error: None,
            gap: None,
            is_partial: false,
            other_variants: HeldUnderOtherVariants::default(),
        }
    }

    fn stored(tier: Tier, parent: Option<u64>, hashes: &[u64]) -> BlockEvent {
        let blocks = hashes.iter().map(|&hash| Block { sequence: SequenceHash(hash), local: LocalHash(10 * hash) });
        BlockEvent::Stored { tier, parent: parent.map(SequenceHash), blocks: blocks.collect(), copies: 1 }
    }

    fn removed(hash: u64) -> BlockEvent {
        BlockEvent::Removed { tier: Tier::Device, blocks: vec![SequenceHash(hash)], copies: RemovedCopies::One }
    }

    #[test]
    fn a_match_ends_behind_the_whole_prompt_or_at_a_block_in_a_slower_tier() {
        let timeline = Timeline::new();
        let whole = [stored(Tier::Device, None, &[1, 2, 3])];
        assert_eq!(timeline.reason(&whole), Reason::WholePrompt);
        let offloaded = [stored(Tier::Device, None, &[1]), stored(Tier::Disk, Some(1), &[2, 3])];
        let end = End {
            position: 1,
            local: Some(LocalHash(20)),
            sequence: Some(SequenceHash(2)),
            reason: Reason::OtherTier(Tier::Disk),
            gap: None,
            other_variants: HeldUnderOtherVariants::default(),
        };
        assert_eq!(timeline.ends(&offloaded, Trust::Exact, None), std::slice::from_ref(&end));
        let ends =
            timeline.ends(&[stored(Tier::Device, None, &[1]), stored(Tier::Disk, Some(1), &[2])], Trust::Exact, None);
        assert_eq!((&ends[0], ends[1].position, &ends[1].reason), (&end, 2, &Reason::NeverSeen));
    }

    #[test]
    fn a_removal_is_reported_with_its_time_even_if_later_blocks_are_held() {
        let mut timeline = Timeline::new();
        timeline.record(RANK, &stored(Tier::Device, None, &[1, 2, 3]));
        timeline.record(RANK, &removed(3));
        timeline.record(OTHER, &removed(2));
        let removal = Removal { at: timeline.at(2), tier: Tier::Device, reason: None };
        let ends = timeline.ends(&[stored(Tier::Device, None, &[1, 2])], Trust::Exact, None);
        assert_eq!((ends[0].sequence, &ends[0].reason), (Some(SequenceHash(3)), &Reason::Lost(Loss::Removed(removal))));

        timeline.record(RANK, &removed(2));
        let removed = Some(Removal { at: timeline.at(4), ..removal });
        let after_gap = HeldAfterGap { position: 2, blocks: 1 };
        let dump = [stored(Tier::Device, None, &[1]), stored(Tier::Device, Some(2), &[3])];
        assert_eq!(timeline.reason(&dump), Reason::Gap { after_gap, removed });
        assert_eq!(
            Timeline::new().reason(&dump),
            Reason::Gap { after_gap, removed: None },
            "the next block names its parent"
        );
        assert_eq!(
            timeline.reason(&[stored(Tier::Device, None, &[1])]),
            Reason::Lost(Loss::Removed(Removal { at: timeline.at(4), ..removal }))
        );
    }

    #[test]
    fn equal_content_in_another_sequence_is_no_gap() {
        let mut timeline = Timeline::new();
        // The prompt's second block has sequence hash 2. Block 3 of this rank has another parent.
        timeline.record(OTHER, &stored(Tier::Device, None, &[1, 2]));
        assert_eq!(
            timeline.reason(&[stored(Tier::Device, None, &[1]), stored(Tier::Device, Some(77), &[3])]),
            Reason::NeverSeen
        );
    }

    #[test]
    fn a_clear_is_the_loss_of_blocks_stored_before_it_only() {
        let mut timeline = Timeline::new();
        timeline.record(RANK, &stored(Tier::Device, None, &[1]));
        timeline.record(RANK, &BlockEvent::Cleared);
        let cleared = Clear { at: timeline.at(2), cause: ClearCause::Engine };
        assert_eq!(timeline.reason(&[]), Reason::Lost(Loss::Cleared(cleared)));
        timeline.record(RANK, &stored(Tier::Device, None, &[1]));
        assert_eq!(timeline.reason(&[]), Reason::Lost(Loss::NotInHistory), "no recorded event took it");
        timeline.record(RANK, &removed(1));
        assert_eq!(
            timeline.reason(&[]),
            Reason::Lost(Loss::Removed(Removal { at: timeline.at(4), tier: Tier::Device, reason: None }))
        );
    }

    #[test]
    fn without_history_other_variants_and_trust_give_the_reason() {
        let timeline = Timeline::new();
        let adapter_salt = AdapterSalt::new(Some("a"), Salt::new("s"));
        let other = OtherVariant { adapter_salt, blocks: 2 };
        let reason = |dump: &[BlockEvent], trust| timeline.ends(dump, trust, Some(&other))[0].reason.clone();
        assert_eq!(reason(&[], Trust::Degraded), Reason::OtherVariant);
        assert_eq!(timeline.ends(&[], Trust::Degraded, Some(&other))[0].other_variants.by_rank.as_ref(), Some(&other));
        let deeper = [stored(Tier::Device, None, &[1, 2])];
        assert_eq!(reason(&deeper, Trust::Degraded), Reason::Degraded(None), "the other variant has no longer match");
        assert_eq!(reason(&deeper, Trust::Exact), Reason::NeverSeen);
        assert_eq!(timeline.ends(&[], Trust::Cold, None)[0].reason, Reason::Cold);
    }
}
