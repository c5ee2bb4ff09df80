//! Explanations of matches: the block at which the match of each rank ends, and the reason.
//!
//! [`Explainer`] follows a prompt through the dump of each rank, subtracts what the rank's secondary cache groups
//! cannot use, and replays the model's recent [`History`] to find how the first missing block was lost. The crate does
//! no I/O and reads no clock.
//!
//! ```
//! use std::time::Instant;
//!
//! use flash_indexer_core::{
//!     AppliedChanges, Block, BlockEvent, DpRank, LocalHash, RemovedCopies, SequenceHash, Tier, WorkerId, WorkerRank,
//! };
//! use flash_indexer_explain::{Explainer, HeldUnderOtherVariants, History, Loss, Reason, Subject};
//! use flash_indexer_types::{InstanceId, Trust};
//!
//! // An engine stores two blocks and then evicts the second one.
//! let rank = WorkerRank { worker: WorkerId(1), dp_rank: DpRank(0) };
//! let block = |number| Block { sequence: SequenceHash(number), local: LocalHash(10 * number) };
//! let stored = |blocks: &[u64]| BlockEvent::Stored {
//!     tier: Tier::Device,
//!     parent: None,
//!     blocks: blocks.iter().map(|&number| block(number)).collect(),
//!     copies: 1,
//! };
//! let evicted = BlockEvent::Removed { tier: Tier::Device, blocks: vec![SequenceHash(2)], copies: RemovedCopies::One };
//! let history = History::new(1_000);
//! history.record(rank, &stored(&[1, 2]), &AppliedChanges::default(), Instant::now());
//! history.record(rank, &evicted, &AppliedChanges::default(), Instant::now());
//!
//! let mut explainer = Explainer::new(vec![vec![LocalHash(10), LocalHash(20)]], &history);
//! let subject = Subject {
//!     instance: InstanceId::number(1),
//!     rank,
//!     trust: Trust::Exact,
//!     last_error: None,
//!     gap: None,
//!     is_partial: false,
//!     other_variants: HeldUnderOtherVariants::default(),
//! };
//! explainer.add_rank(subject, &[stored(&[1])], |_, _, _| None);
//!
//! let end = &explainer.explain()[0].ends[0];
//! assert_eq!((end.position, end.sequence), (1, Some(SequenceHash(2))));
//! assert!(matches!(end.reason, Reason::Lost(Loss::Removed(_))));
//! ```
//!
//! | file | role |
//! |---|---|
//! | `explainer` | [`Explainer`]: from the dumps of ranks to one [`RankExplanation`] each |
//! | `subject` | [`Subject`]: a rank under explanation, and matches of the same tokens under other adapters or salts |
//! | `walk` | leading blocks of the prompt that a rank holds, and blocks it holds after a gap |
//! | `matched` | the match after the secondary cache groups have shortened it |
//! | `history` | [`History`]: recent stores, copies, removals and clears of one model |
//! | `timeline` | a history sorted by rank and block |
//! | `loss` | [`Loss`]: the event that took a block, found by replay |
//! | `reason` | [`End`] and [`Reason`]: the conclusion |
//! | `tombstones` | [`Tombstones`]: ranks that were unregistered recently |
//! | `variants` | [`SeenVariants`]: adapters and salts that a model's engines used recently |

mod explainer;
mod history;
mod loss;
mod matched;
#[cfg(test)]
mod oracle_tests;
mod reason;
mod subject;
mod timeline;
mod tombstones;
mod variants;
mod walk;

pub use self::explainer::{Explainer, RankExplanation};
pub use self::history::History;
pub use self::loss::{Clear, Loss, Removal};
pub use self::matched::{GroupShortfall, LimitingGroup, MissingGroupBlock};
pub use self::reason::{End, Reason};
pub use self::subject::{HeldUnderOtherVariants, OtherVariant, Subject};
pub use self::tombstones::{Tombstone, Tombstones};
pub use self::variants::SeenVariants;
pub use flash_indexer_types::UnrepairedGap;
