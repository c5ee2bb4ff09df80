//! Types that the crates of the service share: identities, trust states, stream positions, checks of names and addresses.
//!
//! ```
//! use flash_indexer_types::{InstanceId, ModelKey};
//!
//! assert_eq!(ModelKey::new("llama", None).to_string(), "llama:default");
//! assert_eq!(InstanceId::parse("7"), Ok(InstanceId::number(7)));
//! ```
//!
//! | file | role |
//! |---|---|
//! | `instance` | identity of an instance ([`InstanceId`]) and of a model of a tenant ([`ModelKey`]) |
//! | `rank_id` | identity of a rank in a fleet ([`RankId`]) |
//! | `registration`, `owner` | registrations of ranks ([`Registration`]) and their owners ([`Owner`]) |
//! | `listener_options` | how the listener to a rank's stream is registered ([`ListenerOptions`]) |
//! | `shared_cache` | caches of hosts and pools, and the ranks attached to them ([`SharedCaches`]) |
//! | `trust` | trust states ([`Trust`]) |
//! | `loss_reason` | reasons for which a rank is not exact ([`LossReason`]) |
//! | `position` | position in the event stream of a rank ([`RankPosition`]) |
//! | `stream_positions` | positions of unregistered streams, from which a new registration continues ([`StreamPositions`]) |
//! | `unrepaired_gap` | gaps in the event stream of a rank ([`UnrepairedGap`]) |
//! | `event_context` | time of an event and reason of a removal, for explanations ([`EventContext`]) |
//! | `clear_cause` | causes of the loss of all blocks of a rank ([`ClearCause`]) |
//! | `connection_status` | state of a connection to an engine |
//! | `engine` | kinds of engines, and the meaning of their removals |
//! | `discovery` | states of discovery sources and of the ranks that they name |
//! | `schema` | JSON schemas of types that serialize themselves |
//! | [`names`] | limits of names that clients, engines and peers choose |
//! | [`endpoints`] | checks of endpoints and addresses to which the service connects |
//! | [`pods`] | names of bound pods, from topics, and the choice of their queues |
//! | [`networks`] | allow-list of the networks to which the service connects |
//! | [`hashes`] | 64-bit hashes in JSON |
//! | `hash_key` | random key of the process's hash tables |
//! | `masked_url` | URLs without their secrets, for errors and output |
//! | [`logs`] | log events with the fields of a rank |
//!
//! The crate has no I/O, no threads and no clock.

mod clear_cause;
mod connection_status;
mod discovery;
pub mod endpoints;
mod engine;
mod event_context;
mod hash_key;
pub mod hashes;
mod instance;
mod listener_options;
pub mod logs;
mod loss_reason;
mod masked_url;
pub mod names;
pub mod networks;
mod owner;
pub mod pods;
mod position;
mod rank_id;
mod registration;
mod schema;
mod shared_cache;
mod stream_positions;
mod trust;
mod unrepaired_gap;

pub use clear_cause::ClearCause;
pub use connection_status::ConnectionStatus;
pub use discovery::{SourceKind, SourceState, TargetState};
pub use engine::{EngineKind, RemovalMeaning};
pub use event_context::EventContext;
pub use flash_indexer_core::named_enum;
pub use hash_key::use_random_hash_key;
pub use instance::{InstanceId, InstanceIdError, ModelKey, UncheckedInstanceId};
pub use listener_options::ListenerOptions;
pub use loss_reason::LossReason;
pub use masked_url::{MASK, masked_url, without_users};
pub use owner::{OwnedRank, Owner};
pub use position::RankPosition;
pub use rank_id::RankId;
pub use registration::{EmptyModelPolicy, Registration, RegistrationOutcome};
pub use shared_cache::{SHARED_CACHES_MAX, SharedCacheKind, SharedCaches, SharedCachesError};
pub use stream_positions::{StreamName, StreamPositions};
#[doc(hidden)]
pub use tracing;
pub use trust::Trust;
pub use unrepaired_gap::{Ordinal, UnrepairedGap};
