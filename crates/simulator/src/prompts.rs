//! Prompts that the simulated engines serve and whose matches are checked.

use flash_indexer_core::SequenceHash;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_registry::{Query, TokenPrompt};
use flash_indexer_sim::Random;

/// Tokens in a block of every simulated engine.
const BLOCK_TOKENS: u32 = 4;

/// A prompt of whole blocks.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub(crate) tokens: Vec<u32>,
    pub(crate) adapter: Option<&'static str>,
    pub(crate) salt: Option<&'static str>,
}

pub(crate) fn block_size() -> BlockSize {
    BlockSize::new(BLOCK_TOKENS).expect("not zero")
}

impl Prompt {
    /// Prompts that share prefixes: each extends one of few system prompts, which differ in adapter and salt.
    pub(crate) fn pool(random: &mut Random) -> Vec<Self> {
        let variants = [
            (None, None),
            (None, None),
            (Some("adapter"), None),
            (None, Some("salt")),
            (Some("adapter"), Some("salt")),
        ];
        let mut prompts = Vec::new();
        for _ in 0..random.within(2..5) {
            let (adapter, salt) = variants[random.within(0..variants.len())];
            let system = tokens(random, 1..5);
            for _ in 0..random.within(1..5) {
                let tokens = system.iter().copied().chain(tokens(random, 0..6)).collect();
                prompts.push(Self { tokens, adapter, salt });
            }
        }
        prompts
    }

    /// An engine's hashes of its blocks. `seed` is the engine's.
    pub(crate) fn hashes(&self, seed: u64) -> Vec<SequenceHash> {
        let variant = self.adapter.map_or(0, |_| 1) + self.salt.map_or(0, |_| 2);
        let mut parent = seed ^ variant;
        let hashes = self.tokens.chunks(BLOCK_TOKENS as usize).map(|block| {
            for &token in block {
                parent = Random::new(parent ^ u64::from(token)).next();
            }
            SequenceHash(parent)
        });
        hashes.collect()
    }

    /// A query for the prompt.
    pub(crate) fn query(&self) -> Query<'_> {
        Query::Tokens(TokenPrompt { tokens: &self.tokens, lora_name: self.adapter, cache_salt: self.salt })
    }

    /// Number of its blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.tokens.len() / BLOCK_TOKENS as usize
    }
}

/// Tokens of a number of whole blocks in this range.
fn tokens(random: &mut Random, blocks: std::ops::Range<usize>) -> Vec<u32> {
    let count = random.within(blocks) * BLOCK_TOKENS as usize;
    (0..count).map(|_| (random.next() % 50_000) as u32).collect()
}
