//! Bound pods: engines that connect to this service. One bound socket receives the messages of all pods, and each
//! message's topic names its pod and model.
//!
//! ```text
//!  engines ──▶ bound socket ──by pod──▶ decoders ──unregistered pod──▶ pending registrations ──▶ registry
//!              (topics)                 (streams)                                                  │
//!                                          ▲────────────────── listener, or refusal ───────────────┘
//! ```
//!
//! The FNV-1a hash of a pod's name chooses its decoder, so its messages stay in order. Each rank of a pod publishes its own
//! stream and has its own listener, like a dialled rank.

mod connections;
mod pending_registration;
mod streams;
mod topics;

pub(super) use self::connections::{LossNotice, OpenConnections};
pub use self::pending_registration::{PendingRegistration, Refusal};
pub(super) use self::streams::{Attachment, MessageOutcome, PodStreams, RefusalOutcome, RoutedMessage, Seen};
pub(super) use self::topics::{ConnectionId, Pod, PodMessage, Topics};
