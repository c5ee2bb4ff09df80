//! Decoding, encoding and translation of the KV cache events that inference engines publish.
//!
//! [`LiveMessage`] splits a message into frames. [`Stream`] orders messages by sequence number and repairs gaps. An
//! [`EngineAdapter`] decodes the MessagePack payload event by event. A [`Translator`] for each rank turns engine
//! events into the [`RankEvent`](flash_indexer_core::groups::RankEvent)s of an index.
//!
//! The crate does no I/O. No input causes a panic. An event allocates at most as many elements as it has bytes, and
//! its cost is linear in its length.
//!
//! ```
//! use flash_indexer_core::RemovedCopies;
//! use flash_indexer_core::hashing::BlockSize;
//! use flash_indexer_wire::{
//!     BlockStored, EngineAdapter, Encoding, EngineEvent, TokenIds, Translator, TranslatorOptions, encode_batch,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // One block of two tokens, as vLLM publishes it.
//! let stored = BlockStored {
//!     block_hashes: vec![flash_indexer_core::SequenceHash(1)],
//!     token_ids: TokenIds::Plain(vec![10, 11]),
//!     block_size: 2,
//!     ..BlockStored::default()
//! };
//! let payload = encode_batch(0.0, &[EngineEvent::Stored(stored)], None, Encoding::Map);
//!
//! let block_size = BlockSize::new(2).expect("not zero");
//! let options = TranslatorOptions { block_size, lora_name: None, removed_copies: RemovedCopies::All, cache_tier: None };
//! let mut translator = Translator::new(options);
//! for event in EngineAdapter::Vllm.batch(&payload)?.events {
//!     for change in translator.translate(&event?)? {
//!         println!("{change:?}"); // to be applied to an index
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | file | role |
//! |---|---|
//! | `frames`, `topic` | frames of a multipart message, names in a topic |
//! | `msgpack`, `cbor` | readers and writers of the two binary formats |
//! | `event`, `event_error` | engine events; events that cannot be used, and limits of an event |
//! | `decode`, `decode_event`, `event_fields`, `fields`, `adapter` | decoding of batches, of events, of their fields, of single values, of formats that differ by engine |
//! | `decode_mooncake` | events of Mooncake's master |
//! | `unknown_fields`, `left_out` | fields that this version does not decode; events that an engine's reader cannot use |
//! | `encode` | batches byte for byte as vLLM writes them |
//! | `pulled` | responses of TensorRT-LLM's pull API, as messages of a stream |
//! | `chain_hash` | vLLM's own block hashes |
//! | `cursor`, `stream` | position in a stream; ordering, gaps, replay, epochs |
//! | `translate`, `adapter_salt` | engine events to index events, and the decoder state for that; adapter and salt of blocks |

pub mod cbor;

mod adapter;
mod adapter_salt;
mod chain_hash;
mod cursor;
mod decode;
mod decode_event;
mod decode_mooncake;
mod encode;
mod event;
mod event_error;
mod event_fields;
mod fields;
mod frames;
mod left_out;
mod msgpack;
mod pulled;
mod stream;
mod topic;
mod translate;
mod unknown_fields;

pub use adapter::EngineAdapter;
pub use adapter_salt::{ADAPTER_NAME_BYTES_MAX, AdapterSalt};
pub use chain_hash::{EngineBlockHash, Sha256CborChain};
pub use cursor::Cursor;
pub use decode::{BATCH_EVENTS_MAX, Batch, BatchError, BatchOutline, Events, decode_batch};
pub use encode::{BatchWriter, Encoding, encode_batch, encode_batch_leaving_out};
pub use event::{
    BlockInactive, BlockRemoved, BlockStored, BlockTransferred, CacheGroup, Components, EngineEvent, ExtraKey,
    HashedTokens, RemovalReason, ScopedClear, SkippedBlocks, StoreOrigin, TokenIds,
};
pub use event_error::{
    EVENT_BLOCKS_MAX, EVENT_COUNTS_MAX, EVENT_FIELDS_MAX, EVENT_KEYS_MAX, EVENT_TOKENS_MAX, EventError,
};
pub use frames::{FrameError, LiveMessage, ReplayReply};
pub use left_out::LeftOutEvent;
pub use pulled::{FOLLOWED_BLOCKS_MAX, PullEventError, PullReader, PullResponseError, PulledMessage, PulledMessages};
pub use stream::{
    Action, AppliedTrust, ClearReason, DegradedReason, Numbering, PendingReason, ReplayOutcome, ReplaySupport, Start,
    Stream, StreamEvent, StreamLimits, StreamOptions, StreamPosition, StreamTrust, TrustBasis, plural,
};
pub use topic::{TopicError, TopicNames};
pub use translate::{
    Age, Application, GroupRole, InferredLoss, KnownGroup, RECENT_BLOCKS_MAX, RecentBlock, SaltedBlock, SaltedCopies,
    TranslateError, Translation, Translator, TranslatorOptions,
};
pub use unknown_fields::{FieldName, UNKNOWN_FIELDS_MAX, UnknownField};
