//! Encoding of batches, byte for byte as vLLM writes them.

use flash_indexer_core::hashing::TokenWindow;
use flash_indexer_core::{DpRank, SequenceHash};
use rmp::encode::{write_array_len, write_f64, write_map_len, write_nil, write_sint, write_str, write_uint};

use crate::event::{
    BlockInactive, BlockRemoved, BlockStored, BlockTransferred, Components, EngineEvent, ExtraKey, HashedTokens,
    RemovalReason, ScopedClear, StoreOrigin, TokenIds,
};
use crate::left_out::{LEFT_OUT, LeftOutEvent};

/// Event format of a vLLM release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// vLLM 0.24 to 0.32: maps without the fields at their default. (0.33 writes the same maps with longer heads.)
    Map,
    /// vLLM 0.22 and 0.23: arrays with every field of those releases.
    Array,
}

/// Encodes a batch. Decoding and encoding a batch that vLLM wrote with integer hashes and bare extra keys returns the
/// same bytes. A field that vLLM does not have in that encoding is omitted; `cache_salt`, which it does not have at all, is in
/// maps only.
#[must_use]
pub fn encode_batch(
    timestamp: f64,
    events: &[EngineEvent<'_>],
    dp_rank: Option<DpRank>,
    encoding: Encoding,
) -> Vec<u8> {
    encode_batch_leaving_out(timestamp, events, &[], dp_rank, encoding)
}

/// [`encode_batch`] with events that cannot be used, after the others. The decoder rejects each with its reason.
#[must_use]
pub fn encode_batch_leaving_out(
    timestamp: f64,
    events: &[EngineEvent<'_>],
    left_out: &[LeftOutEvent],
    dp_rank: Option<DpRank>,
    encoding: Encoding,
) -> Vec<u8> {
    let mut batch = BatchWriter::new(timestamp, events.len() + left_out.len(), encoding);
    events.iter().for_each(|event| batch.event(event));
    left_out.iter().for_each(|event| batch.left_out(event));
    batch.finish(dp_rank)
}

/// Writer of a batch, event by event.
pub struct BatchWriter {
    writer: Writer,
    encoding: Encoding,
}

impl BatchWriter {
    /// Begins a batch of `events` events: as many are to be written.
    #[must_use]
    pub fn new(timestamp: f64, events: usize, encoding: Encoding) -> Self {
        let mut writer = Writer { out: Vec::new() };
        writer.array(3);
        infallible(write_f64(&mut writer.out, timestamp));
        writer.array(events);
        Self { writer, encoding }
    }

    /// Writes the next event.
    pub fn event(&mut self, event: &EngineEvent<'_>) {
        let Self { writer, encoding } = self;
        match (event, *encoding) {
            (EngineEvent::Stored(event), Encoding::Map) => writer.stored_map(event),
            (EngineEvent::Stored(event), Encoding::Array) => writer.stored_array(event),
            (EngineEvent::Removed(event), Encoding::Map) => writer.removed_map(event),
            (EngineEvent::Removed(event), Encoding::Array) => writer.removed_array(event),
            (EngineEvent::Transferred(event), encoding) => writer.transferred(event, encoding),
            (EngineEvent::Inactive(event), encoding) => writer.inactive(event, encoding),
            (EngineEvent::Cleared, Encoding::Map) => writer.event_map("AllBlocksCleared", |_| {}),
            (EngineEvent::Cleared, Encoding::Array) => {
                writer.array(1);
                writer.text("AllBlocksCleared");
            }
            (EngineEvent::ClearedScope(scope), Encoding::Map) => writer.cleared_map(scope),
            (EngineEvent::ClearedScope(scope), Encoding::Array) => writer.cleared_array(scope),
        }
    }

    /// Writes an event that stands for one that cannot be used. The decoder rejects it with its reason.
    pub fn left_out(&mut self, LeftOutEvent { reason, why }: &LeftOutEvent) {
        self.writer.map(3);
        for text in ["type", LEFT_OUT, "reason", reason, "why", why] {
            self.writer.text(text);
        }
    }

    /// The batch, of this data-parallel rank.
    #[must_use]
    pub fn finish(mut self, dp_rank: Option<DpRank>) -> Vec<u8> {
        self.writer.optional(dp_rank, |writer, rank| writer.unsigned(rank.0.into()));
        self.writer.out
    }
}

struct Writer {
    out: Vec<u8>,
}

/// Fields of an event's map, which are counted as they are written.
struct MapFields {
    count: usize,
    fields: Writer,
}

impl MapFields {
    fn always(&mut self, name: &str, write: impl FnOnce(&mut Writer)) {
        self.count += 1;
        self.fields.text(name);
        write(&mut self.fields);
    }

    fn unless_absent<T>(&mut self, name: &str, value: Option<T>, write: impl FnOnce(&mut Writer, T)) {
        if let Some(value) = value {
            self.always(name, |w| write(w, value));
        }
    }
}

impl Writer {
    /// Writes an event as a map, with its tag and further fields.
    fn event_map(&mut self, tag: &str, write: impl FnOnce(&mut MapFields)) {
        let mut map = MapFields { count: 0, fields: Self { out: Vec::new() } };
        map.always("type", |w| w.text(tag));
        write(&mut map);
        self.map(map.count);
        self.out.append(&mut map.fields.out);
    }

    fn stored_map(&mut self, event: &BlockStored<'_>) {
        self.event_map("BlockStored", |map| {
            map.always("block_hashes", |w| w.hashes(&event.block_hashes));
            map.always("parent_block_hash", |w| w.optional(event.parent_block_hash, Self::hash));
            match &event.token_ids {
                TokenIds::Hashed(hashed) => map.always("hashed_tokens", |w| w.hashed_tokens(hashed)),
                tokens => map.always("token_ids", |w| w.token_ids(tokens)),
            }
            map.always("block_size", |w| w.unsigned(event.block_size.into()));
            map.always("lora_id", |w| w.optional(event.lora_id, Self::signed));
            map.always("medium", |w| w.optional(event.medium, Self::text));
            map.always("lora_name", |w| w.optional(event.lora_name, Self::text));
            map.unless_absent("extra_keys", event.extra_keys.as_ref(), |w, keys| w.extra_keys(keys));
            map.unless_absent("group_idx", event.group.idx, |w, idx| w.unsigned(idx.into()));
            map.unless_absent("kv_cache_spec_kind", event.group.kind, Self::text);
            map.unless_absent("kv_cache_spec_sliding_window", event.group.sliding_window, |w, window| {
                w.unsigned(window.into());
            });
            map.unless_absent("locality", event.locality, Self::text);
            map.unless_absent("ownership", event.ownership, Self::text);
            map.unless_absent("session_id", event.session_id, Self::text);
            map.unless_absent("lookahead_token_ids", event.lookahead_token_ids.as_ref(), |w, blocks| {
                w.array(blocks.len());
                for tokens in blocks {
                    w.tokens(tokens);
                }
            });
            map.unless_absent("cache_salt", event.cache_salt, Self::text);
            map.unless_absent("origin", event.origin.map(StoreOrigin::as_str), Self::text);
            let skipped_parent = event.skipped.as_ref().and_then(|skipped| skipped.parent_block_hash);
            map.unless_absent("skipped_parent_block_hash", skipped_parent, Self::hash);
            map.unless_absent("component_types", event.components, Self::components);
        });
    }

    fn stored_array(&mut self, event: &BlockStored<'_>) {
        self.array(12);
        self.text("BlockStored");
        self.hashes(&event.block_hashes);
        self.optional(event.parent_block_hash, Self::hash);
        self.token_ids(&event.token_ids);
        self.unsigned(event.block_size.into());
        self.optional(event.lora_id, Self::signed);
        self.optional(event.medium, Self::text);
        self.optional(event.lora_name, Self::text);
        self.optional(event.extra_keys.as_ref(), |w, keys| w.extra_keys(keys));
        self.optional(event.group.idx, |w, idx| w.unsigned(idx.into()));
        self.optional(event.group.kind, Self::text);
        self.optional(event.group.sliding_window, |w, window| w.unsigned(window.into()));
    }

    fn removed_map(&mut self, event: &BlockRemoved<'_>) {
        self.event_map("BlockRemoved", |map| {
            map.always("block_hashes", |w| w.hashes(&event.block_hashes));
            map.always("medium", |w| w.optional(event.medium, Self::text));
            map.unless_absent("group_idx", event.group_idx, |w, idx| w.unsigned(idx.into()));
            map.unless_absent("locality", event.locality, Self::text);
            map.unless_absent("ownership", event.ownership, Self::text);
            map.unless_absent("remaining_copy_counts", event.remaining_copy_counts.as_ref(), |w, counts| {
                w.tokens(counts)
            });
            map.unless_absent("reason", event.reason.map(RemovalReason::as_str), Self::text);
        });
    }

    fn removed_array(&mut self, event: &BlockRemoved<'_>) {
        self.array(4);
        self.text("BlockRemoved");
        self.hashes(&event.block_hashes);
        self.optional(event.medium, Self::text);
        self.optional(event.group_idx, |w, idx| w.unsigned(idx.into()));
    }

    fn transferred(&mut self, event: &BlockTransferred<'_>, encoding: Encoding) {
        let keys = ["type", "block_hashes", "from_medium", "to_medium", "group_idx"];
        self.fields(encoding, &keys, |w, at| match at {
            0 => w.text("BlockTransferred"),
            1 => w.hashes(&event.block_hashes),
            2 => w.optional(event.from_medium, Self::text),
            3 => w.optional(event.to_medium, Self::text),
            _ => w.optional(event.group_idx, |w, idx| w.unsigned(idx.into())),
        });
    }

    fn inactive(&mut self, event: &BlockInactive, encoding: Encoding) {
        self.fields(encoding, &["type", "block_hashes"], |w, at| match at {
            0 => w.text("BlockInactive"),
            _ => w.hashes(&event.block_hashes),
        });
    }

    /// Writes every field of an event, under its key in a map.
    fn fields(&mut self, encoding: Encoding, keys: &[&str], write: impl Fn(&mut Self, usize)) {
        match encoding {
            Encoding::Map => self.map(keys.len()),
            Encoding::Array => self.array(keys.len()),
        }
        for (at, key) in keys.iter().enumerate() {
            if encoding == Encoding::Map {
                self.text(key);
            }
            write(self, at);
        }
    }

    fn cleared_map(&mut self, scope: &ScopedClear<'_>) {
        self.event_map("AllBlocksCleared", |map| {
            map.unless_absent("medium", scope.medium, Self::text);
            map.unless_absent("ownership", scope.ownership, Self::text);
            map.unless_absent("group_idx", scope.group_idx, |w, idx| w.unsigned(idx.into()));
        });
    }

    fn cleared_array(&mut self, scope: &ScopedClear<'_>) {
        self.array(4);
        self.text("AllBlocksCleared");
        self.optional(scope.medium, Self::text);
        self.optional(scope.ownership, Self::text);
        self.optional(scope.group_idx, |w, idx| w.unsigned(idx.into()));
    }

    fn extra_keys(&mut self, blocks: &[Option<Vec<ExtraKey<'_>>>]) {
        self.array(blocks.len());
        for keys in blocks {
            self.optional(keys.as_ref(), |w, keys| {
                w.array(keys.len());
                for key in keys {
                    w.extra_key(key);
                }
            });
        }
    }

    fn extra_key(&mut self, key: &ExtraKey<'_>) {
        match *key {
            ExtraKey::Text(text) => self.text(text),
            ExtraKey::Item { id, offset } => {
                self.array(2);
                self.text(id);
                self.signed(offset);
            }
            ExtraKey::Lora(name) => self.tagged("lora", name),
            ExtraKey::Salt(salt) => self.tagged("cache_salt", salt),
            ExtraKey::Opaque(encoded) => self.out.extend_from_slice(encoded),
        }
    }

    fn tagged(&mut self, tag: &str, text: &str) {
        self.array(2);
        self.text(tag);
        self.text(text);
    }

    fn hashes(&mut self, hashes: &[SequenceHash]) {
        self.array(hashes.len());
        for &hash in hashes {
            self.hash(hash);
        }
    }

    fn hash(&mut self, hash: SequenceHash) {
        self.unsigned(hash.0);
    }

    fn token_ids(&mut self, tokens: &TokenIds) {
        match tokens {
            TokenIds::Plain(tokens) => self.tokens(tokens),
            TokenIds::Bigrams(pairs) => {
                self.array(pairs.len());
                for pair in pairs {
                    self.tokens(pair);
                }
            }
            // Arrays have no place for them.
            TokenIds::Hashed(_) => self.array(0),
        }
    }

    fn hashed_tokens(&mut self, hashed: &HashedTokens) {
        self.array(4);
        self.unsigned(hashed.count.into());
        self.unsigned((hashed.window == TokenWindow::BlockAndNext).into());
        self.array(hashed.local_hashes.len());
        for local in &hashed.local_hashes {
            self.unsigned(local.0);
        }
        self.optional(hashed.salt, |w, salt| w.unsigned(salt.to_bits()));
    }

    fn components(&mut self, components: Components) {
        let named = [("FULL", components.full), ("SWA", components.swa), ("MAMBA", components.mamba)];
        let named: Vec<_> = named.into_iter().filter(|(_, is_held)| *is_held).collect();
        self.array(named.len());
        for (name, _) in named {
            self.text(name);
        }
    }

    fn tokens(&mut self, tokens: &[u32]) {
        self.array(tokens.len());
        for &token in tokens {
            self.unsigned(token.into());
        }
    }

    fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match value {
            Some(value) => write(self, value),
            None => infallible(write_nil(&mut self.out)),
        }
    }

    fn text(&mut self, text: &str) {
        infallible(write_str(&mut self.out, text));
    }

    fn unsigned(&mut self, value: u64) {
        infallible(write_uint(&mut self.out, value));
    }

    fn signed(&mut self, value: i64) {
        infallible(write_sint(&mut self.out, value));
    }

    fn array(&mut self, len: usize) {
        infallible(write_array_len(&mut self.out, len as u32));
    }

    fn map(&mut self, len: usize) {
        infallible(write_map_len(&mut self.out, len as u32));
    }
}

fn infallible<T, E: std::fmt::Debug>(written: Result<T, E>) {
    written.expect("writing to a Vec cannot fail");
}
