//! The pure heart of Flash Indexer: block identities, hashes, events, scores, the oracle and the run index.
//!
//! Nothing here does I/O, reads a clock, logs or starts a thread. An index is a value that takes
//! [`BlockEvent`]s of one [`WorkerRank`] at a time and answers, for the local hashes of a prompt's
//! blocks, how deep each rank holds that prefix. Other index designs are in `flash-indexer-designs`.
//!
//! ```
//! use flash_indexer_core::hashing::{BlockSize, HashVariant, TokenWindow, local_hashes};
//! use flash_indexer_core::run::RunIndex;
//! use flash_indexer_core::{Block, BlockEvent, DpRank, SequenceHash, SharedIndex, Tier, WorkerId, WorkerRank};
//!
//! let block_size = BlockSize::new(2).expect("two is not zero");
//! let locals = local_hashes(HashVariant::default(), &[7, 8, 9, 10], block_size, TokenWindow::Block);
//! let rank = WorkerRank { worker: WorkerId(1), dp_rank: DpRank(0) };
//!
//! let index = RunIndex::default();
//! index.apply(rank, &BlockEvent::Stored {
//!     tier: Tier::Device,
//!     parent: None,
//!     blocks: vec![Block { sequence: SequenceHash(11), local: locals[0] }],
//!     copies: 1,
//! });
//! let scores = index.find(&locals);
//! assert_eq!(scores.get(rank).expect("it holds the first block").blocks[Tier::Device], 1);
//! ```
//!
//! | module | role |
//! |---|---|
//! | `event`, `ids` | events of a rank's cache, and the identities in them |
//! | `hashing`, `token_windows`, `keyed` | local hashes and prefix hashes; token windows in use; keyed hash tables |
//! | `index`, `shared_index`, `locked`, `scores`, `deepest`, `held`, `held_reading`, `tiers` | the traits of index designs, one behind a lock, answers, their deepest ranks, dumps and fastest tiers |
//! | `named_enum` | [`named_enum!`]: enums whose variants have names |
//! | `continuation`, `followers` | matches that other ranks continue, and the blocks that do |
//! | `oracle` | the reference implementation that every design must equal |
//! | `run` | the run index, the default design |
//! | `sharded` | an index divided into shards, which threads change at the same time |
//! | `rank_blocks`, `prefixes` | one rank's sequence hashes, and its blocks by prefix hash |
//! | `partial_ranks` | ranks with blocks that an index does not have |
//! | `cursor` | hashes that name long prefixes |
//! | `groups` | cache groups of hybrid models |

pub mod cursor;
pub mod groups;
pub mod hashing;
pub mod keyed;
pub mod oracle;
pub mod prefixes;
pub mod rank_blocks;
pub mod run;

mod continuation;
mod deepest;
mod event;
mod followers;
mod held;
mod held_reading;
mod ids;
mod index;
mod locked;
mod named_enum;
mod partial_ranks;
mod scores;
mod sharded;
mod shared_index;
mod tiers;
mod token_windows;

pub use continuation::Continuations;
pub use deepest::{DeepestMatches, RankOrder};
pub use event::{Block, BlockEvent, RemovedCopies};
pub use followers::Follower;
pub use held::{HeldBlock, stored_events};
pub use held_reading::{HeldReading, ReadingProgress};
pub use ids::{DpRank, LocalHash, PerTier, SequenceHash, Tier, WorkerId, WorkerRank};
pub use index::{AppliedChanges, MemoryLimit, PrefixIndex, RankSize};
pub use locked::LockedIndex;
pub use scores::{MatchScores, RankMatch};
pub use sharded::{ShardedIndex, shard_of};
pub use shared_index::{PREFETCH_DISTANCE, SharedIndex};
pub use token_windows::TokenWindows;
