//! The index of a fleet inside a router's process, without a service: registered ranks, engine messages in, matches
//! with their trust states out. The Python wheel and the C library are thin layers above it.
//!
//! ```
//! use std::time::Instant;
//!
//! use flash_indexer_core::hashing::{BlockSize, HashVariant};
//! use flash_indexer_core::{DpRank, SequenceHash, Tier, WorkerId, WorkerRank};
//! use flash_indexer_embed::{EmbeddedIndex, EngineOptions, TrustState};
//! use flash_indexer_wire::{BlockStored, Encoding, EngineEvent, TokenIds, encode_batch};
//!
//! let index = EmbeddedIndex::new(BlockSize::new(2).expect("not zero"));
//! index.register(WorkerId(7), EngineOptions::default())?;
//!
//! // The first message of an engine: one block of two tokens.
//! let stored = BlockStored {
//!     block_hashes: vec![SequenceHash(1)],
//!     token_ids: TokenIds::Plain(vec![10, 11]),
//!     block_size: 2,
//!     ..BlockStored::default()
//! };
//! let payload = encode_batch(0.0, &[EngineEvent::Stored(stored)], None, Encoding::Map);
//! let rank = WorkerRank { worker: WorkerId(7), dp_rank: DpRank(0) };
//! let report = index.apply_payload(rank, Some(0), &payload, Instant::now())?;
//! assert_eq!((report.applied.stored, report.rejections.len()), (1, 0));
//!
//! let found = index.find_tokens(HashVariant::default(), &[10, 11, 12], None)?;
//! assert_eq!(found[0].blocks[Tier::Device], 1);
//! assert_eq!(found[0].trust, TrustState::Exact);
//! # Ok::<(), flash_indexer_embed::EmbedError>(())
//! ```
//!
//! | file | role |
//! |---|---|
//! | `index`, `find` | the index: registrations, changes, sizes; queries |
//! | `options`, `error`, `report` | settings of an engine, errors, and the effects of a message |
//! | `state`, `instance`, `stream`, `rank` | state of all instances, of one engine, of one of its streams, of one rank |
//! | `effects` | losses that an applied change shows |
//! | `trust` | trust states, computed from missing changes |
//! | `listed` | the registered ranks, in the form that queries read |
//!
//! The crate has no I/O, no threads and no clock: callers own the sockets and pass the time.

mod effects;
mod error;
mod find;
mod index;
mod instance;
mod listed;
mod options;
mod rank;
mod report;
mod state;
mod stream;
mod trust;

pub use error::EmbedError;
pub use find::FoundRank;
pub use index::EmbeddedIndex;
pub use instance::RANKS_PER_STREAM_MAX;
pub use options::{EngineOptions, UnknownEngine};
pub use report::{MessageReport, Rejection, ReplayRequest};
pub use state::RANKS_MAX;
pub use trust::{RankTrust, TrustState};
