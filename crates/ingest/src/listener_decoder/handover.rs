//! Handover of a rank's state: restored decoder state, and the release of paused ranks.

use std::time::Instant;

use flash_indexer_core::DpRank;
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_types::{LossReason, RankPosition, Trust};
use flash_indexer_wire::{StreamPosition, StreamTrust, TranslateError};

use super::ListenerDecoder;
use crate::change::Change;
use crate::resume_point::DecoderState;

/// Whether a state was imported without its position in the stream.
fn lacks_position(position: RankPosition) -> bool {
    position.cursor.is_none() && position.trust == Trust::Degraded
}

impl ListenerDecoder {
    /// Restores the decoder state of a rank.
    pub(crate) fn restore_decoder_state(
        &mut self,
        dp_rank: DpRank,
        DecoderState { groups, block_state }: DecoderState,
    ) {
        if self.has_restarted {
            return;
        }
        let translator = Self::translator(&mut self.translators, &self.listener, dp_rank);
        let excess_salts = translator.import_salts(block_state.salts);
        if excess_salts > 0 {
            self.metrics.limit_reached_by(Limit::SaltedBlocks, excess_salts as u64);
            let why = TranslateError::SaltedBlocks.to_string();
            self.changes_after_trust.push(Change::RecordLoss(Some(dp_rank), why));
        }
        if let Some(contents) = block_state.contents {
            translator.import_recent_blocks(contents);
        }
        match groups {
            Some(groups) => translator.import_groups(groups),
            None => drop(self.groups_unknown.insert(dp_rank)),
        }
    }

    /// Resumes the stream from the imported states, or from its start. Does nothing if the stream has restarted meanwhile:
    /// the imported states are lost.
    pub(crate) fn release(&mut self, now: Instant) {
        if self.has_restarted {
            return;
        }
        let released = self.listener.hold().released();
        self.ranks.extend(released.iter().map(|(dp_rank, _)| *dp_rank));
        let known: Vec<_> = released.iter().filter_map(|&(rank, position)| Some((rank, position?))).collect();
        // A dump reads its ranks one after the other: the stream resumes at the earliest position.
        let epoch = known.iter().map(|(_, position)| position.epoch).max();
        let current = known.iter().filter(|(_, position)| Some(position.epoch) == epoch);
        let current: Vec<_> =
            current.filter_map(|&(rank, position)| Some((rank, position, position.cursor?))).collect();
        let first = current.iter().min_by_key(|(.., cursor)| cursor.sequence);
        let from = first.map(|&(.., cursor)| cursor);
        if let Some((_, position, _)) = first {
            self.record_ranks_not_imported(&released, *position);
        }
        for (dp_rank, position) in released {
            match current.iter().find(|(rank, ..)| *rank == dp_rank) {
                Some((_, position, cursor)) => {
                    self.imported.insert(dp_rank, cursor.sequence);
                    if position.trust == Trust::Degraded {
                        self.changes_after_trust
                            .push(Change::RecordLoss(Some(dp_rank), LossReason::ImportedDegraded.to_string()));
                    }
                }
                None if position.is_some_and(lacks_position) => {
                    self.without_position.insert(dp_rank);
                    let why = LossReason::ImportedWithoutPosition;
                    self.changes.push(Change::RecordLoss(Some(dp_rank), why.to_string()));
                    self.changes_after_trust.push(Change::RecordLoss(Some(dp_rank), why.to_string()));
                }
                None if from.is_some() => {
                    self.changes.push(Change::Forget(dp_rank));
                    self.changes_after_trust
                        .push(Change::RecordLoss(Some(dp_rank), LossReason::NotImported.to_string()));
                }
                None => self.changes.push(Change::Forget(dp_rank)),
            }
        }
        self.changes.extend(from.map(|cursor| Change::PositionImported(cursor.sequence)));
        let position = epoch.map(|epoch| StreamPosition { cursor: from, epoch, trust: StreamTrust::Exact });
        self.stream.release(position, now);
        if let Some(last) = current.iter().map(|(.., cursor)| cursor.sequence).max() {
            self.stream.record_imported_end(last.saturating_add(1));
        }
        if !self.changes_after_trust.is_empty() {
            self.stream.record_inexact_rank(now);
        }
        self.execute();
    }

