//! Trust states of the ranks of one stream, computed from what is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use flash_indexer_core::DpRank;
use flash_indexer_types::{LossReason, Ordinal, Trust, UnrepairedGap};
use flash_indexer_wire::{PendingReason, StreamTrust, TrustBasis};

/// Trust in a rank as of the last applied message.
type AppliedTrust = flash_indexer_wire::AppliedTrust<UnrepairedGap>;

/// Position of a loss: in its stream, and in the history of its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct LossPosition {
    /// The last message applied before it.
    pub(super) after: Option<u64>,
    /// The last event recorded before it.
    pub(super) since: Ordinal,
}

impl LossPosition {
    /// A loss at the position.
    fn loss(self, why: String) -> UnrepairedGap {
        UnrepairedGap { why, after: self.after, since: self.since }
    }
}

/// Blocks whose parent was never stored.
#[derive(Debug, Clone, Copy)]
struct WaitingBlocks {
    blocks: usize,
    /// Position at which the first of them was stored.
    position: LossPosition,
}

/// Reason why a rank is not exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TrustCause<'a> {
    /// Changes that will not arrive any more, with the reason.
    Lost(&'a str),
    /// Messages that may still arrive.
    Pending(PendingReason),
    /// Parents of this number of blocks, which may still be stored.
    Parents(usize),
}

impl fmt::Display for TrustCause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(why) => f.write_str(why),
            Self::Pending(pending) => pending.fmt(f),
            Self::Parents(blocks) => write!(f, "{blocks} {}", LossReason::Parents),
        }
    }
}

/// Trust states of the ranks below [`PackedTrust::RANKS`] of one stream, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PackedTrust(pub(super) u64);

impl PackedTrust {
    const BITS: u32 = 2;
    const RANKS: u32 = u64::BITS / Self::BITS;

    fn bits(trust: Trust) -> u64 {
        match trust {
            Trust::Exact => 0,
            Trust::Cold => 1,
            Trust::Recovering => 2,
            // A ledger has no approximate rank: the listener handles engines without events itself.
            Trust::Degraded | Trust::Approximate => 3,
        }
    }

    fn all(trust: Trust) -> Self {
        Self(Self::bits(trust) * (u64::MAX / 3))
    }

    fn set(&mut self, DpRank(rank): DpRank, trust: Trust) {
        if rank < Self::RANKS {
            let shift = rank * Self::BITS;
            self.0 = self.0 & !(3 << shift) | Self::bits(trust) << shift;
        }
    }

    /// None for a rank that does not fit into the word.
    pub(super) fn get(self, DpRank(rank): DpRank) -> Option<Trust> {
        let bits = (rank < Self::RANKS).then(|| self.0 >> (rank * Self::BITS) & 3)?;
        Some([Trust::Exact, Trust::Cold, Trust::Recovering, Trust::Degraded][bits as usize])
    }
}

/// Notices of one kind. The decoder receives a notice after the messages that were queued before it. Numbers count from 1.
#[derive(Debug, Default)]
struct Notices {
    sent: u64,
    /// The last notice that the decoder has received.
    received: u64,
    /// The last notice whose changes the writer has applied.
    acknowledged: u64,
}

/// Kind of a notice to the decoder of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoticeKind {
    /// Messages were dropped before the decoder received them.
    Dropped,
    /// The connection was lost.
    Disconnected,
}

/// Losses and pending messages of one stream, by rank.
///
/// A rank is exact while all of these hold: no change is lost (`stream`, `ranks`), no message is missing after the last applied
/// one (`pending`), the decoder has acknowledged all dropped messages and lost connections (`notices`), and the parent of every
/// block was stored (`waiting`).
#[derive(Debug)]
pub(super) struct TrustLedger {
    /// State of ranks without their own entry.
    stream: AppliedTrust,
    /// Ranks that were cleared, or lost changes, since `stream` was set.
    ranks: BTreeMap<DpRank, AppliedTrust>,
    pending: Option<PendingReason>,
    /// Ranks that hold blocks whose parent was never stored.
    waiting: BTreeMap<DpRank, WaitingBlocks>,
    /// Notices of dropped messages and lost connections, by [`NoticeKind`].
    notices: [Notices; 2],
    /// Ranks that were registered again and whose decoder may still ignore them.
    resuming: BTreeSet<DpRank>,
    /// Ranks that batches of another stream of the instance name as well, with the listener of that stream.
    contested: BTreeSet<(DpRank, u64)>,
    /// Ranks that have blocks of another stream which are not removed yet, with the listener of that stream.
    displaced: BTreeSet<(DpRank, u64)>,
    /// Reason why no rank of the stream can ever be exact.
    never_exact: Option<&'static str>,
}

