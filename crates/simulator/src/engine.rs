//! A simulated engine with ground truth: what each of its ranks holds after each message that it has published.

use std::sync::Arc;

use flash_indexer_core::{DpRank, SequenceHash};
use flash_indexer_registry::faults::PANICKING_BLOCK;
use flash_indexer_sim::{CacheChange, PrefixCache, Random};
use flash_indexer_wire::{BlockRemoved, BlockStored, Encoding, EngineEvent, ExtraKey, TokenIds, encode_batch};

use crate::prompts::{Prompt, block_size};

/// Blocks of a large message, more than a writer applies in one turn.
const LARGE_BLOCKS: u64 = 5_000;

/// Options of an engine's stream.
#[derive(Debug, Clone)]
pub(crate) struct EngineSpec {
    /// Number of its instance. Two engines of one instance are two ranks, each with its own stream.
    pub(crate) instance: u64,
    /// Number of its model.
    pub(crate) model: usize,
    /// Last part of its present address.
    pub(crate) host: usize,
    /// Ranks that its stream names.
    pub(crate) dp_ranks: Vec<u32>,
    /// Whether it has a replay endpoint.
    pub(crate) has_replay: bool,
    /// Messages that its replay endpoint keeps.
    pub(crate) buffer_messages: usize,
    /// Blocks of each rank's cache.
    pub(crate) cache_blocks: usize,
    /// Blocks of host memory that each rank copies its blocks to; none if it does not offload.
    pub(crate) host_blocks: Option<usize>,
    /// Whether its hashes are those of every other such engine, in each epoch.
    pub(crate) has_fixed_hashes: bool,
    /// Whether it writes its events as arrays.
    pub(crate) has_array_events: bool,
    /// Messages that it has published before the services start.
    pub(crate) history: usize,
    /// Numbers of the services that it is registered with at the start and at the end; none means all of them.
    pub(crate) service: Option<usize>,
}

/// Fault of an engine: a message that its cache does not explain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PublisherFault {
    /// An event of a type that is unknown to services; the engine drops a block without another event.
    UnknownEvent,
    /// A payload that is not a batch; the engine drops a block without another event.
    Unreadable,
    /// A block whose store makes a service's writer panic.
    Panic,
    /// More blocks than a writer applies in one turn.
    Large,
}

/// Leading blocks that a rank holds in device memory, and in device or host memory.
pub(crate) type Depths = [u16; 2];

/// A published message.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) payload: Arc<[u8]>,
    /// Leading blocks that each rank holds of each prompt after it.
    depths: Vec<Vec<Depths>>,
    /// The rank whose cache it changes.
    rank: usize,
    /// Blocks of each prompt before the first one that it removes. It may store that block again.
    kept: Vec<u16>,
}

/// One epoch of an engine's caches.
#[derive(Debug)]
pub(crate) struct Epoch {
    hash_seed: u64,
    pub(crate) messages: Vec<Message>,
    /// Whether it has published something after which a rank cannot be exact without a clear.
    pub(crate) is_tainted: bool,
}

/// Caches of one rank.
#[derive(Debug)]
struct RankCaches {
    device: PrefixCache,
    host: Option<PrefixCache>,
}

impl RankCaches {
    fn new(spec: &EngineSpec) -> Self {
        Self { device: PrefixCache::new(spec.cache_blocks), host: spec.host_blocks.map(PrefixCache::new) }
    }

    fn depths(&self, hashes: &[SequenceHash]) -> Depths {
        let holds = |cache: &PrefixCache, hash: SequenceHash| cache.hit(&[hash]) > 0;
        let is_held =
            |hash: SequenceHash| holds(&self.device, hash) || self.host.as_ref().is_some_and(|host| holds(host, hash));
        let any = hashes.iter().take_while(|&&hash| is_held(hash)).count();
        [self.device.hit(hashes) as u16, any as u16]
    }
}

