//! The last prompts of routers' requests, as tokens. Operators get the text of prefixes from them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use flash_indexer_core::LocalHash;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_types::ModelKey;
use parking_lot::Mutex;

/// Limit of the prompts.
pub const PROMPTS_MAX: usize = 1_024;
/// Largest share of the bytes for one prompt, as a divisor; of a longer prompt, only leading blocks are kept. So one long prompt does
/// not replace all others.
const PROMPT_SHARE: usize = 8;
/// Bytes of a prompt in addition to its tokens, hashes and names.
const PROMPT_OVERHEAD_BYTES: usize = 256;

/// The last prompts, within a limit of bytes and of [`PROMPTS_MAX`]. The oldest are dropped for new ones. They are in memory only.
///
/// It keeps the tokens of a prompt's complete blocks. A prompt that equals or continues an earlier one replaces it, so a
/// conversation is kept once. A prompt that is the beginning of a kept one is kept too.
///
/// # Cost
///
/// [`record`](Self::record) copies the tokens and hashes before it takes the lock, and holds it for a pass over [`PROMPTS_MAX`] entries of
/// 24 bytes at most. It compares hashes only with prompts that it is likely to replace. Dropped prompts are freed after the lock.
///
/// # Consistency
///
/// A lookup that begins after a call of [`record`](Self::record) has returned finds the prompt, until newer ones have replaced it. A lookup
/// works on the prompts of one moment, and holds the lock only to list them.
pub struct RecentPrompts {
    bytes_max: usize,
    kept: Mutex<PromptQueue>,
}

/// A prompt: the tokens of its complete blocks, and the local hashes of these blocks, which include adapter and salt.
pub struct RecentPrompt {
    key: ModelKey,
    block_size: BlockSize,
    tokens: Box<[u32]>,
    blocks: Box<[LocalHash]>,
}

/// From the oldest to the newest.
#[derive(Default)]
struct PromptQueue {
    entries: VecDeque<Entry>,
    bytes: usize,
}

/// A prompt, with the fields that are compared before the prompt itself is read.
struct Entry {
    length: usize,
    last: LocalHash,
    prompt: Arc<RecentPrompt>,
}

impl std::fmt::Debug for RecentPrompts {
    /// Omits the prompts, because users typed them.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecentPrompts").field("bytes_max", &self.bytes_max).finish_non_exhaustive()
    }
}

impl RecentPrompts {
    /// No prompts. Recorded prompts take at most this number of bytes together.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, kept: Mutex::default() }
    }

    /// Records a prompt whose complete blocks have these local hashes. There may be more tokens than the blocks have.
    pub fn record(&self, key: &ModelKey, block_size: BlockSize, tokens: &[u32], blocks: &[LocalHash]) {
        let block_bytes = size_of::<LocalHash>() + block_size.token_count() * size_of::<u32>();
        let fixed_bytes = PROMPT_OVERHEAD_BYTES + key.model_name.len() + key.tenant_id.len();
        let length = (self.bytes_max / PROMPT_SHARE).saturating_sub(fixed_bytes) / block_bytes;
        let blocks = &blocks[..blocks.len().min(length)];
        let Some((&last, tokens)) = blocks.last().zip(tokens.get(..blocks.len() * block_size.token_count())) else {
            return;
        };
        let prompt =
            Arc::new(RecentPrompt { key: key.clone(), block_size, tokens: tokens.into(), blocks: blocks.into() });
        let entry = Entry { length: blocks.len(), last, prompt };
        let mut dropped = Vec::new();
        let mut kept = self.kept.lock();
        let PromptQueue { entries, bytes } = &mut *kept;
        entries.retain(|earlier| {
            let is_replaced = entry.continues(earlier);
            if is_replaced {
                *bytes -= earlier.bytes();
                dropped.push(Arc::clone(&earlier.prompt));
            }
            !is_replaced
        });
        *bytes += entry.bytes();
        entries.push_back(entry);
        while (*bytes > self.bytes_max || entries.len() > PROMPTS_MAX)
            && let Some(oldest) = entries.pop_front()
        {
            *bytes -= oldest.bytes();
            dropped.push(oldest.prompt);
        }
        drop(kept);
    }

    /// The newest prompt of a model and tenant that begins with these blocks.
    #[must_use]
    pub fn find(&self, key: &ModelKey, blocks: &[LocalHash]) -> Option<Arc<RecentPrompt>> {
        let prompts: Vec<_> = {
            let kept = self.kept.lock();
            let long = kept.entries.iter().rev().filter(|entry| entry.length >= blocks.len());
            long.map(|entry| Arc::clone(&entry.prompt)).collect()
        };
        prompts.into_iter().find(|prompt| prompt.key == *key && prompt.blocks.starts_with(blocks))
    }

    /// Number of the prompts, and their bytes.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        let kept = self.kept.lock();
        (kept.entries.len(), kept.bytes)
    }
}

