//! Comparison of one rank with the same rank of a peer: the message at which both sides digest it, and the outcome of the digests.

use std::time::{Duration, Instant};

use flash_indexer_snapshot::{RankRecord, StreamRecord};
use flash_indexer_types::{RankId, Trust};

use super::DIGESTS_MAX;

/// Interval between the two samples from which the rate of a stream is estimated.
pub(super) const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);
/// Lead of the message at which both sides digest. Both sides must receive the request before that message.
const LEAD: Duration = Duration::from_millis(500);
/// Ranks, each of a different instance, that are compared with a peer concurrently. A quarter of a peer's limit of digests leaves room for
/// other replicas.
pub(super) const COMPARED_AT_ONCE_MAX: usize = DIGESTS_MAX / 4;
/// Time that a digest takes on the rank's writer thread for each block.
const DIGEST_TIME_PER_BLOCK: Duration = Duration::from_nanos(100);
/// All comparisons together take at most one part in this number of a writer's time.
const WRITER_SHARE: u32 = 20;
/// Longest pause of a comparing thread after a large rank.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Position of a rank's stream, as one side reports it.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReportedPosition {
    /// Last sequence number received.
    pub(super) last: Option<u64>,
    pub(super) trust: Trust,
}

/// Rank that both sides listen to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate<'c> {
    pub(super) rank: &'c RankId,
    /// Positions on both sides when the comparison of all ranks began.
    pub(super) our: ReportedPosition,
    pub(super) their: ReportedPosition,
    /// Last sequence number here at `sampled_at`, one [`SAMPLE_INTERVAL`] before.
    pub(super) earlier: Option<u64>,
    pub(super) sampled_at: Instant,
}

impl Candidate<'_> {
    /// Sequence number that both sides reach soon and neither has reached yet; none if one side has received nothing.
    ///
    /// It is ahead of the last one here, `now`, by the messages expected within [`LEAD`] at the rate during `elapsed`, and
    /// by the peer's lead.
    pub(super) fn digest_sequence(&self, now: u64, elapsed: Duration) -> Option<u64> {
        let (our_last, their_last) = (self.our.last?, self.their.last?);
        let received = self.earlier.map_or(0, |earlier| now.saturating_sub(earlier));
        let ahead = u128::from(received) * LEAD.as_millis() / elapsed.as_millis().max(1);
        let peer_ahead = their_last.saturating_sub(our_last);
        Some(now.saturating_add(peer_ahead).saturating_add(u64::try_from(ahead).unwrap_or(u64::MAX)))
    }
}

/// Pause of a comparing thread, from the start of a comparison of this number of blocks.
pub(super) fn pause_after(blocks: u64) -> Duration {
    let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
    (DIGEST_TIME_PER_BLOCK * WRITER_SHARE * COMPARED_AT_ONCE_MAX as u32).saturating_mul(blocks).min(PAUSE_MAX)
}

flash_indexer_types::named_enum! {
    /// Outcome of the comparison of one rank.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum Outcome {
        /// Both sides hold the same blocks.
        Equal = "equal",
        /// No message was digested on both sides, one side has received nothing, or only this side is exact: the peer's own
        /// check repairs the peer.
        NotCompared = "not_compared",
        /// The sides follow different epochs of the engine.
        OtherEpoch = "other_epoch",
        /// Only the peer is exact, at the same message of the same epoch.
        Worse = "worse",
        /// The sides differ, and neither is exact.
        Drift = "drift",
        /// The sides differ, and both are exact.
        Dispute = "dispute",
    }
}

/// Compares two digests of one rank.
pub(super) fn compare_digests(ours: &RankRecord, theirs: &RankRecord) -> Outcome {
    let (Some(our), Some(their)) = (ours.stream, theirs.stream) else { return Outcome::NotCompared };
    let is_exact = |stream: StreamRecord| stream.trust == Trust::Exact;
    let same_groups = match (&ours.groups, &theirs.groups) {
        (Some(ours), Some(theirs)) => Some(ours == theirs),
        // An older version reports no groups, and most models have no secondary groups.
        (ours, theirs) => ours.iter().chain(theirs).flatten().all(|group| group.holds.is_none()).then_some(true),
    };
    let same = match same_groups {
        None if ours.holds == theirs.holds => return Outcome::NotCompared,
        same_groups => ours.holds == theirs.holds && same_groups == Some(true),
    };
    match (our.cursor == their.cursor, same) {
        (false, _) => Outcome::OtherEpoch,
        // Only the peer is exact.
        (true, true) if is_exact(their) && !is_exact(our) => Outcome::Worse,
        (true, true) => Outcome::Equal,
        (true, false) if is_exact(our) && is_exact(their) => Outcome::Dispute,
        (true, false) if is_exact(their) => Outcome::Worse,
        // The peer was exact when its position was sampled, and no longer is.
        (true, false) if is_exact(our) => Outcome::NotCompared,
        (true, false) => Outcome::Drift,
    }
}

