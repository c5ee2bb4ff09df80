//! Why a rank's match ends where it does: from what it holds and what happened to it, nothing else.

use flash_indexer_core::{DpRank, LocalHash, SequenceHash, Tier, WorkerRank};
use flash_indexer_wire::{AdapterSalt, ClearReason};

use super::Subject;
use super::loss::{Clear, Loss, Removal};
use super::matched::{ExplainedMatch, GroupShortfall};
use super::timeline::BlockTimeline;
use super::walk::{Names, Piece, Walk};
use flash_indexer_types::ClearCause;
use flash_indexer_types::Doubt;
use flash_indexer_types::InstanceId;
use flash_indexer_types::Ordinal;
use flash_indexer_types::Trust;

/// Where a match ends, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// Position of the first block that does not match, counted from zero; behind the last block where
    /// all of them match.
    pub position: usize,
    /// That block's content.
    pub local: Option<LocalHash>,
    /// Its name, if any rank knows it or has lately known it.
    pub sequence: Option<SequenceHash>,
    /// Why the match ends there.
    pub reason: Reason,
    /// What of the rank is missing after the last thing that is known of the block. None for a block that the rank holds.
    pub doubt: Option<Doubt>,
    /// Where more of the same tokens is held under another adapter or salt, whatever the reason. None for a block that
    /// the rank holds.
    pub elsewhere: HeldUnderOtherVariants,
}

/// Why a block does not match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// There is no such block: the whole prompt is held.
    WholePrompt,
    /// It is held, but in this tier only.
    OtherTier(Tier),
    /// It is held in the indexed cache group of a hybrid model, and others cannot use that.
    CacheGroups(GroupShortfall),
    /// It is not held, and blocks behind it are.
    Hole {
        /// Blocks that are held behind the missing one.
        behind: HeldBehindGap,
        /// When the missing block was removed, if that is remembered.
        removed: Option<Removal>,
    },
    /// The rank held it, and it went as is known.
    Lost(Loss),
    /// The rank holds more of the same tokens under another adapter or salt: [`End::elsewhere`].
    OtherVariant,
    /// The rank has not said anything yet.
    Cold,
    /// The rank may hold it: the index had no room for all that the rank holds.
    NoRoom,
    /// The rank may hold it, because messages were missed or could not be read: after it went as is known, if that is
    /// known.
    Degraded(Option<Loss>),
    /// The rank has not told of it as far as is remembered.
    NeverSeen,
}

impl Loss {
    /// Whether the block was forgotten because messages are missing: then the loss says so itself.
    fn is_by_missing_messages(self) -> bool {
        let Self::Cleared(Clear { cause, .. }) = self else { return false };
        matches!(cause, ClearCause::Stream(ClearReason::TooMuchLost | ClearReason::EpochUnknown))
    }
}

/// Blocks of the prompt that are held behind one that is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldBehindGap {
    /// Position of the first one.
    pub position: usize,
    /// How many follow each other from there.
    pub blocks: usize,
}

/// Where the same tokens are held under another adapter or salt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeldUnderOtherVariants {
    /// By the rank itself.
    pub own: Option<OtherVariant>,
    /// By the rank of the fleet that holds most of them.
    pub fleet: Option<(InstanceId, DpRank, OtherVariant)>,
}

/// The same tokens under another adapter or salt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherVariant {
    /// The adapter and the salt.
    pub space: AdapterSalt,
    /// Leading blocks that are held of it.
    pub blocks: usize,
}

impl HeldUnderOtherVariants {
    /// Only what goes further than the first `blocks` blocks.
    fn beyond(self, blocks: usize) -> Self {
        let Self { own, fleet } = self;
        Self { own: own.filter(|own| own.blocks > blocks), fleet: fleet.filter(|(.., fleet)| fleet.blocks > blocks) }
    }
}

/// A question, and what is known besides what the rank itself holds.
pub(super) struct ExplainContext<'a> {
    pub(super) query: &'a [LocalHash],
    /// Names that any rank has for the query's blocks.
    pub(super) names: &'a Names,
    pub(super) past: &'a BlockTimeline,
}

