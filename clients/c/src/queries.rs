//! Hashes, matches, sizes and trust.

use std::ffi::c_char;

use flash_indexer_core::hashing::{BlockSize, HashVariant, TokenWindow, local_hashes};
use flash_indexer_core::{LocalHash, Tier};
use flash_indexer_embed::{EmbedError, FoundRank, TrustState};

use crate::arguments;
use crate::index::FlashIndex;
use crate::status::{Failure, FlashIndexStatus, guarded};

/// Reliability of what the index has of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum FlashIndexTrust {
    /// Every change since a known empty cache was applied, and nothing is known to be missing.
    Exact = 0,
    /// Nothing was received yet.
    Cold = 1,
    /// Changes up to an earlier message were applied, and the messages after it are being replayed.
    Recovering = 2,
    /// Changes were lost, or the cache was not empty when the first one was received: matches may be too long or too short.
    Degraded = 3,
}

impl From<TrustState> for FlashIndexTrust {
    fn from(trust: TrustState) -> Self {
        match trust {
            TrustState::Exact => Self::Exact,
            TrustState::Cold => Self::Cold,
            TrustState::Recovering => Self::Recovering,
            TrustState::Degraded => Self::Degraded,
        }
    }
}

/// A rank that holds the first block of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct FlashIndexMatch {
    /// The instance.
    pub instance: u64,
    /// Its data-parallel rank.
    pub dp_rank: u32,
    /// Reliability of the rank.
    pub trust: FlashIndexTrust,
    /// Leading blocks of the query that the rank holds in a tier and all faster ones together, by tier: the first is that of
    /// device memory, and the last that of all tiers.
    pub blocks: [u32; 4],
}

impl From<FoundRank> for FlashIndexMatch {
    fn from(FoundRank { rank, blocks, trust }: FoundRank) -> Self {
        Self { instance: rank.worker.0, dp_rank: rank.dp_rank.0, trust: trust.into(), blocks: blocks.0 }
    }
}

/// Blocks of a rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FlashIndexSize {
    /// Blocks in at least one tier.
    pub blocks: u64,
    /// Blocks in each tier.
    pub by_tier: [u64; 4],
    /// Of blocks, those whose parent is unknown.
    pub waiting: u64,
}

/// The adapter and the salt of a prompt.
///
/// # Safety
///
/// The texts are NULL or valid.
unsafe fn variant(lora_name: *const c_char, cache_salt: *const c_char) -> Result<HashVariant, Failure> {
    // SAFETY: by this function's contract.
    let lora_name = unsafe { arguments::text("lora_name", lora_name) }?;
    // SAFETY: by this function's contract.
    let cache_salt = unsafe { arguments::text("cache_salt", cache_salt) }?;
    Ok(HashVariant::new(lora_name, cache_salt))
}

/// Computes the local hashes of all complete blocks of count tokens, under a LoRA adapter and a cache salt (NULL or empty for
/// none). Writes them to hashes, which has room for capacity, and their number to *hash_count, unless NULL. With less room it
/// writes only the number, which is count / block_size.
///
/// # Safety
///
/// tokens has count elements, hashes room for capacity; hash_count is NULL or valid; the texts are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flash_index_hash_tokens(
    tokens: *const u32,
    count: usize,
    block_size: u32,
    lora_name: *const c_char,
    cache_salt: *const c_char,
    hashes: *mut u64,
    capacity: usize,
    hash_count: *mut usize,
) -> FlashIndexStatus {
    guarded(|| {
        // SAFETY: by this function's contract.
        let tokens = unsafe { arguments::array("tokens", tokens, count) }?;
        // SAFETY: by this function's contract.
        let variant = unsafe { variant(lora_name, cache_salt) }?;
        let size = BlockSize::new(block_size).ok_or_else(|| {
            let message = "failed to hash tokens: block_size is 0; pass the engines' tokens per block";
            Failure::new(FlashIndexStatus::InvalidArgument, message)
        })?;
        let needed = tokens.len() / size.token_count();
        // SAFETY: by this function's contract.
        unsafe { arguments::write("hash_count", hash_count, needed) }?;
        if needed > capacity {
            let message =
                format!("failed to write {needed} hashes: there is room for {capacity}; pass a larger buffer");
            return Err(Failure::new(FlashIndexStatus::BufferTooSmall, message));
        }
        // SAFETY: by this function's contract.
        let places = unsafe { arguments::buffer("hashes", hashes, needed) }?;
        let computed = local_hashes(variant, tokens, size, TokenWindow::Block);
        for (place, hash) in places.iter_mut().zip(computed) {
            place.write(hash.0);
        }
        Ok(())
    })
}

