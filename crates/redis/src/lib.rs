//! The index that replicas share through Redis or Valkey.
//!
//! ```text
//!  events of a rank ──▶ SharedRank ──changed prefixes──▶ publisher ──batches──▶ ┌───────┐
//!                       (what it holds)                                         │ Redis │
//!  a prompt's hashes ─────────────────────▶ Store::find ◀──one call──────────── └───────┘
//! ```
//!
//! The rules that keep answers right whatever dies are in `docs/redis.md`; in short:
//!
//! * What lies in the store is, for each rank, its held prefixes ([`HeldPrefixes`](flash_indexer_core::prefixes::HeldPrefixes)),
//!   so that keys of different moments together never say more than was true at one of them.
//! * An entry counts only as long as its publisher confirms, every second or so, that the node has exactly what it
//!   has written. A node that lost something, a publisher that died and a store that was set back end in answers
//!   that know less.

mod directory;
mod find;
mod holder;
mod keys;
mod link;
mod publisher;
mod random;
mod script;
mod shared_rank;
mod store;
mod supervised;
mod url;

pub use directory::{Directory, ListedRank};
pub use find::{FindError, HolderDepth};
pub use holder::{Holder, HolderId, PublisherId, Scope};
pub use keys::{Namespace, NamespaceError};
pub use link::{Credentials, StoreError};
pub use publisher::{LocalRank, PublisherReport, Ranks, STEP_PREFIXES_MAX};
pub use shared_rank::{NotShared, SharedRank, WAITING_CHANGES_MAX};
pub use store::{RankMaker, Store, StoreOptions, StoreReport};
pub use url::{StoreUrl, StoreUrlError, Topology};