impl TrustLedger {
    /// Ledger of a stream without any message. `never_exact` is the reason why its ranks can never be exact, if there is one.
    pub(super) fn new(never_exact: Option<&'static str>) -> Self {
        Self {
            stream: AppliedTrust::Cold,
            ranks: BTreeMap::new(),
            pending: Some(PendingReason::FirstContact),
            waiting: BTreeMap::new(),
            notices: Default::default(),
            resuming: BTreeSet::new(),
            contested: BTreeSet::new(),
            displaced: BTreeSet::new(),
            never_exact,
        }
    }

    /// Records why no rank of the stream can be exact from now on. Returns whether it was not recorded before.
    pub(super) fn set_never_exact(&mut self, why: &'static str) -> bool {
        self.never_exact.replace(why) != Some(why)
    }

    /// Trust state of a rank, with the cause if it is not exact. Cost: one lookup.
    pub(super) fn rank_trust(&self, dp_rank: DpRank) -> (Trust, Option<TrustCause<'_>>) {
        if self.resuming.contains(&dp_rank) {
            return (Trust::Degraded, Some(TrustCause::Lost(LossReason::Resuming.as_str())));
        }
        if let Some(why) = self.contest_of(dp_rank) {
            return (Trust::Degraded, Some(TrustCause::Lost(why)));
        }
        self.trust_of(self.ranks.get(&dp_rank).unwrap_or(&self.stream), self.waiting(dp_rank))
    }

