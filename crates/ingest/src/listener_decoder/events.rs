//! Translation of messages: from batches to events, from events to changes.

use flash_indexer_core::groups::RankEvent;
use flash_indexer_core::{BlockEvent, DpRank};
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_types::{LossReason, SharedCacheKind};
use flash_indexer_wire::{
    Application, BatchOutline, BlockStored, EngineEvent, EventError, Events, RemovalReason, TranslateError, Translator,
    TranslatorOptions,
};
use rustc_hash::FxHashMap;

use super::{ListenerDecoder, PartialMessage, SeenBlockSize};
use crate::change::Change;
use crate::event_parts::divide;
use crate::listener::{Listener, RankOwner};
use crate::log_listener;
use crate::message::Message;

/// Limit of the ranks that the batches of one listener name.
const RANKS_PER_LISTENER_MAX: usize = 1024;

/// Bytes of a turn that a message takes besides its events.
const MESSAGE_TURN_BYTES: usize = 64;

impl ListenerDecoder {
    /// Applies a part of the stream's next message, up to the end of the turn. Returns the message if a part of it is left.
    pub(super) fn apply_part(&mut self, mut current: PartialMessage) -> Option<PartialMessage> {
        if self.turn_bytes_left == 0 {
            return Some(current);
        }
        let PartialMessage { sequence, message, rest } = &mut current;
        let rest = match rest.take() {
            None => self.begin_message(*sequence, message),
            rest => rest,
        };
        if let Some((dp_rank, outline)) = rest {
            let mut events = outline.batch(&message.payload, self.adapter).events;
            self.apply_events(dp_rank, &mut events);
            if !events.is_empty() {
                current.rest = Some((dp_rank, outline.of_rest(&events)));
                return Some(current);
            }
            self.end_batch(dp_rank);
        }
        let timestamp = message.outline.as_ref().ok().map(BatchOutline::timestamp);
        self.changes.push(Change::MessageApplied { sequence: *sequence, timestamp });
        self.changed_bytes += message.payload.len();
        self.turn_bytes_left = self.turn_bytes_left.saturating_sub(MESSAGE_TURN_BYTES);
        None
    }

    /// Begins to apply a message. Returns its events and their rank, unless the rank ignores them.
    fn begin_message(&mut self, sequence: u64, message: &Message) -> Option<(DpRank, BatchOutline)> {
        if sequence == 0 {
            // The stream begins here: state imported without a position is of an earlier epoch, or will be published again.
            self.changes.extend(std::mem::take(&mut self.without_position).into_iter().map(Change::Forget));
        }
        let outline = match &message.outline {
            Ok(outline) => *outline,
            Err(error) => {
                // Only a replay brings an invalid batch this far, so the engine did publish it.
                self.reject(error.reason(), error.to_string());
                self.changes.push(Change::RecordLoss(None, error.to_string()));
                return None;
            }
        };
        self.changes.push(Change::EventTime(outline.timestamp()));
        let dp_rank = outline.dp_rank().unwrap_or(self.listener.dp_rank);
        if self.imported.get(&dp_rank).is_some_and(|&last| sequence <= last) {
            return None;
        }
        let is_ignored = self.ignored_ranks.contains(&dp_rank);
        if !is_ignored && !self.ranks.contains(&dp_rank) {
            if self.ranks.len() >= RANKS_PER_LISTENER_MAX {
                let why = format!("more than {RANKS_PER_LISTENER_MAX} ranks in one stream");
                self.refuse_rank(dp_rank, Limit::RanksPerListener, why);
                return None;
            }
            match self.list_or_reject(dp_rank) {
                RankOwner::SameStream => {}
                RankOwner::OtherStream => return None,
                RankOwner::Refused => {
                    let why = "the tenant has as many ranks as its limit: raise ranks in the limits file";
                    self.refuse_rank(dp_rank, Limit::TenantBatchRanks, why.to_owned());
                    return None;
                }
            }
            self.ranks.insert(dp_rank);
        }
        // Another endpoint may have a rank that was unregistered for this one.
        if is_ignored {
            self.list_or_reject(dp_rank);
            return None;
        }
        Some((dp_rank, outline))
    }