    /// Records the losses of the stream's ranks without imported state, where the stream resumes at `position`.
    fn record_ranks_not_imported(&mut self, released: &[(DpRank, Option<RankPosition>)], position: RankPosition) {
        let released: Vec<DpRank> = released.iter().map(|(dp_rank, _)| *dp_rank).collect();
        let mut not_held = self.listener.model.ranks_of(&self.listener);
        not_held.retain(|dp_rank| !released.contains(dp_rank));
        for dp_rank in not_held {
            self.changes_after_trust
                .push(Change::RecordLoss(Some(dp_rank), LossReason::RegisteredDuringImport.to_string()));
        }
        if position.unlisted_degraded {
            self.changes_after_trust.push(Change::RecordLossOfUnlisted(released, LossReason::NotListed.to_string()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crossbeam_channel::{Sender, bounded};
    use flash_indexer_core::ReadingProgress;
    use flash_indexer_types::Trust;
    use flash_indexer_wire::{Encoding, EngineEvent, encode_batch};

    use super::*;
    use crate::tests::fixture::{Fixture, PATIENCE, RANK, chain_stored};
    use crate::{DecoderStateDetail, Delivery, Listener, RankReader, ReadAt, ResumePoint};

    /// A rank that no message before the dump names.
    const LATER: DpRank = DpRank(1);

    /// Sends the position of a rank, and reads no blocks.
    struct PositionReader(Sender<ResumePoint>);

    impl RankReader for PositionReader {
        fn read_part(&mut self) -> ReadingProgress {
            ReadingProgress::Complete
        }

        fn finish(self: Box<Self>, point: ResumePoint) {
            self.0.send(point).expect("the test waits for it");
        }
    }

    fn deliver(fixture: &Fixture, listener: &Arc<Listener>, sequence: u64, event: EngineEvent<'_>, dp_rank: DpRank) {
        let payload = encode_batch(1.0, &[event], Some(dp_rank), Encoding::Map);
        let frames = vec![b"t".to_vec(), sequence.to_be_bytes().to_vec(), payload];
        fixture.decoders.deliver(listener, Delivery::Live(vec![frames]));
    }

    /// A stream whose first rank is exact after these messages were lost.
    fn exported(fixture: &Fixture, lost: std::ops::Range<u64>) -> ResumePoint {
        let listener = fixture.unconnected("tcp://127.0.0.1:9", None);
        fixture.decoders.deliver(&listener, Delivery::Connected);
        deliver(fixture, &listener, 0, chain_stored(None, 1, 1), RANK);
        deliver(fixture, &listener, lost.end, EngineEvent::Cleared, RANK);
        let (sender, points) = bounded(1);
        let reader = Box::new(PositionReader(sender));
        let detail = DecoderStateDetail::Full;
        fixture.decoders.deliver(&listener, Delivery::Read { dp_rank: RANK, at: ReadAt::Now, detail, reader });
        points.recv_timeout(PATIENCE).expect("a position")
    }

    /// Trust in both ranks of a stream that continues from a position, after a message of the later one.
    fn imported(fixture: &Fixture, position: RankPosition) -> [Trust; 2] {
        let listener = fixture.held("tcp://127.0.0.1:9");
        fixture.decoders.deliver(&listener, Delivery::Connected);
        let next = position.cursor.expect("a position").sequence + 1;
        deliver(fixture, &listener, next, chain_stored(None, 7, 1), LATER);
        listener.hold().release(RANK, Some(position));
        let (done, released) = bounded(1);
        fixture.decoders.deliver(&listener, Delivery::Release(done));
        released.recv_timeout(PATIENCE).expect("released");
        assert_eq!(listener.last_sequence(), Some(next));
        [RANK, LATER].map(|dp_rank| listener.trust(dp_rank))
    }

    #[test]
    fn a_rank_that_an_imported_dump_does_not_list_is_degraded_if_messages_before_the_dump_were_lost() {
        let fixture = Fixture::start(1, false);
        let whole = exported(&fixture, 1..1).position;
        assert_eq!((whole.trust, whole.unlisted_degraded), (Trust::Exact, false));
        assert_eq!(imported(&fixture, whole), [Trust::Exact, Trust::Exact]);
        let with_loss = exported(&fixture, 1..2).position;
        assert_eq!((with_loss.trust, with_loss.unlisted_degraded), (Trust::Exact, true), "the cleared rank is exact");
        assert_eq!(imported(&fixture, with_loss), [Trust::Exact, Trust::Degraded]);
    }
}
