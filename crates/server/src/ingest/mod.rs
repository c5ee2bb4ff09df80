//! From engines' sockets into indexes.
//!
//! ```text
//!  sockets ──bounded queue, drops──▶ decoders ──bounded queue, waits──▶ writers ──▶ index
//!  (one thread for 256 listeners)    (sticky by listener)              (sticky by model and tenant)
//!     ▲                                  │
//!     └───── requests for what is missed ┘
//! ```
//!
//! Engines that connect instead of being dialled come in over one bound socket: [`pods`].

mod change;
mod decoders;
mod hold;
mod intake;
mod listener;
mod message;
mod place;
mod pods;
mod queue;
mod restart;
mod sockets;
mod trust;
mod writer;

pub(crate) use decoders::{Decoders, Delivery};
pub use hold::{Position, Released};
pub use listener::{Connection, ListenerReport, ReplayProgress};
pub(crate) use listener::{Listener, ListenerOptions, ListenerState};
pub(crate) use place::{Detail, Place, ReadAt, Unsaid, UnsaidOfBlocks};
pub(crate) use pods::{Arrival, Refusal, bound_endpoint, is_bound};
pub(crate) use sockets::{BindError, BoundOptions, ConnectError, Sockets};
pub use trust::Trust;
pub(crate) use writer::{Leftover, Writers};
