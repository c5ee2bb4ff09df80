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
    /// Begins a batch of `events` events: exactly this number of events must be written.
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
        match event {
            EngineEvent::Stored(event) => writer.event("BlockStored", *encoding, |fields| fields.stored(event)),
            EngineEvent::Removed(event) => writer.event("BlockRemoved", *encoding, |fields| fields.removed(event)),
            EngineEvent::Transferred(event) => {
                writer.event("BlockTransferred", *encoding, |fields| fields.transferred(event));
            }
            EngineEvent::Inactive(BlockInactive { block_hashes }) => {
                writer.event("BlockInactive", *encoding, |fields| {
                    fields.always("block_hashes", |w| w.hashes(block_hashes))
                });
            }
            EngineEvent::Cleared => writer.event("AllBlocksCleared", *encoding, |_| {}),
            EngineEvent::ClearedScope(scope) => {
                writer.event("AllBlocksCleared", *encoding, |fields| fields.cleared(scope));
            }
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
        self.writer.optional(dp_rank, |writer, rank| writer.unsigned(rank.0));
        self.writer.out
    }
}

struct Writer {
    out: Vec<u8>,
}

/// Fields of an event, which are counted as they are written. Arrays have no names of fields.
struct Fields {
    encoding: Encoding,
    count: usize,
    values: Writer,
}

impl Fields {
    fn always(&mut self, name: &str, write: impl FnOnce(&mut Writer)) {
        self.count += 1;
        if self.encoding == Encoding::Map {
            self.values.text(name);
        }
        write(&mut self.values);
    }

    /// A field that a map omits if it is absent. An array has nil in its place.
    fn unless_absent<T>(&mut self, name: &str, value: Option<T>, write: impl FnOnce(&mut Writer, T)) {
        if value.is_some() || self.encoding == Encoding::Array {
            self.always(name, |w| w.optional(value, write));
        }
    }

    /// A field that only maps have, unless it is absent.
    fn in_map<T>(&mut self, name: &str, value: Option<T>, write: impl FnOnce(&mut Writer, T)) {
        if self.encoding == Encoding::Map {
            self.unless_absent(name, value, write);
        }
    }

    fn stored(&mut self, event: &BlockStored<'_>) {
        self.always("block_hashes", |w| w.hashes(&event.block_hashes));
        self.always("parent_block_hash", |w| w.optional(event.parent_block_hash, Writer::hash));
        match (&event.token_ids, self.encoding) {
            (TokenIds::Hashed(hashed), Encoding::Map) => self.always("hashed_tokens", |w| w.hashed_tokens(hashed)),
            (tokens, _) => self.always("token_ids", |w| w.token_ids(tokens)),
        }
        self.always("block_size", |w| w.unsigned(event.block_size));
        self.always("lora_id", |w| w.optional(event.lora_id, Writer::signed));
        self.always("medium", |w| w.optional(event.medium, Writer::text));
        self.always("lora_name", |w| w.optional(event.lora_name, Writer::text));
        self.unless_absent("extra_keys", event.extra_keys.as_ref(), |w, keys| w.extra_keys(keys));
        self.unless_absent("group_idx", event.group.idx, Writer::unsigned);
        self.unless_absent("kv_cache_spec_kind", event.group.kind, Writer::text);
        self.unless_absent("kv_cache_spec_sliding_window", event.group.sliding_window, Writer::unsigned);
        self.in_map("locality", event.locality, Writer::text);
        self.in_map("ownership", event.ownership, Writer::text);
        self.in_map("session_id", event.session_id, Writer::text);
        self.in_map("lookahead_token_ids", event.lookahead_token_ids.as_ref(), |w, blocks| {
            w.list(blocks, |w, tokens| w.tokens(tokens));
        });
        self.in_map("cache_salt", event.cache_salt, Writer::text);
        self.in_map("origin", event.origin.map(StoreOrigin::as_str), Writer::text);
        let skipped_parent = event.skipped.as_ref().and_then(|skipped| skipped.parent_block_hash);
        self.in_map("skipped_parent_block_hash", skipped_parent, Writer::hash);
        self.in_map("component_types", event.components, Writer::components);
    }