impl RecentPrompt {
    /// The tokens of some of its blocks, as far as it has them.
    #[must_use]
    pub fn tokens(&self, blocks: Range<usize>) -> &[u32] {
        let token = |block: usize| block.saturating_mul(self.block_size.token_count()).min(self.tokens.len());
        let (start, end) = (token(blocks.start), token(blocks.end));
        &self.tokens[start.min(end)..end]
    }
}

impl Entry {
    fn bytes(&self) -> usize {
        let RecentPrompt { key, tokens, blocks, .. } = &*self.prompt;
        PROMPT_OVERHEAD_BYTES
            + key.model_name.len()
            + key.tenant_id.len()
            + size_of_val(&**tokens)
            + size_of_val(&**blocks)
    }

    /// Whether the prompt equals an earlier one, or begins with it.
    fn continues(&self, earlier: &Self) -> bool {
        let blocks = &self.prompt.blocks;
        earlier.length.checked_sub(1).and_then(|last| blocks.get(last)) == Some(&earlier.last)
            && self.prompt.key == earlier.prompt.key
            && blocks.starts_with(&earlier.prompt.blocks)
    }
}

#[cfg(test)]
mod tests {
    use flash_indexer_core::hashing::{HashVariant, TokenWindow, local_hashes};

    use super::*;

    const BLOCK_TOKENS: usize = 4;

    fn block_size() -> BlockSize {
        BlockSize::new(BLOCK_TOKENS as u32).expect("not zero")
    }

    fn key(tenant: &str) -> ModelKey {
        ModelKey::new("m", Some(tenant.to_owned()))
    }

    fn hashes(lora: Option<&str>, salt: Option<&str>, tokens: &[u32]) -> Vec<LocalHash> {
        local_hashes(HashVariant::new(lora, salt), tokens, block_size(), TokenWindow::Block)
    }

    fn plain(tokens: &[u32]) -> Vec<LocalHash> {
        hashes(None, None, tokens)
    }

    fn record(prompts: &RecentPrompts, tokens: &[u32]) {
        prompts.record(&key("a"), block_size(), tokens, &plain(tokens));
    }

    /// The tokens that are found for the blocks of a prompt.
    fn found(prompts: &RecentPrompts, tokens: &[u32]) -> Option<Vec<u32>> {
        let blocks = plain(tokens);
        prompts.find(&key("a"), &blocks).map(|prompt| prompt.tokens(0..blocks.len()).to_vec())
    }

    /// A prompt whose content depends on its number.
    fn numbered(number: u32, blocks: usize) -> Vec<u32> {
        (0..blocks * BLOCK_TOKENS).map(|at| number * 10_000 + at as u32).collect()
    }