    fn contest_of(&self, dp_rank: DpRank) -> Option<&'static str> {
        let has = |ranks: &BTreeSet<_>| ranks.range((dp_rank, 0)..=(dp_rank, u64::MAX)).next().is_some();
        let contested = has(&self.contested).then_some(LossReason::RankConflict.as_str());
        contested.or_else(|| has(&self.displaced).then_some(LossReason::RankMoved.as_str()))
    }

    /// Records that batches of another stream name a rank.
    pub(super) fn record_rank_conflict(&mut self, dp_rank: DpRank, stream: u64) {
        self.contested.insert((dp_rank, stream));
    }

    /// Records that a rank has blocks of another stream, which will be removed.
    pub(super) fn record_rank_move(&mut self, dp_rank: DpRank, stream: u64) {
        self.displaced.insert((dp_rank, stream));
    }

    /// Records that all blocks of a rank were removed with those of another stream.
    pub(super) fn record_removal_after_move(&mut self, dp_rank: DpRank, stream: u64, position: LossPosition) {
        self.displaced.remove(&(dp_rank, stream));
        self.record_loss(Some(dp_rank), LossReason::RemovedAfterMove.to_string(), position);
    }

    /// Ends contests of ranks by streams.
    pub(super) fn end_rank_conflicts(&mut self, is_ended: impl Fn(DpRank, u64) -> bool) {
        self.contested.retain(|&(dp_rank, stream)| !is_ended(dp_rank, stream));
    }

    /// Trust state of a rank, from its last recorded state and its number of blocks without a parent.
    fn trust_of<'a>(&self, last: &'a AppliedTrust, waiting: usize) -> (Trust, Option<TrustCause<'a>>) {
        let degraded = |missing| (Trust::Degraded, Some(missing));
        match last.with_pending(self.missing_later()) {
            TrustBasis::Lost(gap) => degraded(TrustCause::Lost(&gap.why)),
            _ if self.has_open(NoticeKind::Dropped) => degraded(TrustCause::Lost(LossReason::Dropped.as_str())),
            TrustBasis::Recovering(pending) => (Trust::Recovering, Some(TrustCause::Pending(pending))),
            TrustBasis::Degraded(pending) => degraded(TrustCause::Pending(pending)),
            TrustBasis::Cold => (Trust::Cold, None),
            TrustBasis::Exact => match (waiting, self.never_exact) {
                (0, None) => (Trust::Exact, None),
                (0, Some(why)) => degraded(TrustCause::Lost(why)),
                (blocks, _) => degraded(TrustCause::Parents(blocks)),
            },
        }
    }

    /// Trust states of the first ranks, for readers without a lock. Costs at most [`PackedTrust::RANKS`] lookups, and one for
    /// each rank that another stream had or names.
    pub(super) fn of_first_ranks(&self) -> PackedTrust {
        let mut ranks = PackedTrust::all(self.trust_of(&self.stream, 0).0);
        let first = ..DpRank(PackedTrust::RANKS);
        let of_their_own = self.ranks.range(first).map(|(rank, _)| rank);
        let waiting = self.waiting.range(first).map(|(rank, _)| rank);
        let contested = self.contested.iter().chain(&self.displaced).map(|(rank, _)| rank);
        for &dp_rank in of_their_own.chain(waiting).chain(self.resuming.range(first)).chain(contested) {
            ranks.set(dp_rank, self.rank_trust(dp_rank).0);
        }
        ranks
    }

    /// Trust state of a rank as of the last applied message. Messages missing after it do not count.
    pub(super) fn last_trust(&self, dp_rank: DpRank) -> Trust {
        match self.ranks.get(&dp_rank).unwrap_or(&self.stream) {
            _ if self.contest_of(dp_rank).is_some() => Trust::Degraded,
            AppliedTrust::Cold => Trust::Cold,
            AppliedTrust::Exact if self.never_exact.is_none() && self.waiting(dp_rank) == 0 => Trust::Exact,
            AppliedTrust::Exact | AppliedTrust::Lost(_) => Trust::Degraded,
        }
    }

    /// Trust state, as of the last applied message, of ranks that no message has named yet.
    pub(super) fn last_trust_of_unlisted(&self) -> Trust {
        match self.stream {
            AppliedTrust::Cold => Trust::Cold,
            AppliedTrust::Exact => Trust::Exact,
            AppliedTrust::Lost(_) => Trust::Degraded,
        }
    }

    /// The latest loss of a rank that is not exact, with its position. `last` is the last applied message. None if the
    /// rank is not exact because its events lack fields.
    pub(super) fn unrepaired_gap(&self, dp_rank: DpRank, last: Option<u64>) -> Option<UnrepairedGap> {
        let (Trust::Recovering | Trust::Degraded, _) = self.rank_trust(dp_rank) else { return None };
        if self.has_open(NoticeKind::Dropped) {
            return Some(UnrepairedGap::after(LossReason::Dropped.to_string(), last));
        }
        if let Some(why) = self.contest_of(dp_rank) {
            return Some(UnrepairedGap::after(why.to_owned(), last));
        }
        match (self.missing_later(), self.ranks.get(&dp_rank).unwrap_or(&self.stream)) {
            (None | Some(PendingReason::FirstContact), AppliedTrust::Lost(gap)) => Some(gap.clone()),
            (Some(pending), _) => Some(UnrepairedGap::after(pending.to_string(), last)),
            (None, AppliedTrust::Cold | AppliedTrust::Exact) => {
                let waiting = self.waiting.get(&dp_rank)?;
                Some(waiting.position.loss(TrustCause::Parents(waiting.blocks).to_string()))
            }
        }
    }

    /// Messages that are missing after the last applied one, and may still arrive.
    pub(super) fn pending(&self) -> Option<PendingReason> {
        self.pending
    }

    /// Why messages after the last applied one may be missing. A lost connection is a reason even before the decoder has
    /// handled the messages that were received over it.
    fn missing_later(&self) -> Option<PendingReason> {
        self.pending.or_else(|| self.has_open(NoticeKind::Disconnected).then_some(PendingReason::Unverified))
    }

    /// Whether messages after the last applied one are lost, or will be found lost.
    pub(super) fn has_lost_tail(&self) -> bool {
        self.pending == Some(PendingReason::TailLost) || self.has_open(NoticeKind::Dropped)
    }

    pub(super) fn set_pending(&mut self, pending: Option<PendingReason>) {
        self.pending = pending;
    }

    /// Sets the trust state of all ranks.
    pub(super) fn set_all(&mut self, trust: StreamTrust, position: LossPosition) {
        self.ranks.clear();
        self.stream = AppliedTrust::of(trust, |why| position.loss(why));
    }

    /// Records a lost change that no replay can return, of one rank or of any rank of the stream.
    pub(super) fn record_loss(&mut self, dp_rank: Option<DpRank>, why: String, position: LossPosition) {
        let lost = AppliedTrust::Lost(position.loss(why));
        match dp_rank {
            Some(dp_rank) => drop(self.ranks.insert(dp_rank, lost)),
            None => {
                self.ranks.clear();
                self.stream = lost;
            }
        }
    }

    /// Records a lost change of ranks that are not listed. Such a rank is degraded when it is registered later.
    pub(super) fn record_loss_of_unlisted(&mut self, listed: Vec<DpRank>, why: String, position: LossPosition) {
        if let AppliedTrust::Lost(_) = self.stream {
            return;
        }
        for dp_rank in listed {
            self.ranks.entry(dp_rank).or_insert_with(|| self.stream.clone());
        }
        self.stream = AppliedTrust::Lost(position.loss(why));
    }

    /// Blocks of a rank that follow a parent that was never stored.
    pub(super) fn waiting(&self, dp_rank: DpRank) -> usize {
        self.waiting.get(&dp_rank).map_or(0, |waiting| waiting.blocks)
    }

    /// Sets the number of blocks of a rank that follow a parent that was never stored. Returns whether any rank has one.
    pub(super) fn set_waiting(&mut self, dp_rank: DpRank, blocks: usize, position: LossPosition) -> bool {
        if blocks == 0 {
            self.waiting.remove(&dp_rank);
        } else {
            self.waiting.entry(dp_rank).or_insert(WaitingBlocks { blocks, position }).blocks = blocks;
        }
        !self.waiting.is_empty()
    }

    /// Records that the cache of one rank is empty: earlier losses no longer count.
    pub(super) fn cleared(&mut self, dp_rank: DpRank) {
        self.ranks.insert(dp_rank, AppliedTrust::Exact);
    }

    /// Degrades a rank until its decoder has resumed it ([`TrustLedger::resumed`]).
    pub(super) fn begin_resume(&mut self, dp_rank: DpRank) {
        self.resuming.insert(dp_rank);
    }

    /// Records that the decoder applies the events of a rank again, and has recorded the skipped ones.
    pub(super) fn resumed(&mut self, dp_rank: DpRank) {
        self.resuming.remove(&dp_rank);
    }

    /// Records that the stream starts over: its decoder no longer ignores any rank.
    pub(super) fn restarted(&mut self) {
        self.resuming.clear();
    }

    /// Whether the changes because of a notice of this kind are not applied yet.
    fn has_open(&self, kind: NoticeKind) -> bool {
        let notices = &self.notices[kind as usize];
        notices.sent > notices.acknowledged
    }

    /// Records that a notice is sent to the decoder. Returns its number.
    pub(super) fn send_notice(&mut self, kind: NoticeKind) -> u64 {
        let notices = &mut self.notices[kind as usize];
        notices.sent += 1;
        notices.sent
    }

    /// Records that the decoder has received a notice.
    pub(super) fn receive_notice(&mut self, kind: NoticeKind, number: u64) {
        let notices = &mut self.notices[kind as usize];
        notices.received = notices.received.max(number);
    }

    /// The last notice of a kind that the decoder has received.
    pub(super) fn last_notice(&self, kind: NoticeKind) -> u64 {
        self.notices[kind as usize].received
    }

    /// Acknowledges the notices up to this one: everything that is missing because of them is recorded.
    pub(super) fn acknowledge_notices(&mut self, kind: NoticeKind, number: u64) {
        let notices = &mut self.notices[kind as usize];
        notices.acknowledged = notices.acknowledged.max(number);
    }

    /// Runs of dropped messages so far.
    pub(super) fn drop_runs(&self) -> u64 {
        self.notices[NoticeKind::Dropped as usize].sent
    }
}

