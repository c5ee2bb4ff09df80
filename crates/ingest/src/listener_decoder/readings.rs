//! Reads of a rank at a known position of its stream.

use std::sync::Arc;

use flash_indexer_core::DpRank;
use flash_indexer_types::{RankPosition, Trust};
use flash_indexer_wire::StreamPosition;

use super::ListenerDecoder;
use crate::change::Change;
use crate::resume_point::{BlockDecoderState, DecoderState, DecoderStateDetail, RankReader, ResumePoint, in_parts};

/// A read that waits for its message. A listener has at most one: a later read replaces it.
pub(super) struct PendingRead {
    sequence: u64,
    dp_rank: DpRank,
    detail: DecoderStateDetail,
    reader: Box<dyn RankReader>,
}

impl ListenerDecoder {
    /// Returns a function that creates the resume point of a rank. The writer calls it after the changes so far.
    pub(crate) fn resume_point(
        &self,
        dp_rank: DpRank,
        detail: DecoderStateDetail,
    ) -> impl FnOnce() -> ResumePoint + Send + use<> {
        let (listener, is_epoch_unverified) = (Arc::clone(&self.listener), self.stream.is_epoch_unverified());
        let StreamPosition { cursor, epoch, .. } = self.stream.position();
        let translator = self.translators.get(&dp_rank);
        let groups = match self.groups_unknown.contains(&dp_rank) {
            true => None,
            false => Some(translator.map(|translator| translator.groups().collect()).unwrap_or_default()),
        };
        let block_state =
            translator.filter(|_| detail == DecoderStateDetail::Full).map(|translator| BlockDecoderState {
                salts: translator.salts().collect(),
                contents: translator.recent_blocks().map(Iterator::collect),
            });
        let decoder_state = DecoderState { groups, block_state: block_state.unwrap_or_default() };
        let named_ranks = self.ranks.union(&self.ignored_ranks).copied().collect();
        move || {
            let verified = |trust| match trust {
                Trust::Exact if is_epoch_unverified => Trust::Degraded,
                trust => trust,
            };
            let trust = verified(listener.exported_trust(dp_rank));
            let unlisted_degraded = verified(listener.exported_trust_of_unlisted()) == Trust::Degraded;
            ResumePoint {
                position: RankPosition { cursor, epoch, trust, unlisted_degraded },
                named_ranks,
                decoder_state,
            }
        }
    }

    /// Reads a rank exactly after the message with this sequence number. Drops the read if a later message is applied
    /// already, or if the stream skips the message.
    pub(crate) fn read_at(
        &mut self,
        sequence: u64,
        dp_rank: DpRank,
        detail: DecoderStateDetail,
        reader: Box<dyn RankReader>,
    ) {
        self.pending_read = Some(PendingRead { sequence, dp_rank, detail, reader });
        if let Some(cursor) = self.stream.position().cursor {
            self.run_pending_read(cursor.sequence);
        }
    }

    /// Runs the pending read if this message, the last applied one, is its message.
    pub(super) fn run_pending_read(&mut self, sequence: u64) {
        let pending_read = self.pending_read.take_if(|pending_read| pending_read.sequence <= sequence);
        if let Some(PendingRead { dp_rank, detail, reader, .. }) =
            pending_read.filter(|pending_read| pending_read.sequence == sequence)
        {
            let resume_point = self.resume_point(dp_rank, detail);
            self.changes.push(Change::Read(in_parts(reader, resume_point)));
        }
    }
}