#[cfg(test)]
mod tests {
    use flash_indexer_core::{Block, DpRank, LocalHash, SequenceHash, Tier};
    use flash_indexer_snapshot::{CursorRecord, Tally};
    use flash_indexer_types::{InstanceId, ModelKey};

    use super::*;

    #[test]
    fn a_rank_is_digested_ahead_of_the_position_of_its_stream_when_its_turn_comes() {
        let rank = RankId { model: ModelKey::new("m", None), instance: InstanceId::number(1), dp_rank: DpRank(0) };
        let position = |last| ReportedPosition { last: Some(last), trust: Trust::Exact };
        let candidate = |our, their| Candidate {
            rank: &rank,
            our: position(our),
            their: position(their),
            earlier: Some(100),
            sampled_at: Instant::now(),
        };
        let s = Duration::from_secs;
        // 100 messages a second: half a second is 50 messages, at once and after a minute.
        assert_eq!(candidate(125, 125).digest_sequence(125, Duration::from_millis(250)), Some(175));
        assert_eq!(candidate(125, 125).digest_sequence(6_100, s(60)), Some(6_150));
        // An idle stream stays at its message; a slow one is digested at its last message.
        assert_eq!(candidate(100, 100).digest_sequence(100, s(60)), Some(100));
        assert_eq!(candidate(100, 100).digest_sequence(130, s(60)), Some(130));
        // A peer that was ahead of this replica is assumed to be still ahead.
        assert_eq!(candidate(100, 120).digest_sequence(100, s(1)), Some(120));
        let silent = Candidate { their: ReportedPosition { last: None, trust: Trust::Cold }, ..candidate(100, 100) };
        assert_eq!(silent.digest_sequence(100, s(1)), None);
    }

    #[test]
    fn a_peer_is_better_only_at_the_same_message_of_the_same_epoch() {
        let digest = |trust, payload_digest, blocks: &[(u64, u64)]| {
            let mut holds = Tally::default();
            let blocks: Vec<Block> = blocks
                .iter()
                .map(|&(sequence, local)| Block { sequence: SequenceHash(sequence), local: LocalHash(local) })
                .collect();
            holds.add(Tier::Device, 1, None, &blocks);
            let cursor = Some(CursorRecord { sequence: 7, payload_digest });
            RankRecord {
                model_name: "m".to_owned(),
                tenant_id: "default".to_owned(),
                block_size: 16,
                instance_id: InstanceId::number(1),
                dp_rank: 0,
                engine: None,
                stream: Some(StreamRecord { cursor, epoch: 1, trust, unlisted_degraded: false }),
                windows: Vec::new(),
                holds,
                groups: None,
                remembers: None,
            }
        };
        let (ours, theirs) = (digest(Trust::Degraded, 1, &[(1, 1)]), digest(Trust::Exact, 1, &[(1, 1)]));
        assert_eq!(compare_digests(&ours, &theirs), Outcome::Worse);
        assert_eq!(compare_digests(&theirs, &theirs), Outcome::Equal);
        assert_eq!(compare_digests(&ours, &ours), Outcome::Equal);
        assert_eq!(compare_digests(&ours, &digest(Trust::Exact, 1, &[(1, 2)])), Outcome::Worse);
        assert_eq!(compare_digests(&ours, &digest(Trust::Exact, 2, &[(1, 1)])), Outcome::OtherEpoch);
    }

    #[test]
    fn comparisons_take_at_most_their_share_of_a_writers_time() {
        let writer_time = DIGEST_TIME_PER_BLOCK * 1_000_000 * COMPARED_AT_ONCE_MAX as u32;
        assert_eq!(pause_after(1_000_000), writer_time * WRITER_SHARE);
        assert_eq!(pause_after(0), Duration::ZERO);
        assert_eq!(pause_after(u64::MAX), PAUSE_MAX);
    }
}
