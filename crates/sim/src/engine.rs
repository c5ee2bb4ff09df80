//! A simulated engine: a prefix cache that publishes its changes as vLLM does.

use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::{DpRank, SequenceHash};
use flash_indexer_wire::{
    BlockRemoved, BlockStored, CacheGroup, Encoding, EngineEvent, Sha256CborChain, TokenIds, encode_batch,
};

use crate::cache::{CacheChange, PrefixCache, RequestTooLarge};
use crate::workload::Request;

/// Options of a simulated engine.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Tokens in a block.
    pub block_size: BlockSize,
    /// Physical blocks of the cache.
    pub blocks: usize,
    /// Rank named in every batch.
    pub dp_rank: DpRank,
    /// Seed of block hashes: engines with equal seeds have equal hashes for equal prefixes.
    pub hash_seed: String,
    /// Encoding of events.
    pub encoding: Encoding,
}

/// A batch ready to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedBatch {
    /// Its sequence number in the engine's epoch.
    pub sequence: u64,
    /// The encoded batch, in MessagePack.
    pub payload: Vec<u8>,
    /// Events in it.
    pub events: usize,
    /// Blocks stored or removed by them.
    pub blocks: usize,
}

/// The result of serving one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedRequest {
    /// Cached prompt tokens as vLLM reports them: at least one token is always computed.
    pub cached_tokens: usize,
    /// Batches to publish, one for each scheduling step that changed the cache.
    pub batches: Vec<PublishedBatch>,
}

/// One rank of a simulated engine. Pure: time is an argument, and batches to publish are returned.
#[derive(Debug)]
pub struct SimulatedEngine {
    options: EngineOptions,
    cache: PrefixCache,
    chain: Sha256CborChain,
    next_sequence: u64,
}

impl SimulatedEngine {
    /// An engine with an empty cache.
    #[must_use]
    pub fn new(options: EngineOptions) -> Self {
        let cache = PrefixCache::new(options.blocks);
        let chain = Sha256CborChain::new(&options.hash_seed);
        Self { options, cache, chain, next_sequence: 0 }
    }

    /// The engine's cache.
    #[must_use]
    pub fn cache(&self) -> &PrefixCache {
        &self.cache
    }

    /// Sequence number of the last batch, if there is one.
    #[must_use]
    pub fn last_sequence(&self) -> Option<u64> {
        self.next_sequence.checked_sub(1)
    }

    /// Serves a request to its end: prefill in one step, then a token a step.
    ///
    /// `now_s` is the timestamp of the batches, in seconds since the Unix epoch.
    ///
    /// # Errors
    ///
    /// When prompt and output do not fit into the cache; the cache is unchanged.
    pub fn serve(&mut self, request: &Request, now_s: f64) -> Result<ServedRequest, RequestTooLarge> {
        let block_size = self.options.block_size.token_count();
        // The last output token is sampled but never computed.
        let computed = (request.prompt.len() + request.output.len()).saturating_sub(1).max(request.prompt.len());
        self.cache.check_size(computed.div_ceil(block_size))?;
        let tokens: Vec<u32> = request.prompt.iter().chain(&request.output).take(computed).copied().collect();
        let hashes = self.hashes(&tokens);
        let prompt = request.prompt.len();
        let hit = self.cache.hit(&hashes[..reusable_blocks(prompt, self.options.block_size)]);

        let (mut batches, mut changes) = (Vec::new(), Vec::new());
        let mut running = self.cache.start(&hashes, hit);
        // The first step is the prefill.
        for length in prompt..=computed {
            self.cache.grow(&mut running, length.div_ceil(block_size), &mut changes);
            self.cache.fill(&mut running, &hashes, length / block_size, &mut changes);
            if !changes.is_empty() {
                batches.push(self.publish(&changes, &hashes, &tokens, now_s));
                changes.clear();
            }
        }
        self.cache.finish(running);
        Ok(ServedRequest { cached_tokens: hit * block_size, batches })
    }

    /// The engine's hashes of all complete blocks.
    fn hashes(&mut self, tokens: &[u32]) -> Vec<SequenceHash> {
        let blocks = tokens.chunks_exact(self.options.block_size.token_count());
        let mut parent = None;
        let hashes = blocks.map(|tokens| {
            let hash = self.chain.next(parent.as_ref(), tokens);
            parent = Some(hash);
            hash.sequence_hash()
        });
        hashes.collect()
    }

    fn publish(
        &mut self,
        changes: &[CacheChange],
        hashes: &[SequenceHash],
        tokens: &[u32],
        now_s: f64,
    ) -> PublishedBatch {
        let block_size = self.options.block_size.token_count();
        let mut blocks = 0;
        let mut events = Vec::with_capacity(changes.len());
        for change in changes {
            events.push(match *change {
                CacheChange::Removed { hash, .. } => {
                    blocks += 1;
                    EngineEvent::Removed(BlockRemoved {
                        block_hashes: vec![hash],
                        medium: Some(DEVICE),
                        group_idx: Some(0),
                        ..BlockRemoved::default()
                    })
                }
                CacheChange::Stored { first, last } => {
                    blocks += last - first;
                    EngineEvent::Stored(BlockStored {
                        block_hashes: hashes[first..last].to_vec(),
                        parent_block_hash: first.checked_sub(1).map(|parent| hashes[parent]),
                        token_ids: TokenIds::Plain(tokens[first * block_size..last * block_size].to_vec()),
                        block_size: self.options.block_size.tokens(),
                        medium: Some(DEVICE),
                        group: CacheGroup { idx: Some(0), kind: Some("full_attention"), sliding_window: None },
                        ..BlockStored::default()
                    })
                }
            });
        }
        let payload = encode_batch(now_s, &events, Some(self.options.dp_rank), self.options.encoding);
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        PublishedBatch { sequence, payload, events: events.len(), blocks }
    }
}

/// Largest number of blocks that an engine reuses for a prompt of `prompt_tokens`. The last token is always computed,
/// also if all blocks are cached.
#[must_use]
pub fn reusable_blocks(prompt_tokens: usize, block_size: BlockSize) -> usize {
    prompt_tokens.saturating_sub(1) / block_size.token_count()
}

/// vLLM's name of an accelerator's memory.
const DEVICE: &str = "GPU";
