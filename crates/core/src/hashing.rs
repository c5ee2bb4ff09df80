//! The hashing contract: from tokens to local hashes, and from local hashes to prefix hashes.
//!
//! All hashes are XXH3 (64 bits) over little-endian bytes. A frontend that computes local hashes itself must follow
//! the contract exactly; the values in the tests are part of it.

use std::num::NonZeroU32;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{LocalHash, SequenceHash};

/// Seed of local hashes without adapter or salt, and of prefix hashes.
const SEED: u64 = 1337;
const LORA_SEED: u64 = 0;
const SALT_SEED: u64 = 1;

/// Number of tokens in a block; at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockSize(NonZeroU32);

impl BlockSize {
    /// A block size in tokens; none if zero.
    #[must_use]
    pub const fn new(tokens: u32) -> Option<Self> {
        match NonZeroU32::new(tokens) {
            Some(tokens) => Some(Self(tokens)),
            None => None,
        }
    }

    /// Tokens in a block.
    #[must_use]
    pub const fn tokens(self) -> u32 {
        self.0.get()
    }

    /// Tokens in a block, as a count of elements.
    #[must_use]
    pub const fn token_count(self) -> usize {
        self.0.get() as usize
    }
}

/// Hash variant: the LoRA adapter and the cache salt (or namespace) under which tokens are hashed.
///
/// Blocks of different variants never match. An empty adapter or salt counts as absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HashVariant {
    seed: u64,
}

impl HashVariant {
    /// The variant of one adapter and one salt.
    #[must_use]
    pub fn new(lora: Option<&str>, salt: Option<&str>) -> Self {
        Self::salted(lora, salt.and_then(Salt::new))
    }

    /// Seed of the variant's local hashes.
    pub(crate) fn seed(self) -> u64 {
        self.seed
    }

    /// The same with a salt that is already hashed.
    #[must_use]
    pub fn salted(lora: Option<&str>, salt: Option<Salt>) -> Self {
        let lora = lora.filter(|name| !name.is_empty()).map_or(0, |name| xxh3_64_with_seed(name.as_bytes(), LORA_SEED));
        Self { seed: SEED.wrapping_add(lora).wrapping_add(salt.map_or(0, |salt| salt.0)) }
    }
}

/// A hashed cache salt (or namespace).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Salt(u64);

impl Salt {
    /// Hashes a salt; none for an empty text.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| Self(xxh3_64_with_seed(text.as_bytes(), SALT_SEED)))
    }

    /// Restores a salt from [`Salt::to_bits`].
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The hash of the salt.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }
}

impl Default for HashVariant {
    fn default() -> Self {
        Self::new(None, None)
    }
}

/// Token window: the tokens that a block's hash covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TokenWindow {
    /// The block's own tokens.
    #[default]
    Block,
    /// The block's tokens and the one that follows: EAGLE-style speculative pages.
    BlockAndNext,
}

impl TokenWindow {
    /// Number of tokens under one hash.
    #[must_use]
    pub const fn token_count(self, block_size: BlockSize) -> usize {
        match self {
            Self::Block => block_size.token_count(),
            Self::BlockAndNext => block_size.token_count() + 1,
        }
    }
}

/// An image, audio clip or other item whose placeholder tokens are in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MultimodalItem {
    /// Start of the item in tokens, relative to the block; negative if it starts before the block.
    pub offset: i64,
    /// Hash of the item's content.
    pub hash: u64,
}

/// Computes local hashes and reuses its byte buffer.
#[derive(Debug, Default)]
pub struct LocalHasher {
    bytes: Vec<u8>,
}

impl LocalHasher {
    /// The local hash of one block's (or token window's) tokens.
    pub fn tokens(&mut self, variant: HashVariant, tokens: &[u32]) -> LocalHash {
        self.load(tokens);
        self.finish(variant)
    }

    /// The local hash of a block with multimodal items.
    ///
    /// Without items it is [`LocalHasher::tokens`]. One item appends its hash. Several items append hash and offset
    /// each, in order of offset, so that two swapped images inside one block give different hashes.
    pub fn multimodal(&mut self, variant: HashVariant, tokens: &[u32], items: &[MultimodalItem]) -> LocalHash {
        self.load(tokens);
        match items {
            // The hash that clients of other indexers compute, which have no offsets.
            [one] => self.bytes.extend_from_slice(&one.hash.to_le_bytes()),
            items => {
                let mut items = items.to_vec();
                items.sort_unstable();
                for item in items {
                    self.bytes.extend_from_slice(&item.hash.to_le_bytes());
                    self.bytes.extend_from_slice(&item.offset.to_le_bytes());
                }
            }
        }
        self.finish(variant)
    }