    fn removed(&mut self, event: &BlockRemoved<'_>) {
        self.always("block_hashes", |w| w.hashes(&event.block_hashes));
        self.always("medium", |w| w.optional(event.medium, Writer::text));
        self.unless_absent("group_idx", event.group_idx, Writer::unsigned);
        self.in_map("locality", event.locality, Writer::text);
        self.in_map("ownership", event.ownership, Writer::text);
        self.in_map("remaining_copy_counts", event.remaining_copy_counts.as_ref(), |w, counts| w.tokens(counts));
        self.in_map("reason", event.reason.map(RemovalReason::as_str), Writer::text);
    }

    fn transferred(&mut self, event: &BlockTransferred<'_>) {
        self.always("block_hashes", |w| w.hashes(&event.block_hashes));
        self.always("from_medium", |w| w.optional(event.from_medium, Writer::text));
        self.always("to_medium", |w| w.optional(event.to_medium, Writer::text));
        self.always("group_idx", |w| w.optional(event.group_idx, Writer::unsigned));
    }

    fn cleared(&mut self, scope: &ScopedClear<'_>) {
        self.unless_absent("medium", scope.medium, Writer::text);
        self.unless_absent("ownership", scope.ownership, Writer::text);
        self.unless_absent("group_idx", scope.group_idx, Writer::unsigned);
    }
}

impl Writer {
    /// Writes an event with its tag and further fields.
    fn event(&mut self, tag: &str, encoding: Encoding, write: impl FnOnce(&mut Fields)) {
        let mut fields = Fields { encoding, count: 0, values: Self { out: Vec::new() } };
        fields.always("type", |w| w.text(tag));
        write(&mut fields);
        match encoding {
            Encoding::Map => self.map(fields.count),
            Encoding::Array => self.array(fields.count),
        }
        self.out.append(&mut fields.values.out);
    }

    fn extra_keys(&mut self, blocks: &[Option<Vec<ExtraKey<'_>>>]) {
        self.list(blocks, |w, keys| w.optional(keys.as_ref(), |w, keys| w.list(keys, Self::extra_key)));
    }

    fn extra_key(&mut self, key: &ExtraKey<'_>) {
        match *key {
            ExtraKey::Text(text) => self.text(text),
            ExtraKey::Item { id, offset } => {
                self.array(2);
                self.text(id);
                self.signed(offset);
            }
            ExtraKey::Lora(name) => self.texts(&["lora", name]),
            ExtraKey::Salt(salt) => self.texts(&["cache_salt", salt]),
            ExtraKey::Opaque(encoded) => self.out.extend_from_slice(encoded),
        }
    }

    fn texts(&mut self, texts: &[&str]) {
        self.list(texts, |w, text| w.text(text));
    }

    fn hashes(&mut self, hashes: &[SequenceHash]) {
        self.list(hashes, |w, &hash| w.hash(hash));
    }

    fn hash(&mut self, hash: SequenceHash) {
        self.unsigned(hash.0);
    }

    fn token_ids(&mut self, tokens: &TokenIds) {
        match tokens {
            TokenIds::Plain(tokens) => self.tokens(tokens),
            TokenIds::Bigrams(pairs) => self.list(pairs, |w, pair| w.tokens(pair)),
            // Arrays have no place for them.
            TokenIds::Hashed(_) => self.array(0),
        }
    }

    fn hashed_tokens(&mut self, hashed: &HashedTokens) {
        self.array(4);
        self.unsigned(hashed.count);
        self.unsigned(hashed.window == TokenWindow::BlockAndNext);
        self.list(&hashed.local_hashes, |w, local| w.unsigned(local.0));
        self.optional(hashed.salt, |w, salt| w.unsigned(salt.to_bits()));
    }

    fn components(&mut self, components: Components) {
        let named = [("FULL", components.full), ("SWA", components.swa), ("MAMBA", components.mamba)];
        let held: Vec<_> = named.into_iter().filter_map(|(name, is_held)| is_held.then_some(name)).collect();
        self.texts(&held);
    }

    fn tokens(&mut self, tokens: &[u32]) {
        self.list(tokens, |w, &token| w.unsigned(token));
    }

    fn list<T>(&mut self, items: &[T], write: impl Fn(&mut Self, &T)) {
        self.array(items.len());
        items.iter().for_each(|item| write(self, item));
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

    fn unsigned(&mut self, value: impl Into<u64>) {
        infallible(write_uint(&mut self.out, value.into()));
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
