//! Everything that an index knows, written down: what `/dump` answers and what another index starts from.
//!
//! Two forms carry the same. The **object** is what other indexers write and read:
//!
//! ```json
//! {"llama:default": {"block_size": 16, "model_name": "llama", "tenant_id": "default",
//!   "events": [{"worker_id": 1, "storage_tier": "device", "event": {"event_id": 0, "dp_rank": 0,
//!     "data": {"stored": {"parent_hash": null, "start_position": null, "copies": 2, "salt": "00000000000000ff",
//!       "blocks": [{"block_hash": 11, "tokens_hash": 22, "mm_extra_info": null}]}}}}],
//!   "ranks": [RANK]}}
//! ```
//!
//! **Lines** can be read while they come: `{"dump": {"version": 1}}`, then for each rank `{"rank": RANK}` and its
//! events, one a line, and at last `{"end": {"ranks", "holds"}}`. A `RANK` is a [`RankRecord`].
//!
//! The blocks of a further cache group of a hybrid model are told by name, in an event that stores nothing for
//! readers that know no groups: `"blocks": [], "group": {"group": 1, "needs": {"last_blocks": 8}, "blocks": [11]}`.
//!
//! So are contents that the stream of an engine that offloads remembers of blocks that the rank no longer holds:
//! `"blocks": [], "gone": {"remembered": "old", "parent_hash": null, "blocks": [{"block_hash": 11, …}]}`. Of blocks
//! that it holds, `"remembered"` stands beside them.
//!
//! What is not part of other indexers' form, and left out where it says nothing: `copies` (of each block, where it is
//! not one), `group`, `gone`, `remembered`, `salt` (that the blocks inherit), `model_name`, `tenant_id`, `ranks`. Readers skip fields and lines
//! that they do not know. A rank says how much it holds, so that a reader notices what is missing.

mod contents;
mod event;
mod groups;
mod object;
mod rank_dump;
mod read;
mod record;
mod tally;
mod totals;
mod write;

pub use self::contents::remembered;
pub use self::groups::{GroupRecord, ReachRecord, RoleRecord};
pub use self::rank_dump::RankDump;
pub use self::read::{
    DumpEntry, DumpError, DumpSink, DumpSummary, RankName, RecentBlocks, Refused, StoredBlocks, StoredNames, read_dump,
};
pub use self::record::{CursorRecord, EngineRecord, RankRecord, StreamRecord, TokenWindowRecord};
pub use self::tally::Tally;
pub use self::write::{DumpForm, DumpWriter};
pub use flash_indexer_types::{EngineKind, Removal};

/// Blocks in one event at most, so that no line is long; a longer chain is several events.
const EVENT_BLOCKS_MAX: usize = 512;
/// Blocks that one event of somebody else's dump may have.
const READ_EVENT_BLOCKS_MAX: usize = 1 << 20;
/// Bytes that one line may have.
const LINE_BYTES_MAX: usize = 64 << 20;
/// How lines begin, by which they are told from an object.
const LINES_START: &[u8] = b"{\"dump\":";
const VERSION: u32 = 1;