    /// Rejects a batch of a rank beyond a limit.
    fn refuse_rank(&mut self, dp_rank: DpRank, limit: Limit, why: String) {
        self.metrics.limit_reached(limit);
        let mut listed = self.listener.model.ranks_of(&self.listener);
        if listed.contains(&dp_rank) {
            self.changes.push(Change::RecordLoss(Some(dp_rank), why.clone()));
        } else if !std::mem::replace(&mut self.has_refused_rank, true) {
            // The rank is in no answer until it is registered. Recording each such rank would have no bound.
            listed.extend(&self.ranks);
            self.changes.push(Change::RecordLossOfUnlisted(listed, why.clone()));
        }
        self.reject("too_many_ranks", why);
    }

    /// Lists a rank that a batch names, or rejects the batch if the rank belongs to another stream of the instance.
    fn list_or_reject(&mut self, dp_rank: DpRank) -> RankOwner {
        let owner = self.listener.model.list_rank(&self.listener, dp_rank);
        if owner == RankOwner::OtherStream {
            let why = format!("a batch names rank {dp_rank}, which belongs to another endpoint of the instance");
            // The batch may be of any of the stream's ranks.
            self.changes.push(Change::RecordLoss(None, why.clone()));
            self.reject("rank_of_other_stream", why);
        }
        owner
    }

    /// Applies events up to the end of the turn, at least one.
    fn apply_events(&mut self, dp_rank: DpRank, events: &mut Events<'_>) {
        let start = events.offset();
        while let Some(event) = events.next() {
            match event {
                Ok(event) => {
                    self.apply_event(dp_rank, &event);
                    if let EngineEvent::ClearedScope(_) = event {
                        // Its cost grows with the decoder state of the rank, however few bytes the event has.
                        self.turn_bytes_left = 0;
                    }
                }
                Err(error) => self.reject_event(dp_rank, &error),
            }
            if events.offset() - start >= self.turn_bytes_left {
                break;
            }
        }
        self.turn_bytes_left = self.turn_bytes_left.saturating_sub(events.offset() - start);
        self.record_unknown_fields(events.take_unknown_fields());
    }

    fn end_batch(&mut self, dp_rank: DpRank) {
        // Checked after the batch: within it, secondary groups may come first.
        let Some(why) = self.translators.get(&dp_rank).and_then(Translator::content_loss) else {
            self.ranks_without_content.remove(&dp_rank);
            return;
        };
        if self.ranks_without_content.insert(dp_rank) {
            self.changes.push(Change::RecordLoss(Some(dp_rank), why.to_string()));
        }
    }

