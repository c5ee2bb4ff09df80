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
mod held_ranks;
mod listener;
mod log_listener;
mod listener_decoder;
mod message;
mod queue;
mod restart;
mod resume_point;
mod sink;
mod sockets;
mod trust;
mod writer;

pub(crate) use bound_pods::{PendingRegistration, Refusal, bound_endpoint, is_bound};
pub(crate) use decoders::{Decoders, Delivery};
pub use held_ranks::ReleaseOutcome;
pub use listener::{Connection, ListenerReport, ReplayProgress};
pub(crate) use listener::{Listener, ListenerOptions, ListenerState};
pub(crate) use log_listener::log_listener;
pub(crate) use resume_point::{BlockDecoderState, DecoderState, DecoderStateDetail, ReadAt, ResumePoint};
pub(crate) use sink::ModelSink;
pub(crate) use sockets::{BindError, BoundOptions, ConnectError, Sockets};
pub(crate) use writer::{Maintain, Writers};