/// One engine: caches of its ranks, and every message that it has published.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) spec: EngineSpec,
    pub(crate) epochs: Vec<Epoch>,
    caches: Vec<RankCaches>,
    prompts: Arc<Vec<Prompt>>,
    random: Random,
}

impl Engine {
    pub(crate) fn new(spec: EngineSpec, prompts: &Arc<Vec<Prompt>>, seed: u64) -> Self {
        let (epochs, caches) = (Vec::new(), Vec::new());
        let mut engine = Self { spec, epochs, caches, prompts: Arc::clone(prompts), random: Random::new(seed) };
        engine.restart();
        engine
    }

    /// Starts another epoch with empty caches.
    pub(crate) fn restart(&mut self) {
        self.caches = self.spec.dp_ranks.iter().map(|_| RankCaches::new(&self.spec)).collect();
        let hash_seed = if self.spec.has_fixed_hashes { 0 } else { self.random.next() };
        self.epochs.push(Epoch { hash_seed, messages: Vec::new(), is_tainted: false });
    }

    /// Number of the current epoch.
    pub(crate) fn epoch(&self) -> usize {
        self.epochs.len() - 1
    }

    pub(crate) fn current(&self) -> &Epoch {
        self.epochs.last().expect("an engine has an epoch")
    }

    /// Leading blocks of a prompt that a rank holds after a message; none after no message.
    pub(crate) fn depth(&self, epoch: usize, last: Option<u64>, rank: usize, prompt: usize) -> Option<Depths> {
        let Some(last) = last else { return Some([0; 2]) };
        let message = self.epochs[epoch].messages.get(last as usize)?;
        Some(message.depths[rank][prompt])
    }

    /// Minimum number of leading blocks of a prompt that a rank holds while a message is applied.
    pub(crate) fn least_depth(&self, epoch: usize, number: u64, rank: usize, prompt: usize) -> Option<Depths> {
        let before = self.depth(epoch, number.checked_sub(1), rank, prompt)?;
        let after = self.depth(epoch, Some(number), rank, prompt)?;
        let message = &self.epochs[epoch].messages[number as usize];
        let kept = if message.rank == rank { message.kept[prompt] } else { u16::MAX };
        Some([0, 1].map(|tier: usize| before[tier].min(after[tier]).min(kept)))
    }

    /// Messages of the current epoch that the replay endpoint still has, starting at `from`.
    pub(crate) fn replayable(&self, from: u64) -> std::ops::Range<u64> {
        let end = self.current().messages.len() as u64;
        from.max(end.saturating_sub(self.spec.buffer_messages as u64)).min(end)..end
    }

    /// Serves a prompt on a rank. Publishes no message if the cache does not change.
    pub(crate) fn serve(&mut self, rank: usize, prompt: usize) {
        self.serve_beside(rank, prompt, 0);
    }

    /// Publishes a message that changes no answer.
    pub(crate) fn publish_filler(&mut self) {
        let event = self.bulk(1);
        self.publish_events(0, &[event]);
    }

    /// Serves a prompt, and stores this number of blocks that no prompt has in the same message.
    fn serve_beside(&mut self, rank: usize, prompt: usize, other_blocks: u64) {
        let prompts = Arc::clone(&self.prompts);
        let served = &prompts[prompt % prompts.len()];
        let hashes = served.hashes(self.current().hash_seed);
        // An engine computes the last token of a prompt, and may therefore store its last block twice.
        let reused_max = served.blocks() - usize::from(self.random.one_in(3));
        let mut changes = Vec::new();
        let RankCaches { device, host } = &mut self.caches[rank];
        device.serve(&hashes, reused_max, &mut changes).expect("a cache has room for every prompt");
        let mut offloads = Vec::new();
        if let Some(host) = host {
            host.serve(&hashes, usize::MAX, &mut offloads).expect("a cache has room for every prompt");
        }
        let mut events = Vec::new();
        if other_blocks > 0 {
            events.push(self.bulk(other_blocks));
        }
        events.extend(changes.iter().map(|change| match *change {
            CacheChange::Removed { hash, .. } => removed(hash, DEVICE),
            CacheChange::Stored { first, last } => stored(served, &hashes, first, last),
        }));
        events.extend(offloads.iter().map(|change| match *change {
            CacheChange::Removed { hash, .. } => removed(hash, HOST),
            CacheChange::Stored { first, last } => offloaded(&hashes[first..last]),
        }));
        if !events.is_empty() {
            self.publish_events(rank, &events);
        }
    }