    fn load(&mut self, tokens: &[u32]) {
        self.bytes.clear();
        self.bytes.resize(size_of_val(tokens), 0);
        let (places, _) = self.bytes.as_chunks_mut();
        places.iter_mut().zip(tokens).for_each(|(place, token)| *place = token.to_le_bytes());
    }

    fn finish(&self, variant: HashVariant) -> LocalHash {
        LocalHash(xxh3_64_with_seed(&self.bytes, variant.seed))
    }
}

/// Local hashes of all complete blocks of `tokens`; a partial last block has none.
#[must_use]
pub fn local_hashes(
    variant: HashVariant,
    tokens: &[u32],
    block_size: BlockSize,
    window: TokenWindow,
) -> Vec<LocalHash> {
    let length = window.token_count(block_size);
    let mut hasher = LocalHasher::default();
    let starts = (0..tokens.len()).step_by(block_size.token_count());
    starts.map_while(|at| tokens.get(at..at + length)).map(|window| hasher.tokens(variant, window)).collect()
}

/// Prefix hashes: each is the hash of the previous one and the block's local hash; the first equals its local hash.
pub fn sequence_hashes(locals: &[LocalHash]) -> impl Iterator<Item = SequenceHash> {
    locals.iter().scan(None, |previous, &local| {
        *previous = Some(next_sequence_hash(*previous, local));
        *previous
    })
}

/// The prefix hash of a block whose predecessor has the prefix hash `previous`; none at the start of a sequence.
#[must_use]
pub fn next_sequence_hash(previous: Option<SequenceHash>, local: LocalHash) -> SequenceHash {
    let Some(previous) = previous else { return SequenceHash(local.0) };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&previous.0.to_le_bytes());
    bytes[8..].copy_from_slice(&local.0.to_le_bytes());
    SequenceHash(xxh3_64_with_seed(&bytes, SEED))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn four() -> BlockSize {
        BlockSize::new(4).expect("not zero")
    }

    fn local(variant: HashVariant, tokens: &[u32]) -> u64 {
        LocalHasher::default().tokens(variant, tokens).0
    }

    #[test]
    fn local_and_sequence_hashes_match_the_contract() {
        assert_eq!(xxh3_64_with_seed(b"test data", SEED), 13226331709069118873);
        let tokens: Vec<u32> = (1..=14).collect();
        let locals = local_hashes(HashVariant::default(), &tokens, four(), TokenWindow::Block);
        assert_eq!(
            locals,
            [14643705804678351452, 16777012769546811212, 483935686894639516].map(LocalHash),
            "three complete blocks, the partial fourth has no hash"
        );
        assert_eq!(
            sequence_hashes(&locals).collect::<Vec<_>>(),
            [14643705804678351452, 4945711292740353085, 12583592247330656132].map(SequenceHash)
        );
    }

    #[test]
    fn adapters_and_salts_keep_content_apart() {
        let tokens = [1, 2, 3, 4];
        assert_eq!(local(HashVariant::new(Some("adapter-a"), None), &tokens), 11381080598872079209);
        assert_eq!(local(HashVariant::new(None, Some("tenant-a")), &tokens), 5738685477468498325);
        assert_eq!(local(HashVariant::new(Some("adapter-a"), Some("tenant-a")), &tokens), 9967753091837871098);
        assert_eq!(HashVariant::new(Some(""), Some("")), HashVariant::default());
    }

    #[test]
    fn one_multimodal_item_matches_the_contract_and_swapped_items_differ() {
        let (variant, tokens, mut hasher) = (HashVariant::default(), [1, 2, 3, 4], LocalHasher::default());
        let one = [MultimodalItem { offset: 1, hash: 42 }];
        assert_eq!(hasher.multimodal(variant, &tokens, &one).0, 14000361058806882387);
        let pair =
            |first, second| [MultimodalItem { offset: 0, hash: first }, MultimodalItem { offset: 2, hash: second }];
        assert_ne!(
            hasher.multimodal(variant, &tokens, &pair(42, 43)),
            hasher.multimodal(variant, &tokens, &pair(43, 42))
        );
    }

    #[test]
    fn a_speculative_window_covers_the_next_token() {
        let hashes = |tokens: &[u32]| local_hashes(HashVariant::default(), tokens, four(), TokenWindow::BlockAndNext);
        assert_eq!(hashes(&[1, 2, 3, 4, 5]), [LocalHash(1914873892905420881)]);
        assert!(hashes(&[1, 2, 3, 4]).is_empty(), "the window reaches past the last token");
        assert_eq!(hashes(&[1, 2, 3, 4, 5, 6, 7, 8, 9]).len(), 2);
    }
}