/// Where a rank's match ends in device memory and, if that is further on, altogether.
pub(super) fn ends(
    asked: &ExplainContext<'_>,
    subject: &Subject,
    ExplainedMatch { walk, lacks }: &ExplainedMatch,
) -> Vec<End> {
    let held = HeldUnderOtherVariants::default;
    let local = |position: usize| asked.query.get(position).copied();
    let cut_off = |lack: &GroupShortfall| {
        let position = lack.usable;
        End {
            position,
            local: local(position),
            sequence: lack.sequence,
            reason: Reason::CacheGroups(lack.clone()),
            doubt: None,
            elsewhere: held(),
        }
    };
    let mut ends = Vec::new();
    if let Some(lack) = &lacks[Tier::Device] {
        ends.push(cut_off(lack));
    } else if let Some(slower) = walk.slower {
        let position = walk.blocks[Tier::Device];
        let reason = Reason::OtherTier(slower.tier);
        ends.push(End {
            position,
            local: local(position),
            sequence: Some(slower.sequence),
            reason,
            doubt: None,
            elsewhere: held(),
        });
    }
    if let Some(lack) = &lacks[Tier::External] {
        let is_told = ends.iter().any(|end: &End| end.position == lack.usable && lacks[Tier::Device].is_some());
        ends.extend((!is_told).then(|| cut_off(lack)));
        return ends;
    }
    let position = walk.longest();
    let Some(missing) = local(position) else {
        if ends.is_empty() {
            ends.push(End {
                position,
                local: None,
                sequence: None,
                reason: Reason::WholePrompt,
                doubt: None,
                elsewhere: held(),
            });
        }
        return ends;
    };
    let names = Missing::of(asked, subject.rank, walk, missing);
    let elsewhere = subject.elsewhere.clone().beyond(position);
    let doubt = subject.doubt.as_ref().filter(|doubt| names.lost_at().is_none_or(|lost| doubt.follows(lost))).cloned();
    let past =
        names.reason(doubt.as_ref()).filter(|past| !subject.is_partial || *past != Reason::Lost(Loss::Unremembered));
    let reason = past.or_else(|| elsewhere.own.as_ref().map(|_| Reason::OtherVariant));
    let reason = reason.unwrap_or(match subject.trust {
        Trust::Cold => Reason::Cold,
        Trust::Recovering | Trust::Degraded => Reason::Degraded(None),
        Trust::Exact if subject.is_partial => Reason::NoRoom,
        Trust::Exact => Reason::NeverSeen,
    });
    ends.push(End { position, local: Some(missing), sequence: names.sequence(), reason, doubt, elsewhere });
    ends
}

/// A block that a rank does not hold.
struct Missing {
    /// The name that the rank itself had for it.
    own: Option<SequenceHash>,
    /// Any name of it.
    any: Option<SequenceHash>,
    behind: Option<Piece>,
    /// How the last name of the block went, and the event that took it.
    loss: Option<(Ordinal, Loss)>,
}

impl Missing {
    fn of(asked: &ExplainContext<'_>, rank: WorkerRank, walk: &Walk, local: LocalHash) -> Self {
        let position = walk.longest();
        let known_at = |position: usize| asked.names.get(position).map_or(&[][..], Vec::as_slice);
        // Content may repeat: a piece belongs to this prompt if its parent is the prompt's block, as far
        // as anybody knows that block's name.
        let belongs = |piece: &&Piece| {
            let names = known_at(piece.position - 1);
            names.is_empty() || names.contains(&piece.parent)
        };
        let behind = walk.pieces.iter().find(belongs).copied();
        let next = behind.filter(|piece| piece.position == position + 1).map(|piece| piece.parent);
        let names = || next.into_iter().chain(known_at(position).iter().copied());
        // A rank can have several names for one block: the block was held as long as the last of them was.
        let losses = names().filter_map(|name| {
            let (ordinal, loss): (Ordinal, Loss) = asked.past.loss(rank, name, local)?;
            Some((ordinal, name, loss))
        });
        let last = losses.max_by_key(|&(ordinal, ..)| ordinal);
        Self {
            own: next.or(last.map(|(_, name, _)| name)),
            any: names().next(),
            behind,
            loss: last.map(|(ordinal, _, loss)| (ordinal, loss)),
        }
    }