    pub(super) fn translator<'t>(
        translators: &'t mut FxHashMap<DpRank, Translator>,
        listener: &Listener,
        dp_rank: DpRank,
    ) -> &'t mut Translator {
        translators.entry(dp_rank).or_insert_with(|| {
            Translator::new(TranslatorOptions {
                block_size: listener.model.block_size(),
                lora_name: listener.options.lora_name.clone(),
                removed_copies: listener.options.removed_copies,
                cache_tier: listener.instance.shared_cache().map(SharedCacheKind::tier),
            })
        })
    }

    fn apply_event(&mut self, dp_rank: DpRank, event: &EngineEvent<'_>) {
        if let EngineEvent::Inactive(inactive) = event {
            return self.metrics.blocks_inactive(inactive.block_hashes.len() as u64);
        }
        let wrap: fn(DpRank, RankEvent) -> Change = match Application::of(event, self.listener.options.removed_copies) {
            Application::AsPublished => Change::Event,
            Application::Refresh => Change::Refresh,
            Application::MoveLastCopy => Change::MoveLastCopy,
        };
        let is_clear = *event == EngineEvent::Cleared;
        let Self { listener, translators, groups_unknown, .. } = self;
        let translator = Self::translator(translators, listener, dp_rank);
        let knew_managers = translator.has_all_managers();
        let changes = translator.translate(event);
        if knew_managers && !translator.has_all_managers() {
            self.metrics.limit_reached(Limit::ManagedCopies);
        }
        if is_clear {
            groups_unknown.remove(&dp_rank);
        }
        if translator.is_hybrid() && groups_unknown.remove(&dp_rank) {
            self.changes.push(Change::RecordLoss(Some(dp_rank), LossReason::ImportedWithoutGroups.to_string()));
        }
        let mut changes = match changes {
            Ok(changes) => changes,
            Err(unusable) => return self.reject_unusable(dp_rank, &unusable),
        };
        let doubt = changes.doubt.take();
        if matches!(event, EngineEvent::Stored(_)) {
            self.block_size = SeenBlockSize::Unchanged;
        }
        listener.model.record_variant(translator.window(), translator.adapter_salt());
        let is_complete = translator.is_complete();
        if matches!(event, EngineEvent::Stored(_)) && translator.adapter_salt().salt().is_some() {
            self.changes.push(Change::SaltedStore(dp_rank));
        }
        let reason = removal_reason(event);
        if reason.is_some() {
            self.changes.push(Change::RemovalReason(reason));
        }
        let has_forgotten_salts = translator.has_forgotten_salts();
        for change in changes {
            if let RankEvent::Primary(BlockEvent::Copied { blocks, .. }) = &change
                && has_forgotten_salts
            {
                self.changes.push(Change::CopySaltUnknown(dp_rank, blocks.clone()));
            }
            divide(change, |part| self.changes.push(wrap(dp_rank, part)));
        }
        if reason.is_some() {
            self.changes.push(Change::RemovalReason(None));
        }
        if let EngineEvent::Stored(BlockStored { parent_block_hash: Some(parent), .. }) = event
            && translator.has_forgotten_salts()
            && translator.adapter_salt().salt().is_none()
        {
            self.changes.push(Change::ParentSaltUnknown(dp_rank, *parent));
        }
        if let Some(doubt) = doubt {
            self.reject_unusable(dp_rank, &doubt);
        }
        if is_clear && is_complete {
            // The rank's cache is empty, so earlier losses do not count.
            self.changes.push(Change::Cleared(dp_rank));
        }
    }

    fn reject_event(&mut self, dp_rank: DpRank, error: &EventError) {
        self.reject(error.reason(), error.to_string());
        // An event of an unknown kind may have changed the cache as well.
        self.record_event_loss(dp_rank, error.to_string());
    }

    fn reject_unusable(&mut self, dp_rank: DpRank, unusable: &TranslateError) {
        self.reject(unusable.reason(), unusable.to_string());
        match unusable {
            // A medium outside the queried tiers: the tiers stay exact.
            TranslateError::UnknownMedium { .. } => return,
            // Without the entry, matches are at worst too short.
            TranslateError::PartialEntry { .. } => {
                if !matches!(self.changes.last(), Some(Change::EntryOmitted(of)) if *of == dp_rank) {
                    self.changes.push(Change::EntryOmitted(dp_rank));
                }
                return;
            }
            TranslateError::HybridGroup { .. } | TranslateError::UnnamedGroup => {
                if !std::mem::replace(&mut self.hybrid_reported, true) {
                    log_listener!(warn, self.listener, error = %unusable, "cache group not supported");
                }
            }
            &TranslateError::BlockSize { actual, registered }
                if self.block_size == SeenBlockSize::AfterRestart || self.has_grown(actual, registered) =>
            {
                self.block_size = SeenBlockSize::Changed(actual);
            }
            TranslateError::AdapterName { .. } | TranslateError::AdapterNameCharacter { .. } => {
                self.metrics.limit_reached(Limit::Names)
            }
            TranslateError::SaltedBlocks => self.metrics.limit_reached(Limit::SaltedBlocks),
            TranslateError::ManagerUnknown { .. } => self.metrics.limit_reached(Limit::ManagedCopies),
            TranslateError::BlockSize { .. }
            | TranslateError::ChunkSizeUnknown
            | TranslateError::ComponentsUnknown
            | TranslateError::GroupBlockSize { .. }
            | TranslateError::ManagerUncertain { .. }
            | TranslateError::TokenCount { .. }
            | TranslateError::UnknownTarget { .. } => {}
        }
        self.record_event_loss(dp_rank, unusable.to_string());
    }

    /// Whether the blocks of a pod are larger than its registered block size and than all its earlier blocks.
    fn has_grown(&mut self, actual: u32, registered: u32) -> bool {
        let has_grown = self.listener.options.is_bound()
            && actual > self.grown_to.max(registered)
            && actual.is_multiple_of(registered);
        if has_grown {
            self.grown_to = actual;
        }
        has_grown
    }

    /// Records the loss of an event. Of consecutive losses of one rank only the first is recorded: the others change
    /// nothing, and a message may have a million.
    fn record_event_loss(&mut self, dp_rank: DpRank, why: String) {
        if !matches!(self.changes.last(), Some(Change::RecordLoss(Some(of), _)) if *of == dp_rank) {
            self.changes.push(Change::RecordLoss(Some(dp_rank), why));
        }
    }
}