/// Writes the deepest ranks to the caller's buffer, deepest first.
///
/// # Safety
///
/// index is a valid index; matches has room for capacity; match_count points to a size_t.
unsafe fn query(
    index: *const FlashIndex,
    (matches, capacity): (*mut FlashIndexMatch, usize),
    match_count: *mut usize,
    find: impl FnOnce(&FlashIndex) -> Result<Result<Vec<FoundRank>, EmbedError>, Failure>,
) -> FlashIndexStatus {
    guarded(|| {
        // SAFETY: by this function's contract.
        let index = unsafe { arguments::index(index) }?;
        if match_count.is_null() {
            let message = "failed to query: match_count is NULL; pass a pointer to a size_t";
            return Err(Failure::new(FlashIndexStatus::NullPointer, message));
        }
        // SAFETY: by this function's contract.
        let places = unsafe { arguments::buffer("matches", matches, capacity) }?;
        let found = find(index)??;
        for (place, &found) in places.iter_mut().zip(&found) {
            place.write(found.into());
        }
        // SAFETY: by this function's contract.
        unsafe { arguments::write("match_count", match_count, found.len().min(capacity)) }
    })
}

/// Finds the ranks that hold the first block of a prompt, given by count local hashes. Writes at most capacity of them to
/// matches, and how many to *match_count: the deepest ones in device memory, then in any tier, then by instance and rank,
/// deepest first. Costs the blocks and the ranks on the query's path, regardless of the size of the index.
///
/// # Safety
///
/// index is a valid index; local_hashes has count elements; matches has room for capacity; match_count points to a size_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flash_index_query_hashes(
    index: *const FlashIndex,
    local_hashes: *const u64,
    count: usize,
    matches: *mut FlashIndexMatch,
    capacity: usize,
    match_count: *mut usize,
) -> FlashIndexStatus {
    let find = |index: &FlashIndex| {
        // SAFETY: by this function's contract.
        let hashes = unsafe { arguments::array("local_hashes", local_hashes, count) }?;
        Ok(index.embedded.find_hashes(LocalHash::of_slice(hashes), Some(capacity)))
    };
    // SAFETY: by this function's contract.
    unsafe { query(index, (matches, capacity), match_count, find) }
}

/// The same for a prompt given by count tokens, under a LoRA adapter and a cache salt (NULL or empty for none). A last block
/// that is not full does not count.
///
/// # Safety
///
/// As flash_index_query_hashes, with count tokens; the texts are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flash_index_query(
    index: *const FlashIndex,
    tokens: *const u32,
    count: usize,
    lora_name: *const c_char,
    cache_salt: *const c_char,
    matches: *mut FlashIndexMatch,
    capacity: usize,
    match_count: *mut usize,
) -> FlashIndexStatus {
    let find = |index: &FlashIndex| {
        // SAFETY: by this function's contract.
        let tokens = unsafe { arguments::array("tokens", tokens, count) }?;
        // SAFETY: by this function's contract.
        let variant = unsafe { variant(lora_name, cache_salt) }?;
        Ok(index.embedded.find_tokens(variant, tokens, Some(capacity)))
    };
    // SAFETY: by this function's contract.
    unsafe { query(index, (matches, capacity), match_count, find) }
}

/// Writes the number of blocks of a rank to *size: zero for a rank that the index does not have.
///
/// # Safety
///
/// index is a valid index; size points to a FlashIndexSize.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flash_index_size(
    index: *const FlashIndex,
    instance: u64,
    dp_rank: u32,
    size: *mut FlashIndexSize,
) -> FlashIndexStatus {
    guarded(|| {
        // SAFETY: by this function's contract.
        let index = unsafe { arguments::index(index) }?;
        let found = index.embedded.size(arguments::rank(instance, dp_rank))?;
        let by_tier = Tier::ALL.map(|tier| found.by_tier[tier] as u64);
        let result = FlashIndexSize { blocks: found.blocks as u64, by_tier, waiting: found.waiting as u64 };
        // SAFETY: by this function's contract.
        unsafe { arguments::write("size", size, result) }
    })
}

/// Writes the trust in a rank to *trust, and why it is not exact to why, unless NULL: in UTF-8, ending with a NUL, cut to
/// capacity bytes; empty for a rank that is exact or cold. FLASH_INDEX_STATUS_NOT_FOUND for a rank without a change.
///
/// # Safety
///
/// index is a valid index; trust points to a FlashIndexTrust; why is NULL or has room for capacity bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flash_index_trust(
    index: *const FlashIndex,
    instance: u64,
    dp_rank: u32,
    trust: *mut FlashIndexTrust,
    why: *mut c_char,
    capacity: usize,
) -> FlashIndexStatus {
    guarded(|| {
        // SAFETY: by this function's contract.
        let index = unsafe { arguments::index(index) }?;
        let found = index.embedded.trust(arguments::rank(instance, dp_rank))?.ok_or_else(|| {
            let message = format!(
                "failed to find rank {dp_rank} of instance {instance}: no message or change named it; apply one first"
            );
            Failure::new(FlashIndexStatus::NotFound, message)
        })?;
        // SAFETY: by this function's contract.
        let places = unsafe { arguments::buffer("why", why, if why.is_null() { 0 } else { capacity }) }?;
        if let Some(room) = places.len().checked_sub(1) {
            let text = found.why.unwrap_or_default();
            let end = text.floor_char_boundary(text.len().min(room));
            let bytes = text.as_bytes()[..end].iter().chain(&[0]);
            for (place, &byte) in places.iter_mut().zip(bytes) {
                place.write(byte as c_char);
            }
        }
        // SAFETY: by this function's contract.
        unsafe { arguments::write("trust", trust, found.state.into()) }
    })
}