#[cfg(test)]
mod tests {
    use flash_indexer_wire::DegradedReason;

    use super::*;

    const RANK: DpRank = DpRank(0);
    const AT_START: LossPosition = LossPosition { after: None, since: 0 };

    #[test]
    fn a_rank_is_exact_only_while_nothing_is_missing() {
        let mut ledger = TrustLedger::new(None);
        let trust = |ledger: &TrustLedger| ledger.rank_trust(RANK).0;
        assert_eq!(trust(&ledger), Trust::Cold);
        ledger.set_pending(Some(PendingReason::Recovering { end: None }));
        ledger.set_all(StreamTrust::Exact, AT_START);
        assert_eq!((trust(&ledger), ledger.last_trust(RANK)), (Trust::Recovering, Trust::Exact));
        ledger.set_pending(None);
        assert_eq!(trust(&ledger), Trust::Exact);
        let run = ledger.send_notice(NoticeKind::Dropped);
        assert_eq!(trust(&ledger), Trust::Degraded, "at once");
        let later = ledger.send_notice(NoticeKind::Dropped);
        ledger.set_pending(Some(PendingReason::TailLost));
        ledger.acknowledge_notices(NoticeKind::Dropped, run);
        ledger.set_pending(None);
        assert_eq!(trust(&ledger), Trust::Degraded, "a later drop is not acknowledged yet");
        ledger.acknowledge_notices(NoticeKind::Dropped, later);
        assert_eq!(trust(&ledger), Trust::Exact);
        ledger.record_loss(Some(RANK), "an event could not be read".to_owned(), AT_START);
        assert_eq!((trust(&ledger), ledger.rank_trust(DpRank(1)).0), (Trust::Degraded, Trust::Exact));
        ledger.set_pending(Some(PendingReason::Recovering { end: Some(9) }));
        ledger.cleared(RANK);
        assert_eq!(trust(&ledger), Trust::Recovering, "a clear does not show what comes after it");
        ledger.set_pending(None);
        assert_eq!(ledger.rank_trust(RANK), (Trust::Exact, None));
        ledger.set_pending(Some(PendingReason::FirstContact));
        assert_eq!(trust(&ledger), Trust::Degraded, "restored, and the engine was not reached yet");
        let gap = ledger.unrepaired_gap(RANK, Some(7));
        assert_eq!(gap, Some(UnrepairedGap::after(PendingReason::FirstContact.to_string(), Some(7))));
        ledger.set_pending(None);
        ledger.set_all(StreamTrust::Degraded(DegradedReason::Unverified), AT_START);
        assert_eq!(trust(&ledger), Trust::Degraded);
    }

