//! One listener's messages, taken into its model's index.

use std::sync::Arc;
use std::time::Instant;

use flash_indexer_core::groups::RankEvent;
use flash_indexer_core::{DpRank, SharedIndex, WorkerRank};
use flash_indexer_wire::{
    Arrival, Batch, EngineEvent, EventError, LiveMessage, SequenceTracker, Translator, TranslatorOptions, Unusable,
    decode_batch,
};
use rustc_hash::FxHashMap;
use tracing::{info, warn};

use super::listener::{Listener, Trust};
use crate::metrics::Metrics;

/// Ranks that the batches of one listener may name.
const RANKS_PER_LISTENER_MAX: usize = 1024;

/// What a writer knows of one listener between its messages.
pub(super) struct Intake {
    listener: Arc<Listener>,
    sequence: SequenceTracker,
    translators: FxHashMap<DpRank, Translator>,
    hybrid_reported: bool,
    /// The connection was lost since the last message.
    interrupted: bool,
}

impl Intake {
    pub(super) fn new(listener: Arc<Listener>) -> Self {
        Self {
            listener,
            sequence: SequenceTracker::default(),
            translators: FxHashMap::default(),
            hybrid_reported: false,
            interrupted: false,
        }
    }

    /// The connection was lost: the next message need not follow the last one.
    pub(super) fn interrupt(&mut self) {
        self.interrupted = true;
    }

    /// Takes in one message: counts what cannot be used, applies the rest.
    pub(super) fn take(&mut self, frames: &[Vec<u8>], metrics: &Metrics) {
        metrics.message();
        let message = match LiveMessage::from_frames(frames) {
            Ok(message) => message,
            Err(error) => {
                metrics.rejected(error.reason());
                self.listener.reject(error.reason(), error.to_string());
                return;
            }
        };
        let batch = match decode_batch(message.payload) {
            Ok(batch) => batch,
            Err(error) => {
                // Its number is not believed: if it was the engine's, the next one shows a gap.
                metrics.rejected(error.reason());
                self.listener.reject(error.reason(), error.to_string());
                return;
            }
        };
        let arrival = self.sequence.take(message.sequence);
        self.arrived(arrival, metrics);
        self.apply(batch, metrics);
        self.listener.taken_in(message.sequence, Instant::now());
    }

    /// Draws the conclusions from a message's number.
    fn arrived(&mut self, arrival: Arrival, metrics: &Metrics) {
        metrics.missed(arrival.missed());
        let name = &self.listener.options.endpoint;
        let interrupted = std::mem::take(&mut self.interrupted);
        match arrival {
            Arrival::Next if interrupted => {
                let why = "the connection was lost, and the engine may have started again unseen";
                self.listener.degrade_all(why.to_owned());
            }
            Arrival::Next => {}
            Arrival::First { missed: 0 } => self.listener.trust_all(),
            Arrival::First { missed } => {
                self.listener.degrade_all(format!("{missed} messages were published before the first one received"));
            }
            Arrival::Gap { missed } => {
                // Once for each fall: a stream that loses much would fill the log.
                if self.listener.trust(self.listener.dp_rank) != Trust::Degraded {
                    warn!(endpoint = %name, missed, "messages were lost");
                }
                let next = self.sequence.last().unwrap_or_default();
                self.listener.gap(format!("{missed} messages were lost before number {next}"));
            }
            Arrival::Restart { missed } => {
                info!(endpoint = %name, "the engine has started again: its blocks are forgotten");
                metrics.restart();
                self.forget_ranks();
                self.translators.clear();
                if missed == 0 {
                    self.listener.trust_all();
                } else {
                    self.listener.gap(format!("{missed} messages were lost after the engine started again"));
                }
            }
        }
    }

