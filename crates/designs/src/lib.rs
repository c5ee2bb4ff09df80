//! Index designs other than the run index: baselines for benchmarks and independent checks.
//!
//! The service has one index, [`RunIndex`](flash_indexer_core::run::RunIndex). The designs of this crate are older. `bench`
//! and `replay` compare them with the run index. `doctor` checks a service with the radix tree, because a second
//! implementation does not share the bugs of the first one. Every exact design equals the oracle of `flash-indexer-core`
//! under any order of events (`tests/it/equivalence.rs`); the inexact ones document their error, and `tests/it/inexact.rs` tests
//! it.
//!
//! ```
//! use flash_indexer_core::{Block, BlockEvent, DpRank, LocalHash, SequenceHash, Tier, WorkerId, WorkerRank};
//! use flash_indexer_designs::Design;
//!
//! let index = Design::RadixTree.build();
//! let rank = WorkerRank { worker: WorkerId(1), dp_rank: DpRank(0) };
//! let blocks = vec![Block { sequence: SequenceHash(11), local: LocalHash(7) }];
//! index.apply(rank, &BlockEvent::Stored { tier: Tier::Device, parent: None, blocks, copies: 1 });
//! let scores = index.find(&[LocalHash(7), LocalHash(8)]);
//! assert_eq!(scores.get(rank).expect("the rank holds the first block").blocks[Tier::Device], 1);
//! ```
//!
//! # Module map
//!
//! | file | role |
//! |---|---|
//! | `design` | [`Design`]: every design by its command-line name, the run index included |
//! | `nested_map` | [`NestedMap`]: for each rank a map by local hash; inexact |
//! | `inverted` | [`Inverted`]: one map by local hash for all ranks; inexact |
//! | `radix_tree` | [`RadixTree`]: a tree of blocks with their holders |
//! | `concurrent_radix_tree` | [`ConcurrentRadixTree`]: the same tree with a lock in each node |
//! | `positional` | [`Positional`]: blocks by position; a query jumps from checkpoint to checkpoint |
//! | `actor` | [`Actor`]: shares a single-threaded design by giving it to a thread |
//! | `active_ranks` | the ranks that hold every block of a query so far, and the depths of the ranks that dropped out |
//! | `holders`, `rank_set` | the ranks that hold a block, tier by tier, as bitsets |
//! | `rank_slots`, `rank_table` | slot numbers of ranks, and their snapshots for concurrent readers |
//! | `rank_blocks` | the blocks of one rank in the designs that look up by local hash alone |

mod actor;
mod concurrent_radix_tree;
mod design;
mod inverted;
mod nested_map;
mod positional;
mod radix_tree;

mod active_ranks;
mod holders;
mod rank_blocks;
mod rank_set;
mod rank_slots;
mod rank_table;

pub use self::actor::{ACTOR_REQUESTS_MAX, Actor};
pub use self::concurrent_radix_tree::ConcurrentRadixTree;
pub use self::design::{BoundedError, Design};
pub use self::inverted::Inverted;
pub use self::nested_map::NestedMap;
pub use self::positional::{DroppedRankSearch, Positional, PositionalOptions};
pub use self::radix_tree::RadixTree;
