//! Pods whose engines connect to this service: one bound socket carries the messages of all of them, and each
//! message's topic says whose it is.
//!
//! ```text
//!  engines ──▶ bound socket ──by pod──▶ decoders ──a pod that nobody knows──▶ pending_registrations ──▶ registration
//!              (topics: whose)          (streams: which listener)                              │
//!                                             ▲────────────── its listener, or why not ────────┘
//! ```
//!
//! A pod's messages all go to the decoder that the FNV-1a hash of its name chooses, so they stay in order. Its ranks
//! publish each for itself, so each has a stream and a listener of its own, as if it were dialled.

mod name;
mod pending_registration;
mod streams;
mod topics;

pub(super) use self::name::queue_for;
pub use self::name::{PodName, bound_endpoint, is_bound};
pub use self::pending_registration::{PendingRegistration, Refusal};
pub(super) use self::streams::{MessageOutcome, PodStreams, Refused, RoutedMessage, Seen};
pub(super) use self::topics::{ConnectionId, Pod, PodMessage, Topics};