    #[test]
    fn a_rank_is_degraded_from_a_lost_connection_on() {
        let mut ledger = TrustLedger::new(None);
        let lost = ledger.send_notice(NoticeKind::Disconnected);
        assert_eq!(ledger.rank_trust(RANK).0, Trust::Cold, "it holds nothing that could be wrong");
        ledger.acknowledge_notices(NoticeKind::Disconnected, lost);
        ledger.set_pending(None);
        ledger.set_all(StreamTrust::Exact, AT_START);
        let lost = ledger.send_notice(NoticeKind::Disconnected);
        assert_eq!(ledger.rank_trust(RANK), (Trust::Degraded, Some(TrustCause::Pending(PendingReason::Unverified))));
        assert_eq!(
            ledger.unrepaired_gap(RANK, Some(7)),
            Some(UnrepairedGap::after(PendingReason::Unverified.to_string(), Some(7)))
        );
        ledger.set_pending(Some(PendingReason::Recovering { end: None }));
        assert_eq!(ledger.rank_trust(RANK).0, Trust::Recovering, "its decoder is behind");
        ledger.set_pending(None);
        ledger.cleared(RANK);
        assert_eq!(
            ledger.rank_trust(RANK).0,
            Trust::Degraded,
            "a clear before the loss does not show what comes after it"
        );
        ledger.acknowledge_notices(NoticeKind::Disconnected, lost);
        assert_eq!(ledger.rank_trust(RANK), (Trust::Exact, None));
    }

    #[test]
    fn a_contested_rank_is_degraded_until_the_other_stream_ends() {
        let mut ledger = TrustLedger::new(None);
        ledger.set_pending(None);
        ledger.set_all(StreamTrust::Exact, AT_START);
        ledger.record_rank_conflict(RANK, 7);
        ledger.record_rank_conflict(RANK, 8);
        ledger.cleared(RANK);
        ledger.restarted();
        assert_eq!(
            ledger.rank_trust(RANK),
            (Trust::Degraded, Some(TrustCause::Lost(LossReason::RankConflict.as_str())))
        );
        assert_eq!((ledger.last_trust(RANK), ledger.rank_trust(DpRank(1)).0), (Trust::Degraded, Trust::Exact));
        assert_eq!(
            ledger.unrepaired_gap(RANK, Some(3)),
            Some(UnrepairedGap::after(LossReason::RankConflict.to_string(), Some(3)))
        );
        ledger.end_rank_conflicts(|_, stream| stream == 7);
        assert_eq!(ledger.rank_trust(RANK).0, Trust::Degraded, "another stream names it still");
        ledger.end_rank_conflicts(|_, stream| stream == 8);
        assert_eq!(ledger.rank_trust(RANK), (Trust::Exact, None));
    }