/// Why an event removes blocks, if it says so.
fn removal_reason(event: &EngineEvent<'_>) -> Option<RemovalReason> {
    match event {
        EngineEvent::Removed(removed) => removed.reason,
        EngineEvent::Transferred(_) => Some(RemovalReason::Demoted),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use flash_indexer_core::SequenceHash;
    use flash_indexer_types::Trust;
    use flash_indexer_wire::{BlockRemoved, BlockStored, Encoding, ExtraKey, TokenIds, encode_batch};

    use super::*;
    use crate::tests::fixture::{Fixture, RANK, chain_stored, payload};
    use crate::{Delivery, ModelSink};

    /// A message that stores a chain of salted blocks.
    fn salted(hashes: std::ops::Range<u64>) -> Vec<u8> {
        let stored = BlockStored {
            block_hashes: hashes.clone().map(SequenceHash).collect(),
            token_ids: TokenIds::Plain(hashes.map(|hash| hash as u32).collect()),
            block_size: 1,
            extra_keys: Some(vec![Some(vec![ExtraKey::Text("tenant")])]),
            ..BlockStored::default()
        };
        encode_batch(1.0, &[EngineEvent::Stored(stored)], None, Encoding::Map)
    }

    #[test]
    fn a_registered_rank_whose_batch_exceeds_the_limit_of_ranks_is_degraded() {
        let fixture = Fixture::start(1, false);
        let listener = fixture.unconnected("tcp://127.0.0.1:9", None);
        let named = (1..=RANKS_PER_LISTENER_MAX as u32).chain([RANK.0]);
        for (sequence, dp_rank) in named.map(DpRank).enumerate() {
            let payload = encode_batch(1.0, &[EngineEvent::Cleared], Some(dp_rank), Encoding::Map);
            let frames = vec![b"t".to_vec(), (sequence as u64).to_be_bytes().to_vec(), payload];
            fixture.decoders.deliver(&listener, Delivery::Live(vec![frames]));
        }
        fixture.wait(1, RANKS_PER_LISTENER_MAX as u64, Trust::Degraded);
        assert_eq!(listener.trust(DpRank(1)), Trust::Exact);
        assert_eq!(listener.report(RANK).rejected.get("too_many_ranks"), Some(&1));

        // A rank that is registered only after its batch was refused.
        let (refused, sequence) = (DpRank(RANKS_PER_LISTENER_MAX as u32 + 1), RANKS_PER_LISTENER_MAX as u64 + 1);
        let payload = encode_batch(1.0, &[EngineEvent::Cleared], Some(refused), Encoding::Map);
        let frames = vec![b"t".to_vec(), sequence.to_be_bytes().to_vec(), payload];
        fixture.decoders.deliver(&listener, Delivery::Live(vec![frames]));
        fixture.wait(1, sequence, Trust::Degraded);
        assert_eq!((listener.trust(refused), listener.trust(DpRank(1))), (Trust::Degraded, Trust::Exact));
    }

    const FLOOD_BLOCKS: u64 = 1 << 16;

    fn batch(event: EngineEvent<'_>) -> Vec<u8> {
        encode_batch(1.0, &[event], None, Encoding::Map)
    }

    /// A message that stores one block after block 10, without a salt.
    fn child(hash: u64) -> Vec<u8> {
        batch(chain_stored(Some(10), hash, 1))
    }

    fn removed(hashes: std::ops::Range<u64>) -> Vec<u8> {
        let block_hashes = hashes.map(SequenceHash).collect();
        batch(EngineEvent::Removed(BlockRemoved { block_hashes, ..BlockRemoved::default() }))
    }

    /// Salted block 10, its child 11, the removal of 10, and enough other salted blocks to make a translator forget its
    /// salt.
    fn forgotten_salt() -> impl Iterator<Item = Vec<u8>> {
        let flood = (1..=9).map(|part| part * FLOOD_BLOCKS..(part + 1) * FLOOD_BLOCKS);
        let flood = flood.flat_map(|hashes| [salted(hashes.clone()), removed(hashes)]);
        [salted(10..11), child(11), removed(10..11)].into_iter().chain(flood)
    }

    /// Publishes messages that leave the rank exact, and one that does not.
    fn assert_degraded_by_last(exact: impl Iterator<Item = Vec<u8>>, last: &[u8]) {
        let fixture = Fixture::start(1, false);
        let mut sequence = 0;
        for message in exact {
            sequence += 1;
            fixture.engines[0].publish(sequence, &message).expect("published");
            fixture.wait(0, sequence, Trust::Exact);
        }
        fixture.engines[0].publish(sequence + 1, last).expect("published");
        fixture.wait(0, sequence + 1, Trust::Degraded);
    }

    #[test]
    fn a_child_of_a_removed_ancestor_whose_salt_is_forgotten_degrades_its_rank() {
        assert_degraded_by_last(forgotten_salt(), &child(12));
    }

    #[test]
    fn a_removed_ancestor_that_is_offloaded_after_its_salt_is_forgotten_degrades_its_rank() {
        let offloaded = BlockStored {
            block_hashes: vec![SequenceHash(10)],
            block_size: 1,
            medium: Some("CPU"),
            ..BlockStored::default()
        };
        assert_degraded_by_last(forgotten_salt(), &batch(EngineEvent::Stored(offloaded)));
    }

    #[test]
    fn a_rank_whose_child_was_stored_before_its_salted_parent_stays_degraded() {
        let fixture = Fixture::start(1, false);
        for (sequence, message) in [child(11), salted(10..11), payload(12)].into_iter().enumerate() {
            fixture.engines[0].publish(sequence as u64 + 1, &message).expect("published");
            fixture.wait(0, sequence as u64 + 1, Trust::Degraded);
        }
    }

    #[test]
    fn a_rank_with_more_salts_than_are_remembered_is_degraded_until_it_is_cleared() {
        const BLOCKS: u64 = 1 << 16;
        let fixture = Fixture::start(2, false);
        for sequence in 1..=16 {
            let payload = salted(sequence * BLOCKS..(sequence + 1) * BLOCKS);
            fixture.engines[0].publish(sequence, &payload).expect("published");
            fixture.wait(0, sequence, Trust::Exact);
        }
        fixture.engines[0].publish(17, &salted(17 * BLOCKS..17 * BLOCKS + 1)).expect("published");
        fixture.wait(0, 17, Trust::Degraded);
        assert_eq!(fixture.models[0].metrics().limit_reached_count(Limit::SaltedBlocks), 1);
        assert_eq!(fixture.listener(0).report(RANK).rejected.get("salted_blocks"), Some(&1));
        assert_eq!(fixture.held_blocks() as u64, 2 + 16 * BLOCKS, "no block has a wrong local hash");
        let cleared = encode_batch(1.0, &[EngineEvent::Cleared], None, Encoding::Map);
        fixture.engines[0].publish(18, &cleared).expect("published");
        fixture.engines[0].publish(19, &salted(1..2)).expect("published");
        fixture.wait(0, 19, Trust::Exact);
        assert_eq!(fixture.listener(1).trust(RANK), Trust::Exact);
    }
}