    /// Clears the cache of a rank.
    pub(crate) fn clear(&mut self, rank: usize) {
        self.caches[rank] = RankCaches::new(&self.spec);
        self.publish_events(rank, &[EngineEvent::Cleared]);
    }

    /// Removes the block of a prompt that is at this depth, if the rank holds it.
    pub(crate) fn remove(&mut self, rank: usize, prompt: usize, depth: usize) {
        if let Some((hash, copies)) = self.drop_block(rank, prompt, depth) {
            let events: Vec<_> = (0..copies).map(|_| removed(hash, DEVICE)).collect();
            self.publish_events(rank, &events);
        }
    }

    /// Removes a block whose next block the rank keeps, if there is one. `choice` chooses among them.
    pub(crate) fn remove_followed(&mut self, choice: u64) {
        let mut followed = Vec::new();
        for (rank, caches) in self.caches.iter().enumerate() {
            for (number, prompt) in self.prompts.iter().enumerate() {
                let held = caches.device.hit(&prompt.hashes(self.current().hash_seed));
                followed.extend((1..held).map(|next| (rank, number, next - 1)));
            }
        }
        if !followed.is_empty() {
            let (rank, prompt, depth) = followed[(choice % followed.len() as u64) as usize];
            self.remove(rank, prompt, depth);
        }
    }

    fn drop_block(&mut self, rank: usize, prompt: usize, depth: usize) -> Option<(SequenceHash, usize)> {
        let prompt = &self.prompts[prompt % self.prompts.len()];
        let hash = prompt.hashes(self.current().hash_seed)[depth % prompt.blocks()];
        let copies = self.caches[rank].device.drop_block(hash);
        (copies > 0).then_some((hash, copies))
    }

    /// Publishes something odd on a rank.
    pub(crate) fn publish_odd(&mut self, rank: usize, prompt: usize, oddity: PublisherFault) {
        match oddity {
            PublisherFault::UnknownEvent => {
                self.drop_block(rank, prompt, 0);
                let mut payload = self.encode(rank, &[EngineEvent::Cleared]);
                let (known, unknown) = (b"AllBlocksCleared", b"AllBlocksShuffle");
                let at = payload.windows(known.len()).position(|window| window == known).expect("its type");
                payload[at..at + unknown.len()].copy_from_slice(unknown);
                self.taint();
                self.publish(rank, payload, &[]);
            }
            PublisherFault::Unreadable => {
                self.drop_block(rank, prompt, 0);
                self.taint();
                // No two messages are equal.
                let number = self.messages() as u64;
                self.publish(rank, [&[0xc1_u8][..], &number.to_be_bytes()].concat(), &[]);
            }
            PublisherFault::Panic => {
                self.taint();
                let block = BlockStored {
                    block_hashes: vec![SequenceHash(PANICKING_BLOCK)],
                    token_ids: TokenIds::Plain(vec![1, 2, 3, 4]),
                    block_size: block_size().tokens(),
                    ..BlockStored::default()
                };
                self.publish_events(rank, &[EngineEvent::Stored(block)]);
            }
            PublisherFault::Large => self.serve_beside(rank, prompt, LARGE_BLOCKS),
        }
    }

    /// Messages of all epochs.
    fn messages(&self) -> usize {
        self.epochs.iter().map(|epoch| epoch.messages.len()).sum()
    }

    fn taint(&mut self) {
        self.epochs.last_mut().expect("an engine has an epoch").is_tainted = true;
    }