    #[test]
    fn a_displaced_rank_is_degraded_until_the_blocks_of_its_former_stream_are_removed_and_its_cache_is_cleared() {
        let mut ledger = TrustLedger::new(None);
        ledger.set_pending(None);
        ledger.set_all(StreamTrust::Exact, AT_START);
        ledger.record_rank_move(RANK, 7);
        for _ in 0..2 {
            assert_eq!(
                ledger.rank_trust(RANK),
                (Trust::Degraded, Some(TrustCause::Lost(LossReason::RankMoved.as_str())))
            );
            assert_eq!(
                (ledger.last_trust(RANK), ledger.of_first_ranks().get(RANK)),
                (Trust::Degraded, Some(Trust::Degraded))
            );
            // A clear, an epoch or the end of the former stream does not remove its blocks.
            ledger.cleared(RANK);
            ledger.set_all(StreamTrust::Exact, AT_START);
            ledger.end_rank_conflicts(|_, _| true);
        }
        ledger.record_removal_after_move(RANK, 7, AT_START);
        assert_eq!(
            ledger.rank_trust(RANK),
            (Trust::Degraded, Some(TrustCause::Lost(LossReason::RemovedAfterMove.as_str())))
        );
        ledger.cleared(RANK);
        assert_eq!(ledger.rank_trust(RANK), (Trust::Exact, None));
    }

    #[test]
    fn a_rank_that_is_registered_again_is_degraded_until_its_decoder_has_resumed_it() {
        let mut ledger = TrustLedger::new(None);
        ledger.set_pending(None);
        ledger.set_all(StreamTrust::Exact, AT_START);
        ledger.begin_resume(RANK);
        ledger.set_all(StreamTrust::Exact, AT_START);
        assert_eq!((ledger.rank_trust(RANK).0, ledger.rank_trust(DpRank(1)).0), (Trust::Degraded, Trust::Exact));
        assert_eq!(ledger.of_first_ranks().get(RANK), Some(Trust::Degraded));
        ledger.resumed(RANK);
        assert_eq!(ledger.rank_trust(RANK).0, Trust::Exact);
        ledger.begin_resume(RANK);
        ledger.restarted();
        assert_eq!(ledger.rank_trust(RANK).0, Trust::Exact);
    }

    #[test]
    fn ranks_that_are_not_listed_have_lost_what_they_were_refused() {
        let mut ledger = TrustLedger::new(None);
        ledger.set_pending(None);
        ledger.set_all(StreamTrust::Exact, AT_START);
        let (listed, other) = (RANK, DpRank(7));
        ledger.record_loss_of_unlisted(vec![listed], "refused".to_owned(), AT_START);
        assert_eq!((ledger.rank_trust(listed).0, ledger.rank_trust(other).0), (Trust::Exact, Trust::Degraded));
        ledger.cleared(other);
        ledger.record_loss_of_unlisted(vec![listed], "refused".to_owned(), AT_START);
        assert_eq!((ledger.rank_trust(other).0, ledger.rank_trust(DpRank(8)).0), (Trust::Exact, Trust::Degraded));
        ledger.set_all(StreamTrust::Exact, AT_START);
        assert_eq!(ledger.rank_trust(other).0, Trust::Exact, "a new epoch");
    }

    #[test]
    fn a_stream_whose_events_lack_something_is_never_exact() {
        let mut ledger = TrustLedger::new(Some("extra keys"));
        assert_eq!(ledger.rank_trust(RANK).0, Trust::Cold);
        ledger.set_pending(None);
        ledger.set_all(StreamTrust::Exact, AT_START);
        assert_eq!(ledger.rank_trust(RANK), (Trust::Degraded, Some(TrustCause::Lost("extra keys"))));
        ledger.cleared(RANK);
        assert_eq!(ledger.rank_trust(RANK).0, Trust::Degraded);
    }
}
