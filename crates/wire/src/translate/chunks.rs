//! Chunks of shared caches: blocks that span several blocks of the index.
//!
//! LMCache keeps chunks of 256 tokens next to engines with blocks of 16. A chunk becomes as many blocks as it spans. The
//! last block has the chunk's sequence hash, which the next chunk names as its parent. The hashes of the other blocks are
//! derived from it, so a removal of the chunk also names them.

use std::borrow::Cow;

use flash_indexer_core::SequenceHash;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{TranslateError, Translator};
use crate::event::{BlockRemoved, BlockStored};
use crate::event_error::EVENT_BLOCKS_MAX;

/// Limit of the blocks in a chunk.
const CHUNK_BLOCKS_MAX: u32 = 256;

/// The longest chunk that a shared cache has stored, in blocks; none before its first store.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ChunkSize(Option<u32>);

impl Translator {
    /// The store with the blocks of its chunks. Stores of an engine, and stores with keys of single blocks, stay as they are.
    pub(super) fn with_divided_chunks<'e, 'a>(&mut self, event: &'e BlockStored<'a>) -> Cow<'e, BlockStored<'a>> {
        if self.options.cache_tier.is_none() {
            return Cow::Borrowed(event);
        }
        let registered = self.options.block_size.tokens();
        let has_tokens = !event.token_ids.is_empty();
        let is_divisible =
            event.block_size > 0 && event.block_size.is_multiple_of(registered) && event.extra_keys.is_none();
        let blocks = match event.block_size / registered {
            blocks @ 1..=CHUNK_BLOCKS_MAX if has_tokens && is_divisible => blocks,
            _ if has_tokens => return Cow::Borrowed(event),
            _ => self.chunk_size.0.unwrap_or(1),
        };
        self.chunk_size.0 = self.chunk_size.0.max(Some(blocks));
        if blocks == 1 {
            return Cow::Borrowed(event);
        }
        let block_hashes = event.block_hashes.iter().flat_map(|&chunk| blocks_of(chunk, blocks)).collect();
        Cow::Owned(BlockStored { block_hashes, block_size: registered, ..event.clone() })
    }

    /// The removal with the blocks of its chunks.
    ///
    /// # Errors
    ///
    /// If no store has shown the size of the chunks, or if the blocks are too many.
    pub(super) fn of_divided_chunks<'e, 'a>(
        &self,
        event: &'e BlockRemoved<'a>,
    ) -> Result<Cow<'e, BlockRemoved<'a>>, TranslateError> {
        let blocks = match (self.options.cache_tier, self.chunk_size.0) {
            (None, _) | (Some(_), Some(1)) => return Ok(Cow::Borrowed(event)),
            (Some(_), None) => return Err(TranslateError::ChunkSizeUnknown),
            (Some(_), Some(blocks)) => blocks,
        };
        if event.block_hashes.len() > (EVENT_BLOCKS_MAX / blocks) as usize {
            return Err(TranslateError::ChunkSizeUnknown);
        }
        let block_hashes = event.block_hashes.iter().flat_map(|&chunk| blocks_of(chunk, blocks)).collect();
        let counts = event.remaining_copy_counts.as_ref();
        let counts =
            counts.map(|counts| counts.iter().flat_map(|&count| std::iter::repeat_n(count, blocks as usize)).collect());
        Ok(Cow::Owned(BlockRemoved { block_hashes, remaining_copy_counts: counts, ..event.clone() }))
    }
}

/// Sequence hashes of the blocks of a chunk. A shorter chunk has the last of them, and the first ones of the others.
fn blocks_of(chunk: SequenceHash, blocks: u32) -> impl Iterator<Item = SequenceHash> {
    let derived = move |number: u32| SequenceHash(xxh3_64_with_seed(&chunk.0.to_le_bytes(), number.into()));
    (1..blocks).map(derived).chain([chunk])
}
