//! Inference engines without a GPU: simulated prefix caches driven by request traces, and streams recorded from real
//! engines, both published over the sockets of a real engine.
//!
//! ```
//! use flash_indexer_core::{DpRank, hashing::BlockSize};
//! use flash_indexer_sim::{EngineOptions, Request, SimulatedEngine};
//! use flash_indexer_wire::Encoding;
//!
//! let block_size = BlockSize::new(4).expect("not zero");
//! let mut engine = SimulatedEngine::new(EngineOptions {
//!     block_size,
//!     blocks: 8,
//!     dp_rank: DpRank(0),
//!     hash_seed: "0".to_owned(),
//!     encoding: Encoding::Map,
//! });
//! let request = Request { at_ms: 0, prompt: (0..10).collect(), output: vec![] };
//! assert_eq!(engine.serve(&request, 0.0)?.cached_tokens, 0);
//! // Two complete blocks are in the cache now.
//! assert_eq!(engine.serve(&request, 1.0)?.cached_tokens, 8);
//! # Ok::<(), flash_indexer_sim::RequestTooLarge>(())
//! ```
//!
//! | file | role |
//! |---|---|
//! | `cache.rs` | a paged prefix cache with vLLM's eviction |
//! | `engine.rs` | a simulated engine: the cache's changes as encoded event batches |
//! | `publisher.rs` | an engine's sockets: live PUB and replay ROUTER |
//! | `recording.rs` | reads streams recorded from real engines |
//! | `fleet/` | many caches without sockets or tokens, for benchmarks |
//! | `workload/` | request streams: Mooncake traces, conversations, agents' sessions, documents |
//! | `random.rs` | reproducible pseudo-random numbers |

pub mod workload;

mod cache;
mod engine;
mod fleet;
mod publisher;
mod random;
mod recording;

pub use cache::{CacheChange, PrefixCache, RequestTooLarge};
pub use engine::{EngineOptions, PublishedBatch, ServedRequest, SimulatedEngine, reusable_blocks};
pub use fleet::{Fleet, FleetOptions, FleetStep, HashSeeds, HoleShare, Routing, rank_of};
pub use publisher::{PublishError, Publisher, PublisherOptions, ReplayFraming, ReplayLoss};
pub use random::Random;
pub use recording::{RecordedLine, RecordedMessage, RecordedRequest, Recording, RecordingError};
pub use workload::Request;