    #[test]
    fn a_prefix_of_a_prompt_is_found_in_its_own_hash_variant_model_and_tenant_only() {
        let prompts = RecentPrompts::new(1 << 20);
        let tokens = numbered(1, 3);
        prompts.record(&key("a"), block_size(), &[&tokens[..], &[7]].concat(), &plain(&tokens));
        assert_eq!(found(&prompts, &tokens[..2 * BLOCK_TOKENS]).as_deref(), Some(&tokens[..2 * BLOCK_TOKENS]));
        let prompt = prompts.find(&key("a"), &plain(&tokens)).expect("it is kept");
        assert_eq!(prompt.tokens(1..2), &tokens[BLOCK_TOKENS..2 * BLOCK_TOKENS]);
        assert_eq!((prompt.tokens(2..9).len(), prompt.tokens(9..9).len()), (BLOCK_TOKENS, 0), "no incomplete block");

        let begin = &tokens[..BLOCK_TOKENS];
        let is_found = |key: &ModelKey, blocks: &[LocalHash]| prompts.find(key, blocks).is_some();
        assert!(is_found(&key("a"), &plain(begin)));
        assert!(!is_found(&key("b"), &plain(begin)));
        assert!(!is_found(&ModelKey::new("n", Some("a".to_owned())), &plain(begin)));
        assert!(!is_found(&key("a"), &hashes(Some("adapter"), None, begin)));
        assert!(!is_found(&key("a"), &hashes(None, Some("salt"), begin)));
        assert_eq!(found(&prompts, &numbered(1, 4)), None, "it has more blocks");
        assert_eq!(found(&prompts, &tokens[1..]), None, "it begins later");
    }

    #[test]
    fn a_conversation_is_kept_once_and_other_prompts_beside_it() {
        let prompts = RecentPrompts::new(1 << 20);
        for blocks in [2, 3, 3, 5] {
            record(&prompts, &numbered(1, blocks));
        }
        assert_eq!(prompts.size().0, 1);
        assert!(found(&prompts, &numbered(1, 5)).is_some());
        // The same beginning with another continuation; and the beginning alone.
        record(&prompts, &[numbered(1, 2), numbered(2, 1)].concat());
        record(&prompts, &numbered(1, 1));
        prompts.record(&key("b"), block_size(), &numbered(1, 5), &plain(&numbered(1, 5)));
        assert_eq!(prompts.size().0, 4);
        assert!(found(&prompts, &numbered(1, 5)).is_some());
    }

    #[test]
    fn the_oldest_prompts_are_dropped_beyond_the_bytes_and_the_number() {
        let bytes_max = 64 << 10;
        let prompts = RecentPrompts::new(bytes_max);
        for number in 0..100 {
            record(&prompts, &numbered(number, 100));
            assert!(prompts.size().1 <= bytes_max, "{:?}", prompts.size());
        }
        let (count, bytes) = prompts.size();
        assert!(bytes > bytes_max / 2 && count > PROMPT_SHARE, "{count} prompts of {bytes} bytes");
        let kept: Vec<bool> = (0..100).map(|number| found(&prompts, &numbered(number, 1)).is_some()).collect();
        assert_eq!(kept, (0..100).map(|number| number >= 100 - count).collect::<Vec<_>>());

        let prompts = RecentPrompts::new(1 << 30);
        for number in 0..=PROMPTS_MAX as u32 {
            record(&prompts, &numbered(number, 1));
        }
        assert_eq!(prompts.size().0, PROMPTS_MAX);
        assert_eq!(found(&prompts, &numbered(0, 1)), None);
        assert!(found(&prompts, &numbered(1, 1)).is_some());
    }

    #[test]
    fn of_a_long_prompt_the_leading_blocks_are_kept_and_others_stay() {
        let prompts = RecentPrompts::new(64 << 10);
        record(&prompts, &numbered(1, 10));
        let long = numbered(2, 10_000);
        record(&prompts, &long);
        record(&prompts, &long);
        let (count, bytes) = prompts.size();
        assert!(count == 2 && bytes <= (64 << 10) / PROMPT_SHARE + 1_000, "{count} prompts of {bytes} bytes");
        assert!(found(&prompts, &long[..100 * BLOCK_TOKENS]).is_some());
        assert_eq!(found(&prompts, &long), None);
        assert!(found(&prompts, &numbered(1, 10)).is_some());
        // A limit that has no room for a block keeps nothing.
        let none = RecentPrompts::new(100);
        record(&none, &numbered(1, 10));
        assert_eq!(none.size(), (0, 0));
    }
}
