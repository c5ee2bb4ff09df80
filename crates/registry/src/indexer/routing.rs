//! Instances without events: the index derives their blocks from routing decisions.
//!
//! The service makes the messages that such an engine does not publish. A prompt that is routed to the instance is a store of
//! its blocks. Blocks whose time to live has passed, or that exceed the size of the engine's cache, are removals. The messages go
//! through the decoder and the writer like those of an engine, so every answer treats the instance as any other.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use flash_indexer_core::hashing::{HashVariant, TokenWindow, local_hashes, sequence_hashes};
use flash_indexer_core::{SequenceHash, SharedIndex, Tier, WorkerRank};
use flash_indexer_ingest::{Decoders, Delivery, Listener};
use flash_indexer_routing::RoutedBlocks;
use flash_indexer_telemetry::metrics::{Limit, Metrics};
use flash_indexer_wire::{
    BlockRemoved, BlockStored, EVENT_TOKENS_MAX, Encoding, EngineEvent, ExtraKey, TokenIds, encode_batch,
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::search::TokenPrompt;

/// Default size of an instance's cache in blocks, if its registration names none.
pub(crate) const CACHE_BLOCKS_BY_DEFAULT: usize = 1 << 16;

/// Time between two removals of expired blocks.
pub(crate) const SWEEP_PERIOD: Duration = Duration::from_secs(1);

/// Blocks removed by one message of a sweep.
const REMOVED_PER_MESSAGE: usize = 1 << 12;

/// Blocks of one event. A decoder rejects events of very many blocks.
const EVENT_BLOCKS_MAX: usize = 1 << 16;

/// Registered instances without events.
pub(crate) struct RoutedInstances {
    started: Instant,
    /// By id of the listener.
    instances: Mutex<FxHashMap<u64, Arc<RoutedInstance>>>,
    /// Blocks of all instances. Relaxed: a limit.
    block_count: AtomicUsize,
    blocks_max: usize,
}

/// One instance without events. Its messages are made and delivered under the lock, so their order is that of its blocks.
struct RoutedInstance {
    listener: Weak<Listener>,
    stream: Mutex<RoutedStream>,
}

#[derive(Default)]
struct RoutedStream {
    blocks: RoutedBlocks,
    /// Sequence number of the next message.
    next_sequence: u64,
    /// Runs of dropped messages that are repaired.
    repaired_drops: u64,
    /// Whether the instance is unregistered: nothing is recorded any more.
    is_removed: bool,
}

impl RoutedInstances {
    /// No instances. `blocks_max` is the limit of the blocks of all instances together.
    pub(crate) fn new(started: Instant, blocks_max: usize) -> Self {
        Self { started, instances: Mutex::default(), block_count: AtomicUsize::new(0), blocks_max }
    }

    /// Whether there are no instances without events.
    pub(crate) fn is_empty(&self) -> bool {
        self.instances.lock().is_empty()
    }

    /// Blocks of all instances.
    pub(crate) fn block_count(&self) -> usize {
        self.block_count.load(Relaxed)
    }

    /// Adds the instance of a listener.
    pub(crate) fn add(&self, listener: &Arc<Listener>) {
        let instance = RoutedInstance { listener: Arc::downgrade(listener), stream: Mutex::default() };
        self.instances.lock().insert(listener.id, Arc::new(instance));
    }

    /// Removes the instance of an unregistered listener.
    pub(crate) fn remove(&self, listener: &Listener) {
        let removed = { self.instances.lock().remove(&listener.id) };
        if let Some(removed) = removed {
            let mut stream = removed.stream.lock();
            self.count(stream.blocks.block_count(), 0);
            // A prompt may be about to be recorded.
            *stream = RoutedStream { is_removed: true, ..RoutedStream::default() };
        }
    }

    /// Records that a prompt is sent to the instance of a listener: it is assumed to hold the prompt's complete blocks for `ttl`.
    /// Returns their number, which the size of its cache limits; none if the tenant has reached its limit. Linear in the prompt.
    pub(crate) fn record(
        &self,
        listener: &Arc<Listener>,
        prompt: TokenPrompt<'_>,
        (now, ttl): (Instant, Duration),
        (decoders, metrics): (&Decoders, &Metrics),
    ) -> usize {
        let Some(instance) = self.instances.lock().get(&listener.id).cloned() else { return 0 };
        if listener.model.is_full() {
            // The writer would refuse the blocks, and the instance would be degraded.
            metrics.limit_reached(Limit::TenantHeldBlocks);
            return 0;
        }
        let lora_name = prompt.lora_name.or(listener.options.lora_name.as_deref()).filter(|name| !name.is_empty());
        let cache_salt = prompt.cache_salt.filter(|salt| !salt.is_empty());
        let block_size = listener.model.block_size();
        let variant = HashVariant::new(lora_name, cache_salt);
        let locals = local_hashes(variant, prompt.tokens, block_size, TokenWindow::Block);
        let prefixes: Vec<SequenceHash> = sequence_hashes(&locals).collect();

        let now = now.saturating_duration_since(self.started);
        let mut stream = instance.stream.lock();
        if stream.is_removed {
            return 0;
        }
        let before = stream.blocks.block_count();
        stream.repair(listener, decoders);
        let expired = stream.blocks.remove(now, usize::MAX, REMOVED_PER_MESSAGE);
        let room = self.blocks_max.saturating_sub(self.block_count().saturating_sub(before));
        let cache_blocks = listener.options.cache_blocks.map_or(CACHE_BLOCKS_BY_DEFAULT, usize::from);
        if room < cache_blocks && stream.blocks.block_count() + prefixes.len() > room {
            metrics.limit_reached(Limit::RoutedBlocks);
        }
        let blocks_max = cache_blocks.min(room);
        let recorded = stream.blocks.record(&prefixes, now.saturating_add(ttl), blocks_max);
        // The index may have lost blocks: it was replaced, or its memory is limited. Stores of held blocks change nothing.
        let rank = WorkerRank { worker: listener.worker, dp_rank: listener.dp_rank };
        let found = listener.model.index().find(&locals);
        let held = found.get(rank).map_or(0, |found| found.blocks[Tier::Device] as usize);
        let first = recorded.known.min(held);
        let evicted = stream.blocks.remove(now, blocks_max, usize::MAX);

        let mut events = Vec::with_capacity(3);
        events.extend(removal(expired));
        let size = block_size.token_count();
        let event_blocks_max = EVENT_BLOCKS_MAX.min((EVENT_TOKENS_MAX as usize / size).max(1));
        for start in (first..recorded.kept).step_by(event_blocks_max) {
            let end = recorded.kept.min(start + event_blocks_max);
            events.push(EngineEvent::Stored(BlockStored {
                block_hashes: prefixes[start..end].to_vec(),
                parent_block_hash: start.checked_sub(1).map(|parent| prefixes[parent]),
                token_ids: TokenIds::Plain(prompt.tokens[start * size..end * size].to_vec()),
                block_size: block_size.tokens(),
                lora_name,
                // Later blocks inherit the salt of the first one.
                extra_keys: cache_salt.filter(|_| start == 0).map(|salt| first_block_keys(lora_name, salt, end)),
                ..BlockStored::default()
            }));
        }
        events.extend(evicted.chunks(EVENT_BLOCKS_MAX).flat_map(|part| removal(part.to_vec())));
        stream.publish(&events, listener, decoders);
        let after = stream.blocks.block_count();
        self.count(before, after);
        recorded.kept
    }

    /// Removes expired blocks. Linear in the instances and in the expired blocks. A message removes
    /// some thousand blocks, and the instance's predictions wait for no more than one.
    pub(crate) fn sweep(&self, now: Instant, decoders: &Decoders) {
        let now = now.saturating_duration_since(self.started);
        let instances: Vec<Arc<RoutedInstance>> = self.instances.lock().values().cloned().collect();
        for instance in instances {
            let Some(listener) = instance.listener.upgrade() else { continue };
            loop {
                let mut stream = instance.stream.lock();
                if stream.is_removed {
                    break;
                }
                let before = stream.blocks.block_count();
                stream.repair(&listener, decoders);
                let expired = stream.blocks.remove(now, usize::MAX, REMOVED_PER_MESSAGE);
                self.count(before, stream.blocks.block_count());
                let is_last = expired.len() < REMOVED_PER_MESSAGE;
                let events: Vec<_> = removal(expired).into_iter().collect();
                stream.publish(&events, &listener, decoders);
                if is_last {
                    break;
                }
            }
        }
    }

    fn count(&self, before: usize, after: usize) {
        match after.checked_sub(before) {
            Some(added) => self.block_count.fetch_add(added, Relaxed),
            None => self.block_count.fetch_sub(before - after, Relaxed),
        };
    }
}

impl RoutedStream {
    /// Clears the instance if any of its messages were dropped: they may have been removals.
    fn repair(&mut self, listener: &Arc<Listener>, decoders: &Decoders) {
        let drops = listener.drop_runs();
        if drops != self.repaired_drops {
            self.repaired_drops = drops;
            self.blocks.clear();
            self.publish(&[EngineEvent::Cleared], listener, decoders);
        }
    }

    /// Delivers events as the next message of the engine. Nothing for no events.
    fn publish(&mut self, events: &[EngineEvent<'_>], listener: &Arc<Listener>, decoders: &Decoders) {
        if events.is_empty() {
            return;
        }
        let timestamp = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let payload = encode_batch(timestamp, events, Some(listener.dp_rank), Encoding::Map);
        let sequence = self.next_sequence.to_be_bytes().to_vec();
        self.next_sequence += 1;
        decoders.deliver(listener, Delivery::Live(vec![vec![Vec::new(), sequence, payload]]));
    }
}

fn removal<'e>(blocks: Vec<SequenceHash>) -> Option<EngineEvent<'e>> {
    (!blocks.is_empty()).then(|| EngineEvent::Removed(BlockRemoved { block_hashes: blocks, ..BlockRemoved::default() }))
}

/// Extra keys of a store's blocks. The first block has the salt. An engine puts the adapter's name before it.
fn first_block_keys<'k>(
    lora_name: Option<&'k str>,
    cache_salt: &'k str,
    blocks: usize,
) -> Vec<Option<Vec<ExtraKey<'k>>>> {
    let mut keys = vec![None; blocks];
    keys[0] = Some(lora_name.into_iter().chain([cache_salt]).map(ExtraKey::Text).collect());
    keys
}
