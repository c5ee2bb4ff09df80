//! Index that replicas share through Redis or Valkey.
//!
//! ```text
//!  events of a rank ──▶ RankPrefixes ──changed prefixes──▶ publisher ──batches──▶ ┌───────┐
//!                       (held prefixes)                                           │ Redis │
//!  hashes of a prompt ────────────────────▶ Store::find ◀────one call──────────── └───────┘
//! ```
//!
//! `docs/redis.md` describes the protocol. In short:
//!
//! * The store has the held prefixes of each rank ([`HeldPrefixes`](flash_indexer_core::prefixes::HeldPrefixes)).
//!   A query reads keys at different times. Its answer never exceeds what a rank held at one of those times.
//! * An entry counts only while its publisher confirms, about every second, that the node has exactly what the
//!   publisher wrote. A node that loses writes, a publisher that dies and a store restored from an old snapshot lead
//!   to answers that are too small, never too large.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use flash_indexer_core::LocalHash;
//! use flash_indexer_redis::{LocalRank, PublisherWaker, RankRegistry, Scope, Store, StoreOptions};
//!
//! /// Registry of a replica without engines of its own.
//! struct NoRanks;
//!
//! impl RankRegistry for NoRanks {
//!     fn ranks(&self) -> Vec<LocalRank> {
//!         Vec::new()
//!     }
//! }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let options = StoreOptions::at("redis://cache:6379".parse()?);
//! let runtime = tokio::runtime::Handle::current();
//! let store = Store::start(options, &PublisherWaker::default(), Arc::new(NoRanks), &runtime)?;
//! for found in store.find(Scope::of(&["model", "tenant", "64"]), &[LocalHash(1), LocalHash(2)]).await?.depths {
//!     println!("{} holds {:?} leading blocks", found.holder, found.blocks);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | file | role |
//! |---|---|
//! | `store` | client of the store: options, queries, status |
//! | `url`, `link` | address of a store; connections to a node, a cluster, a master behind sentinels |
//! | `keys`, `identity` | layout of the keys; scopes, ranks, replicas, random ids |
//! | `script`, `scripts/*.lua` | calls of the scripts that run inside the store |
//! | `rank_prefixes` | held prefixes of a local rank and its changes for the publisher |
//! | `publisher` | leases, batches, confirmations, outages of single buckets |
//! | `directory`, `query_response` | decoding of the directory of ranks and of the responses to queries |
//! | `supervision` | restart of tasks that panic |
//! | `error` | failures of calls |
//! | `environment` | random ids and blocking calls; the store of a simulation |

mod directory;
mod environment;
mod error;
mod identity;
mod keys;
mod link;
mod publisher;
mod query_response;
mod rank_prefixes;
mod script;
mod store;
mod supervision;
mod url;

pub use directory::{Directory, ListedRank};
pub use environment::{ScriptCall, SimulatedLink, SimulatedStore};
pub use error::StoreError;
pub use identity::{Holder, HolderId, PublisherId, Scope};
pub use keys::{Namespace, NamespaceError};
pub use link::Credentials;
pub use publisher::{LocalRank, PublisherReport, RankRegistry, STEP_PREFIXES_MAX};
pub use query_response::{FoundRanks, HolderDepth};
pub use rank_prefixes::{RankPrefixes, WAITING_CHANGES_MAX};
pub use redis::Value;
pub use store::{PublisherWaker, Store, StoreOptions, StoreReport};
pub use url::{StoreUrl, StoreUrlError, Topology};
