//! What inference engines publish about their caches: decoded, encoded and translated.
//!
//! The path of a message: [`LiveMessage`] splits the frames, a [`Stream`] says which one comes
//! next and what to do when it is missing, an [`EngineAdapter`] reads the MessagePack payload event by event, and a [`Translator`]
//! for each rank turns engine events into the [`RankEvent`](flash_indexer_core::groups::RankEvent)s of
//! an index. Nothing here does I/O; no input panics, makes an event allocate more elements than it
//! has bytes, or costs more than the event it is in.

pub mod cbor;

mod adapter;
mod chain_hash;
mod cursor;
mod decode;
mod encode;
mod event;
mod fields;
mod frames;
mod msgpack;
mod space;
mod stream;
mod topic;
mod translate;

pub use adapter::EngineAdapter;
pub use chain_hash::{EngineBlockHash, HashedKey, Sha256CborChain};
pub use cursor::Cursor;
pub use decode::{Batch, BatchError, BatchOutline, EventError, Events, decode_batch};
pub use encode::{Encoding, encode_batch};
pub use event::{BlockRemoved, BlockStored, CacheGroup, EngineEvent, ExtraKey, TokenIds};
pub use frames::{FrameError, LiveMessage, ReplayReply};
pub use space::{ADAPTER_NAME_BYTES_MAX, AdapterSalt};
pub use stream::{
    Action, Degraded, Forgotten, Note, Pending, Replay, ReplayOutcome, Start, Stream, StreamLimits, StreamOptions,
    StreamPosition, StreamTrust, plural,
};
pub use topic::{TopicError, TopicNames};
pub use translate::{
    Age, CONTENTS_MAX, GroupRole, KnownGroup, RecentBlock, Translated, Translator, TranslatorOptions, Unusable,
};
