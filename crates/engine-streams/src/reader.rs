//! Batches of the stream as messages for decoders.

use flash_indexer_core::{DpRank, SequenceHash};
use flash_indexer_proto::engine_events::{
    KvBlock, KvBlocksRemoved, KvBlocksStored, KvCacheCleared, KvCacheEvent, KvCacheLocality, KvCacheTier, KvEventBatch,
    kv_block_extra_key, kv_cache_event,
};
use flash_indexer_wire::{
    BlockRemoved, BlockStored, CacheGroup, Encoding, EngineEvent, ExtraKey, LeftOutEvent, ScopedClear, TokenIds,
    encode_batch_leaving_out,
};
use rmp::encode::{write_bin, write_sint};

/// Names of the tiers, as engines name their media.
const MEDIA: [&str; 4] = ["GPU", "CPU", "DISK", "EXTERNAL"];

/// Encodes events as the batch of a message. `also_left_out` are losses that no event shows.
pub(crate) fn message(batch: &KvEventBatch, events: &[KvCacheEvent], mut also_left_out: Vec<LeftOutEvent>) -> Vec<u8> {
    let mut read = Vec::with_capacity(events.len());
    let keys: Vec<Vec<Vec<u8>>> = events.iter().map(opaque_keys).collect();
    for (event, keys) in events.iter().zip(&keys) {
        match &event.data {
            Some(kv_cache_event::Data::Stored(stored)) => match store(stored, keys) {
                Ok(stored) => read.push(EngineEvent::Stored(stored)),
                Err(left_out) => also_left_out.push(left_out),
            },
            Some(kv_cache_event::Data::Removed(removed)) => read.push(EngineEvent::Removed(remove(removed))),
            Some(kv_cache_event::Data::Cleared(KvCacheCleared { ownership })) => {
                let scope = ScopedClear { ownership: ownership.as_deref(), ..ScopedClear::default() };
                read.push(EngineEvent::ClearedScope(scope));
            }
            None => also_left_out.push(LeftOutEvent {
                reason: "unknown_event_type",
                why: "an event over gRPC has none of the known types".to_owned(),
            }),
        }
    }
    let rank = batch.dp_rank.and_then(|rank| u32::try_from(rank).ok()).map(DpRank);
    encode_batch_leaving_out(batch.timestamp, &read, &also_left_out, rank, Encoding::Map)
}

/// A hash as the engine has it: the 64 bits of the number.
fn hash(bits: i64) -> SequenceHash {
    SequenceHash(bits.cast_unsigned())
}

fn store<'a>(stored: &'a KvBlocksStored, opaque: &'a [Vec<u8>]) -> Result<BlockStored<'a>, LeftOutEvent> {
    let first = stored.blocks.first();
    let size = first.map_or(0, |block| block.block_size);
    let is_whole =
        |block: &KvBlock| block.block_size == size && block.token_ids.len() as u64 == u64::from(size.unsigned_abs());
    if size < 0 || !stored.blocks.iter().all(is_whole) {
        return Err(LeftOutEvent {
            reason: "token_count_mismatch",
            why: format!("a store over gRPC has blocks of other sizes than {size} tokens"),
        });
    }
    let mut opaque = opaque.iter();
    let keys_of = |block: &'a KvBlock| {
        let keys = block.extra_keys.iter().map(|key| match &key.key {
            Some(kv_block_extra_key::Key::Text(text)) => ExtraKey::Text(text),
            Some(kv_block_extra_key::Key::Multimodal(item)) => {
                ExtraKey::Item { id: &item.identifier, offset: item.offset }
            }
            _ => ExtraKey::Opaque(opaque.next().map(Vec::as_slice).unwrap_or_default()),
        });
        Some(keys.collect::<Vec<_>>()).filter(|keys| !keys.is_empty())
    };
    let extra_keys: Vec<_> = stored.blocks.iter().map(keys_of).collect();
    Ok(BlockStored {
        block_hashes: stored.blocks.iter().map(|block| hash(block.block_hash)).collect(),
        parent_block_hash: stored.parent_block_hash.map(hash),
        token_ids: TokenIds::Plain(stored.blocks.iter().flat_map(|block| &block.token_ids).copied().collect()),
        block_size: size.unsigned_abs(),
        lora_id: first.and_then(|block| block.lora_id),
        medium: medium(stored.medium.as_deref(), stored.tier, first.and_then(|block| block.cache_level)),
        lora_name: stored.lora_name.as_deref(),
        extra_keys: extra_keys.iter().any(Option::is_some).then_some(extra_keys),
        cache_salt: stored.cache_salt.as_deref(),
        group: CacheGroup {
            idx: stored.group_idx,
            kind: stored.kv_cache_spec_kind.as_deref(),
            sliding_window: stored.kv_cache_spec_sliding_window,
        },
        locality: locality(stored.locality),
        ownership: stored.ownership.as_deref(),
        session_id: stored.session_id.as_deref(),
        ..BlockStored::default()
    })
}

fn remove(removed: &KvBlocksRemoved) -> BlockRemoved<'_> {
    BlockRemoved {
        block_hashes: removed.block_hashes.iter().copied().map(hash).collect(),
        medium: medium(removed.medium.as_deref(), removed.tier, removed.cache_level),
        group_idx: removed.group_idx,
        locality: locality(removed.locality),
        ownership: removed.ownership.as_deref(),
        ..BlockRemoved::default()
    }
}

/// The engine's own name of the memory, else a name of the tier. A number that names no tier is an unknown memory.
fn medium(named: Option<&str>, tier: Option<i32>, level: Option<i32>) -> Option<&str> {
    let number =
        tier.filter(|&tier| tier != KvCacheTier::Unspecified as i32).map(|tier| tier.saturating_sub(1)).or(level);
    named.or_else(|| {
        let name = |at| MEDIA.get(at).copied().unwrap_or("UNKNOWN_TIER");
        number.map(|number| usize::try_from(number).map_or("UNKNOWN_TIER", name))
    })
}

fn locality(locality: Option<i32>) -> Option<&'static str> {
    match KvCacheLocality::try_from(locality?).ok()? {
        KvCacheLocality::Unspecified => None,
        KvCacheLocality::Local => Some("LOCAL"),
        KvCacheLocality::Remote => Some("REMOTE"),
    }
}

/// The keys of a store that are neither texts nor multimodal items, in order, as MessagePack.
fn opaque_keys(event: &KvCacheEvent) -> Vec<Vec<u8>> {
    let Some(kv_cache_event::Data::Stored(stored)) = &event.data else { return Vec::new() };
    let keys = stored.blocks.iter().flat_map(|block| &block.extra_keys);
    keys.filter_map(|key| {
        let mut out = Vec::new();
        match &key.key {
            Some(kv_block_extra_key::Key::Text(_) | kv_block_extra_key::Key::Multimodal(_)) => return None,
            Some(kv_block_extra_key::Key::Blob(blob)) => write_bin(&mut out, blob).map(drop),
            Some(kv_block_extra_key::Key::Number(number)) => write_sint(&mut out, *number).map(drop),
            // A key of a later type is treated as a key with an unknown value.
            None => write_bin(&mut out, b"").map(drop),
        }
        .expect("writing to a Vec cannot fail");
        Some(out)
    })
    .collect()
}