    fn sequence(&self) -> Option<SequenceHash> {
        self.own.or(self.any)
    }

    /// The event that took the block, if that is remembered.
    fn lost_at(&self) -> Option<Ordinal> {
        self.loss.map(|(ordinal, _)| ordinal)
    }

    /// What the past says, if it does not leave a `doubt`.
    fn reason(&self, doubt: Option<&Doubt>) -> Option<Reason> {
        if let Some(Piece { position, blocks, .. }) = self.behind {
            let removed = match self.loss {
                Some((_, Loss::Removed(removal))) => Some(removal),
                _ => None,
            };
            return Some(Reason::Hole { behind: HeldBehindGap { position, blocks }, removed });
        }
        let (_, loss) = self.loss?;
        Some(if doubt.is_some() && !loss.is_by_missing_messages() {
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
    use flash_indexer_core::{Applied, Block, BlockEvent, RemovedCopies, WorkerId};

    use flash_indexer_types::ClearCause;

    use super::super::history::History;
    use super::*;

    const RANK: WorkerRank = WorkerRank { worker: WorkerId(1), dp_rank: DpRank(0) };
    const OTHER: WorkerRank = WorkerRank { worker: WorkerId(2), dp_rank: DpRank(0) };

    /// A rank and what happened to it, second by second.
    struct Rank {
        start: Instant,
        history: History,
        seconds: u64,
    }

    impl Rank {
        fn new() -> Self {
            Self { start: Instant::now(), history: History::new(100), seconds: 0 }
        }

        fn at(&self, second: u64) -> Instant {
            self.start + Duration::from_secs(second)
        }

        fn did(&mut self, rank: WorkerRank, event: &BlockEvent) {
            self.seconds += 1;
            self.history.note(rank, event, &Applied::default(), self.at(self.seconds));
        }

        /// The ends of prompt 1, 2, 3 for a rank that holds `dump`.
        fn ends(&self, dump: &[BlockEvent], trust: Trust, elsewhere: Option<&OtherVariant>) -> Vec<End> {
            let query = [10, 20, 30].map(LocalHash);
            let (past, mut names) = (BlockTimeline::new(&self.history.remembered()), Names::new());
            let walk = Walk::new(&query, dump, &mut names);
            past.add_names(&query, &mut names);
            let found = ExplainedMatch { walk, ..ExplainedMatch::default() };
            let elsewhere = HeldUnderOtherVariants { own: elsewhere.cloned(), fleet: None };
            let subject = Subject { trust, elsewhere, ..subject() };
            ends(&ExplainContext { query: &query, names: &names, past: &past }, &subject, &found)
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
            doubt: None,
            is_partial: false,
            elsewhere: HeldUnderOtherVariants::default(),
        }
    }

    fn stored(tier: Tier, parent: Option<u64>, names: &[u64]) -> BlockEvent {
        let blocks = names.iter().map(|&name| Block { sequence: SequenceHash(name), local: LocalHash(10 * name) });
        BlockEvent::Stored { tier, parent: parent.map(SequenceHash), blocks: blocks.collect(), copies: 1 }
    }

    fn removed(name: u64) -> BlockEvent {
        BlockEvent::Removed { tier: Tier::Device, blocks: vec![SequenceHash(name)], copies: RemovedCopies::One }
    }

    #[test]
    fn a_whole_prompt_and_one_in_a_slower_tier() {
        let rank = Rank::new();
        let whole = [stored(Tier::Device, None, &[1, 2, 3])];
        assert_eq!(rank.reason(&whole), Reason::WholePrompt);
        let offloaded = [stored(Tier::Device, None, &[1]), stored(Tier::Disk, Some(1), &[2, 3])];
        let end = End {
            position: 1,
            local: Some(LocalHash(20)),
            sequence: Some(SequenceHash(2)),
            reason: Reason::OtherTier(Tier::Disk),
            doubt: None,
            elsewhere: HeldUnderOtherVariants::default(),
        };
        assert_eq!(rank.ends(&offloaded, Trust::Exact, None), std::slice::from_ref(&end));
        let ends =
            rank.ends(&[stored(Tier::Device, None, &[1]), stored(Tier::Disk, Some(1), &[2])], Trust::Exact, None);
        assert_eq!((&ends[0], ends[1].position, &ends[1].reason), (&end, 2, &Reason::NeverSeen));
    }

    #[test]
    fn a_removed_block_is_told_with_its_time_also_when_others_lie_behind_it() {
        let mut rank = Rank::new();
        rank.did(RANK, &stored(Tier::Device, None, &[1, 2, 3]));
        rank.did(RANK, &removed(3));
        rank.did(OTHER, &removed(2));
        let removal = Removal { at: rank.at(2), tier: Tier::Device };
        let ends = rank.ends(&[stored(Tier::Device, None, &[1, 2])], Trust::Exact, None);
        assert_eq!((ends[0].sequence, &ends[0].reason), (Some(SequenceHash(3)), &Reason::Lost(Loss::Removed(removal))));

        rank.did(RANK, &removed(2));
        let removed = Some(Removal { at: rank.at(4), ..removal });
        let behind = HeldBehindGap { position: 2, blocks: 1 };
        let dump = [stored(Tier::Device, None, &[1]), stored(Tier::Device, Some(2), &[3])];
        assert_eq!(rank.reason(&dump), Reason::Hole { behind, removed });
        assert_eq!(
            Rank::new().reason(&dump),
            Reason::Hole { behind, removed: None },
            "its name is known by what follows"
        );
        assert_eq!(
            rank.reason(&[stored(Tier::Device, None, &[1])]),
            Reason::Lost(Loss::Removed(Removal { at: rank.at(4), ..removal }))
        );
    }

    #[test]
    fn the_same_content_elsewhere_is_no_hole() {
        let mut rank = Rank::new();
        // The prompt's second block is called 2; block 3 of this rank follows another one.
        rank.did(OTHER, &stored(Tier::Device, None, &[1, 2]));
        assert_eq!(
            rank.reason(&[stored(Tier::Device, None, &[1]), stored(Tier::Device, Some(77), &[3])]),
            Reason::NeverSeen
        );
    }

    #[test]
    fn what_a_clear_took_is_told_and_what_came_after_it_is_not() {
        let mut rank = Rank::new();
        rank.did(RANK, &stored(Tier::Device, None, &[1]));
        rank.did(RANK, &BlockEvent::Cleared);
        let cleared = Clear { at: rank.at(2), cause: ClearCause::Engine };
        assert_eq!(rank.reason(&[]), Reason::Lost(Loss::Cleared(cleared)));
        rank.did(RANK, &stored(Tier::Device, None, &[1]));
        assert_eq!(rank.reason(&[]), Reason::Lost(Loss::Unremembered), "how it went is not remembered");
        rank.did(RANK, &removed(1));
        assert_eq!(rank.reason(&[]), Reason::Lost(Loss::Removed(Removal { at: rank.at(4), tier: Tier::Device })));
    }

    #[test]
    fn without_a_past_other_spaces_and_trust_are_the_reasons() {
        let rank = Rank::new();
        let space = AdapterSalt::new(Some("a"), Salt::new("s"));
        let elsewhere = OtherVariant { space, blocks: 2 };
        let reason = |dump: &[BlockEvent], trust| rank.ends(dump, trust, Some(&elsewhere))[0].reason.clone();
        assert_eq!(reason(&[], Trust::Degraded), Reason::OtherVariant);
        assert_eq!(rank.ends(&[], Trust::Degraded, Some(&elsewhere))[0].elsewhere.own.as_ref(), Some(&elsewhere));
        let deeper = [stored(Tier::Device, None, &[1, 2])];
        assert_eq!(reason(&deeper, Trust::Degraded), Reason::Degraded(None), "what is elsewhere is no longer");
        assert_eq!(reason(&deeper, Trust::Exact), Reason::NeverSeen);
        assert_eq!(rank.ends(&[], Trust::Cold, None)[0].reason, Reason::Cold);
    }
}
