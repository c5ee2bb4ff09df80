//! Event batches of the engines: sequences of blocks, encoded before the timing.

use flash_indexer_core::SequenceHash;
use flash_indexer_wire::{BlockRemoved, BlockStored, Encoding, EngineEvent, TokenIds, encode_batch};

pub(crate) const BLOCK_TOKENS: usize = 16;
/// Blocks in a sequence: 8,192 tokens.
pub(super) const SEQUENCE_BLOCKS: usize = 512;
/// Tokens of a block of long prompts, and blocks of such a prompt: 131,072 tokens.
const LONG_BLOCK_TOKENS: usize = 64;
const LONG_SEQUENCE_BLOCKS: usize = 2_048;
/// Tokens are drawn from a vocabulary of this size.
const VOCABULARY: u64 = 128_000;

/// Sequence hashes are numbers above all tokens.
const NAMES: u64 = 1 << 32;

/// Size and encoding of an engine's batches.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    pub(super) blocks_per_event: usize,
    pub(super) events_per_batch: usize,
    pub(super) encoding: Encoding,
    /// Sequences of each engine.
    pub(super) sequences: usize,
    /// Blocks of a sequence, and tokens of a block.
    pub(super) sequence_blocks: usize,
    pub(super) block_tokens: usize,
}

impl Shape {
    pub(super) const ALL: [Self; 4] = [
        Self { name: "1 block an event, 8 events a batch", events_per_batch: 8, ..Self::SINGLE },
        Self::SINGLE,
        Self { name: "the same as arrays (vLLM 0.23)", encoding: Encoding::Array, ..Self::SINGLE },
        Self::PREFILL,
    ];
    pub(super) const SINGLE: Self = Self {
        name: "1 block an event, 64 events a batch",
        blocks_per_event: 1,
        events_per_batch: 64,
        encoding: Encoding::Map,
        sequences: 400,
        sequence_blocks: SEQUENCE_BLOCKS,
        block_tokens: BLOCK_TOKENS,
    };
    /// 2.37 million events from all engines together, 448 MB.
    pub(super) const BURST: Self = Self {
        name: "1 block an event, 8 events a batch, all at once",
        sequences: 1_157,
        events_per_batch: 8,
        ..Self::SINGLE
    };
    pub(super) const PREFILL: Self = Self {
        name: "64 blocks an event, 8 events a batch",
        blocks_per_event: 64,
        events_per_batch: 8,
        sequences: 1_600,
        ..Self::SINGLE
    };
    /// 7.2 million blocks from all engines together.
    pub(super) const LARGE_PREFILL: Self =
        Self { name: "64 blocks an event, 4 events a batch", events_per_batch: 4, sequences: 3_500, ..Self::PREFILL };
    /// Prompts of 131,072 tokens.
    pub(super) const LONG: Self = Self {
        name: "prompts of 131,072 tokens",
        sequences: 16,
        sequence_blocks: LONG_SEQUENCE_BLOCKS,
        block_tokens: LONG_BLOCK_TOKENS,
        ..Self::PREFILL
    };

    /// Tokens of a sequence.
    pub(super) fn sequence_tokens(self) -> usize {
        self.sequence_blocks * self.block_tokens
    }
}

/// One sequence of one engine. No two sequences share a block.
#[derive(Clone, Copy)]
pub(super) struct Sequence {
    pub(super) engine: usize,
    pub(super) number: usize,
}

impl Sequence {
    fn hashes(self, shape: Shape) -> Vec<SequenceHash> {
        (0..shape.sequence_blocks as u64).map(|block| SequenceHash(self.noise(NAMES + block))).collect()
    }

    pub(super) fn tokens(self, shape: Shape) -> Vec<u32> {
        (0..shape.sequence_tokens() as u64).map(|at| (self.noise(at) % VOCABULARY) as u32).collect()
    }

    /// SplitMix64 at a position of the sequence.
    fn noise(self, at: u64) -> u64 {
        let seed = ((self.engine as u64) << 56) ^ ((self.number as u64) << 40) ^ at;
        let mut mixed = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Batches that store the sequence.
    pub(super) fn stored(self, shape: Shape) -> Vec<Vec<u8>> {
        let (names, tokens) = (self.hashes(shape), self.tokens(shape));
        let mut events = Vec::new();
        for at in (0..shape.sequence_blocks).step_by(shape.blocks_per_event) {
            let end = (at + shape.blocks_per_event).min(shape.sequence_blocks);
            events.push(EngineEvent::Stored(BlockStored {
                block_hashes: names[at..end].to_vec(),
                parent_block_hash: at.checked_sub(1).map(|before| names[before]),
                token_ids: TokenIds::Plain(tokens[at * shape.block_tokens..end * shape.block_tokens].to_vec()),
                block_size: shape.block_tokens as u32,
                medium: Some("GPU"),
                ..BlockStored::default()
            }));
        }
        batches(&events, shape)
    }

    /// Batches that remove the sequence, last block first.
    pub(super) fn removed(self, shape: Shape) -> Vec<Vec<u8>> {
        let names = self.hashes(shape);
        let events: Vec<_> = names.rchunks(shape.blocks_per_event).map(removed).collect();
        batches(&events, shape)
    }
}

fn removed(names: &[SequenceHash]) -> EngineEvent<'static> {
    EngineEvent::Removed(BlockRemoved {
        block_hashes: names.iter().rev().copied().collect(),
        medium: Some("GPU"),
        ..BlockRemoved::default()
    })
}

/// A batch that drops the whole cache.
pub(super) fn cleared() -> Vec<u8> {
    encode_batch(STAMP, &[EngineEvent::Cleared], None, Encoding::Map)
}

fn batches(events: &[EngineEvent<'_>], shape: Shape) -> Vec<Vec<u8>> {
    events.chunks(shape.events_per_batch).map(|events| encode_batch(STAMP, events, None, shape.encoding)).collect()
}

/// Timestamp of all batches, which are encoded long before they are sent.
const STAMP: f64 = 0.0;
