//! From engines' sockets into indexes.
//!
//! ```text
//!  sockets ──bounded queue, drops──▶ decoders ──bounded queue, waits──▶ writers ──▶ index
//!  (one thread for 256 listeners)    (sticky by listener)              (sticky by model and tenant)
//!     ▲                                  │
//!     └───── requests for what is missed ┘
//! ```
//!
//! Engines that connect instead of being dialled come in over one bound socket: [`bound_pods`].

mod bound_pods;
mod change;
mod decoders;
#[cfg(test)]
mod fixture;
mod held_ranks;
mod listener;
mod listener_decoder;
mod log_listener;
mod message;
mod queue;
mod restart;
mod resume_point;
mod sink;
mod sockets;
mod trust;
mod writer;

pub use bound_pods::{PendingRegistration, PodName, Refusal, bound_endpoint, is_bound};
pub use decoders::{Decoders, Delivery};
pub use held_ranks::ReleaseOutcome;
pub use listener::{Connection, ListenerReport, ReplayProgress};
pub use listener::{Listener, ListenerOptions, ListenerState};
pub use resume_point::{BlockDecoderState, DecoderState, DecoderStateDetail, ReadAt, ResumePoint};
pub use sink::ModelSink;
pub use sockets::{BindError, BoundOptions, ConnectError, Sockets};
#[doc(hidden)]
pub use tracing;
pub use writer::{Maintain, Writers};
