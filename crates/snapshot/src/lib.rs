//! Format, reader and writer of dumps: the content of an index, as `/dump` returns it and another index loads it.
//!
//! Two forms carry the same data. The **object** is the form that other indexers write and read:
//!
//! ```json
//! {"llama:default": {"block_size": 16, "model_name": "llama", "tenant_id": "default",
//!   "events": [{"worker_id": 1, "storage_tier": "device", "event": {"event_id": 0, "dp_rank": 0,
//!     "data": {"stored": {"parent_hash": null, "start_position": null, "copies": 2, "salt": "00000000000000ff",
//!       "blocks": [{"block_hash": 11, "tokens_hash": 22, "mm_extra_info": null}]}}}}],
//!   "ranks": [RANK]}}
//! ```
//!
//! **Lines** can be processed while they arrive: `{"dump": {"version": 1}}`, then for each rank `{"rank": RANK}` and its
//! events, one on each line, and at the end `{"end": {"ranks", "holds"}}`. A `RANK` is a [`RankRecord`].
//!
//! Blocks of a secondary cache group of a hybrid model are in an event that stores nothing for readers without support for groups:
//! `"blocks": [], "group": {"group": 1, "needs": {"last_blocks": 8}, "blocks": [11]}`.
//!
//! Decoder state of blocks that the rank no longer holds is in such an event too: `"blocks": [], "gone": {"remembered":
//! "old", "parent_hash": null, "blocks": [{"block_hash": 11, …}]}`. Held blocks carry `"remembered"` themselves.
//!
//! These fields are extensions, and are left out if empty: `copies` (reference count of each block, if not 1), `group`, `gone`,
//! `remembered`, `salt` (which the blocks inherit), `model_name`, `tenant_id`, `ranks`. Readers skip unknown fields and lines. A rank's
//! record has the count and digest of its blocks, by which a reader detects losses.
//!
//! ```
//! use flash_indexer_snapshot::{DumpEntry, DumpSink, RankName, RankRecord, Rejection, read_dump};
//!
//! struct BlockCount(usize);
//!
//! impl DumpSink for BlockCount {
//!     fn rank(&mut self, _: RankRecord) -> Result<(), Rejection> {
//!         Ok(())
//!     }
//!
//!     fn entry(&mut self, _: RankName<'_>, entry: DumpEntry) -> Result<(), Rejection> {
//!         self.0 += entry.block_count();
//!         Ok(())
//!     }
//! }
//!
//! let dump = r#"{"llama:default": {"block_size": 16, "events": [{"worker_id": 1, "event": {"data": {"stored":
//!     {"blocks": [{"block_hash": 11, "tokens_hash": 22}]}}}}]}}"#;
//! let mut count = BlockCount(0);
//! let summary = read_dump(dump.as_bytes(), &mut count).expect("a complete dump");
//! assert_eq!((count.0, summary.ranks), (1, 1));
//! ```
//!
//! | file | role |
//! |---|---|
//! | `read.rs` | streaming reader ([`read_dump`]); the form of lines |
//! | `entry.rs`, `error.rs` | entries of a dump and their receiver ([`DumpSink`]); failures to read one |
//! | `object.rs` | streaming reader of the object |
//! | `totals.rs` | totals of the blocks read, checked against records |
//! | `write.rs` | streaming writer ([`DumpWriter`]) |
//! | `event.rs` | JSON of one event, and blocks that are read as they are written |
//! | `record.rs` | records of ranks ([`RankRecord`]), first and last line |
//! | `groups.rs` | cache groups of hybrid models |
//! | `contents.rs` | decoder state of ranks |
//! | `rank_dump.rs` | state of one rank, as the index exports it ([`RankDump`]) |
//! | `tally.rs` | count and digest of blocks ([`Tally`]) |
//! | `directory.rs` | snapshots on disk ([`SnapshotDirectory`]) |
//! | `known_snapshots.rs` | snapshots that this process may remove |

mod contents;
mod directory;
mod entry;
mod error;
mod event;
mod groups;
mod known_snapshots;
mod object;
mod rank_dump;
mod read;
mod record;
mod tally;
mod totals;
mod write;

pub use self::contents::recent_blocks;
pub use self::directory::{DirectoryError, SnapshotDirectory, StoredSnapshot};
pub use self::entry::{DumpEntry, DumpSink, DumpSummary, RankName, StoredBlocks};
pub use self::error::{DumpError, Rejection};
pub use self::event::{RecentBlocks, UnheldAncestors};
pub use self::groups::{GroupRecord, RoleRecord, WindowRecord};
pub use self::rank_dump::RankDump;
pub use self::read::read_dump;
pub use self::record::{CursorRecord, EngineRecord, RankRecord, StreamRecord, TokenWindowRecord};
pub use self::tally::Tally;
pub use self::write::{DumpForm, DumpWriter};

/// Limit of blocks in a written event. A longer chain is split into several events.
const EVENT_BLOCKS_MAX: usize = 512;
/// Limit of blocks in an event that is read, including events of other indexers.
const READ_EVENT_BLOCKS_MAX: usize = 1 << 20;
/// Limit of bytes in a line.
const LINE_BYTES_MAX: usize = 64 << 20;
/// First bytes of the form of lines, which distinguish it from an object.
const LINES_START: &[u8] = b"{\"dump\":";
const VERSION: u32 = 1;