    /// Blocks that no prompt has.
    fn bulk(&mut self, blocks: u64) -> EngineEvent<'static> {
        let first = self.random.next() & !0xffff;
        let first_token = 100_000 + (self.random.next() % 1_000_000) as u32;
        EngineEvent::Stored(BlockStored {
            block_hashes: (0..blocks).map(|block| SequenceHash(first + block)).collect(),
            token_ids: TokenIds::Plain((first_token..first_token + blocks as u32 * block_size().tokens()).collect()),
            block_size: block_size().tokens(),
            ..BlockStored::default()
        })
    }

    fn encode(&self, rank: usize, events: &[EngineEvent<'_>]) -> Vec<u8> {
        let encoding = if self.spec.has_array_events { Encoding::Array } else { Encoding::Map };
        // Each timestamp is different, so no two messages are equal.
        let timestamp = 1_700_000_000.0 + self.messages() as f64 / 64.0;
        encode_batch(timestamp, events, Some(DpRank(self.spec.dp_ranks[rank])), encoding)
    }

    fn publish_events(&mut self, rank: usize, events: &[EngineEvent<'_>]) {
        let removed = events.iter().filter_map(|event| match event {
            EngineEvent::Removed(removed) => Some(&removed.block_hashes),
            _ => None,
        });
        let removed: Vec<SequenceHash> = removed.flatten().copied().collect();
        let payload = self.encode(rank, events);
        self.publish(rank, payload, &removed);
    }

    fn publish(&mut self, rank: usize, payload: Vec<u8>, removed: &[SequenceHash]) {
        let hash_seed = self.current().hash_seed;
        let hashes: Vec<_> = self.prompts.iter().map(|prompt| prompt.hashes(hash_seed)).collect();
        let depths = self.caches.iter().map(|caches| hashes.iter().map(|hashes| caches.depths(hashes)).collect());
        let depths = depths.collect();
        let kept = |hashes: &Vec<SequenceHash>| hashes.iter().take_while(|hash| !removed.contains(hash)).count() as u16;
        let kept = hashes.iter().map(kept).collect();
        let epoch = self.epochs.last_mut().expect("an engine has an epoch");
        epoch.messages.push(Message { payload: payload.into(), depths, rank, kept });
    }
}

/// Names of memories in events.
const DEVICE: &str = "GPU";
const HOST: &str = "CPU";

fn removed(hash: SequenceHash, medium: &'static str) -> EngineEvent<'static> {
    EngineEvent::Removed(BlockRemoved { block_hashes: vec![hash], medium: Some(medium), ..BlockRemoved::default() })
}

/// Copies to host memory, which engines publish by hash alone.
fn offloaded(hashes: &[SequenceHash]) -> EngineEvent<'static> {
    EngineEvent::Stored(BlockStored {
        block_hashes: hashes.to_vec(),
        block_size: block_size().tokens(),
        medium: Some(HOST),
        ..BlockStored::default()
    })
}

fn stored<'p>(prompt: &'p Prompt, hashes: &[SequenceHash], first: usize, last: usize) -> EngineEvent<'p> {
    let block_tokens = block_size().token_count();
    let keys = |block: usize| {
        let adapter = prompt.adapter.map(ExtraKey::Text);
        let salt = prompt.salt.filter(|_| block == 0).map(ExtraKey::Text);
        let keys: Vec<_> = adapter.into_iter().chain(salt).collect();
        (!keys.is_empty()).then_some(keys)
    };
    let has_keys = prompt.adapter.is_some() || prompt.salt.is_some();
    EngineEvent::Stored(BlockStored {
        block_hashes: hashes[first..last].to_vec(),
        parent_block_hash: first.checked_sub(1).map(|parent| hashes[parent]),
        token_ids: TokenIds::Plain(prompt.tokens[first * block_tokens..last * block_tokens].to_vec()),
        block_size: block_size().tokens(),
        lora_name: prompt.adapter,
        medium: Some(DEVICE),
        extra_keys: has_keys.then(|| (first..last).map(keys).collect()),
        ..BlockStored::default()
    })
}