    fn apply(&mut self, batch: Batch<'_>, metrics: &Metrics) {
        let dp_rank = batch.dp_rank.unwrap_or(self.listener.dp_rank);
        if !self.translators.contains_key(&dp_rank) && self.translators.len() >= RANKS_PER_LISTENER_MAX {
            metrics.rejected("too_many_ranks");
            self.listener.reject("too_many_ranks", format!("more than {RANKS_PER_LISTENER_MAX} ranks in one stream"));
            return;
        }
        for event in batch.events {
            match event {
                Ok(event) => self.apply_event(dp_rank, &event, metrics),
                Err(error) => self.reject_event(dp_rank, &error, metrics),
            }
        }
        // Within a batch the other groups may come first.
        let lacks_content = self.translators.get(&dp_rank).is_some_and(Translator::lacks_content);
        if lacks_content && self.listener.trust(dp_rank) != Trust::Degraded {
            let why = "no cache group with full attention has told what blocks contain: nothing can be found";
            self.listener.degrade_rank(dp_rank, why.to_owned());
        }
    }

    fn apply_event(&mut self, dp_rank: DpRank, event: &EngineEvent<'_>, metrics: &Metrics) {
        let listener = &self.listener;
        let translator = self.translators.entry(dp_rank).or_insert_with(|| {
            Translator::new(TranslatorOptions {
                block_size: listener.model.block_size,
                lora_name: listener.options.lora_name.clone(),
                removed_copies: listener.options.removed_copies,
            })
        });
        let is_clear = *event == EngineEvent::Cleared;
        let changes = match translator.translate(event) {
            Ok(changes) => changes,
            Err(unusable) => return self.reject_unusable(dp_rank, &unusable, metrics),
        };
        listener.model.windows.note(translator.window());
        let rank = WorkerRank { worker: listener.worker, dp_rank };
        for change in changes {
            let applied = listener.model.index.apply_event(rank, &change);
            metrics.applied(&applied);
            if applied.refused > 0 {
                let why = match change {
                    RankEvent::Indexed(_) => "too many blocks wait for a parent that was never told",
                    RankEvent::Further(_) => "a hybrid model has more cache groups, or blocks in one, than are kept",
                };
                listener.degrade_rank(dp_rank, why.to_owned());
            }
        }
        if is_clear && !translator.ignores_groups() && !translator.lacks_content() {
            // Whatever was missed before, the rank's cache is empty now.
            listener.trust_rank(dp_rank);
        }
    }

    fn reject_event(&self, dp_rank: DpRank, error: &EventError, metrics: &Metrics) {
        metrics.rejected(error.reason());
        self.listener.reject(error.reason(), error.to_string());
        // An event of a new kind may be harmless; a broken one was a change of the cache.
        if !matches!(error, EventError::UnknownType { .. }) {
            self.listener.degrade_rank(dp_rank, error.to_string());
        }
    }

    fn reject_unusable(&mut self, dp_rank: DpRank, unusable: &Unusable, metrics: &Metrics) {
        let reason = unusable.reason();
        metrics.rejected(reason);
        self.listener.reject(reason, unusable.to_string());
        match unusable {
            // Other memory than the tiers that are asked for: the tiers stay exact.
            Unusable::UnknownMedium { .. } => {}
            Unusable::HybridGroup { .. } | Unusable::UnnamedGroup => {
                if !std::mem::replace(&mut self.hybrid_reported, true) {
                    warn!(endpoint = %self.listener.options.endpoint, "{unusable}");
                }
                self.listener.degrade_rank(dp_rank, unusable.to_string());
            }
            Unusable::BlockSize { .. } | Unusable::TokenCount { .. } => {
                self.listener.degrade_rank(dp_rank, unusable.to_string())
            }
        }
    }

    /// Clears every rank that the listener has fed.
    pub(super) fn forget_ranks(&self) {
        for &dp_rank in self.translators.keys() {
            self.listener.model.index.clear_rank(WorkerRank { worker: self.listener.worker, dp_rank });
        }
    }
}
