//! Handover of a rank's state: restored decoder state, and the release of held ranks.

use std::time::Instant;

use flash_indexer_core::DpRank;
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_types::{Position, Trust};
use flash_indexer_wire::{StreamPosition, StreamTrust, TranslateError};

use super::ListenerDecoder;
use crate::change::Change;
use crate::resume_point::DecoderState;

/// Whether a state was imported without its position in the stream.
fn lacks_position(position: Position) -> bool {
    position.cursor.is_none() && position.trust == Trust::Degraded
}

impl ListenerDecoder {
    /// Restores the decoder state of a rank.
    pub(crate) fn restore_decoder_state(
        &mut self,
        dp_rank: DpRank,
        DecoderState { groups, block_state }: DecoderState,
    ) {
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
        let from = current.iter().map(|&(.., cursor)| cursor).min_by_key(|cursor| cursor.sequence);
        for (dp_rank, position) in released {
            match current.iter().find(|(rank, ..)| *rank == dp_rank) {
                Some((_, position, cursor)) => {
                    self.imported.insert(dp_rank, cursor.sequence);
                    if position.trust == Trust::Degraded {
                        let why = "its state was imported degraded: it was so there, or the engine cannot replay what it published since";
                        self.changes_after_trust.push(Change::RecordLoss(Some(dp_rank), why.to_owned()));
                    }
                }
                None if position.is_some_and(lacks_position) => {
                    self.without_position.insert(dp_rank);
                    let why = "its state was imported from a dump without a stream position";
                    self.changes.push(Change::RecordLoss(Some(dp_rank), why.to_owned()));
                    self.changes_after_trust.push(Change::RecordLoss(Some(dp_rank), why.to_owned()));
                }
                None if from.is_some() => {
                    self.changes.push(Change::Forget(dp_rank));
                    let why = "no state of the rank was imported";
                    self.changes_after_trust.push(Change::RecordLoss(Some(dp_rank), why.to_owned()));
                }
                None => self.changes.push(Change::Forget(dp_rank)),
            }
        }
        self.changes.extend(from.map(|cursor| Change::PositionImported(cursor.sequence)));
        let position = epoch.map(|epoch| StreamPosition { cursor: from, epoch, trust: StreamTrust::Exact });
        self.stream.release(position, now);
        self.execute();
    }
}
