//! Ingestion: from the event streams of engines into the indexes of their models.
//!
//! ```text
//!  sockets ──a queue for each engine──▶ decoders ──a queue for each instance──▶ writers ──▶ index
//!  (one thread for 256 listeners)       (sticky by listener)                    (sticky by model and instance)
//!     ▲                                     │
//!     └────────── replay requests ──────────┘
//! ```
//!
//! A dependent implements [`ModelSink`] for its models and creates a [`Listener`] for each registered rank. All messages from
//! their arrival until their changes are written share one byte budget. Beyond it the largest queue loses its newest
//! messages; the stream then has a gap, which a replay repairs.
//!
//! # Modules
//!
//! A module imports only the modules above it.
//!
//! | file | role |
//! |---|---|
//! | `message.rs` | frames of a message, and the outline of its batch |
//! | `resume_point.rs` | position and decoder state of a rank |
//! | `listener/` | a listener: status, trust, paused ranks, report, logs; the [`ModelSink`] that it writes into |
//! | `change.rs` | changes that decoders send to writers |
//! | `event_parts.rs` | division of large events |
//! | `scoped_clear.rs` | clears of a part of a rank's cache |
//! | `writer.rs`, `writer/effects.rs` | writer threads: turns of queued changes, and the effects of each change |
//! | `waiting_ranks.rs` | ranks whose waiting blocks deferred work may index |
//! | `bound_pods/` | pods that connect to the bound socket: connections, topics, streams, pending registrations |
//! | `listener_decoder/` | decoder of one stream: events to changes, reads of a rank at a message, handover of a restored rank, logs and metrics |
//! | `decoders/` | decoder threads: deliveries, timers, routing of bound pods, restarts |
//! | `engine_socket.rs` | sockets to engines: received messages, and the connections that they belong to |
//! | `event_source.rs` | the trait of each way of receiving events, and its errors |
//! | `source_thread.rs` | common parts of sources with a thread for each listener |
//! | `sockets/` | ZeroMQ: subscriptions, replay requests, the bound socket, the resolver |
//! | `transport.rs` | all ways of receiving events as one trait, for the registry; `sources` has the other ways |

mod bound_pods;
mod change;
mod decoders;
mod engine_socket;
mod event_parts;
mod event_source;
mod listener;
mod listener_decoder;
mod message;
mod resume_point;
mod scoped_clear;
mod sockets;
mod source_thread;
#[cfg(test)]
mod tests;
mod transport;
mod waiting_ranks;
mod writer;

pub use bound_pods::{PendingRegistration, Refusal};
pub use decoders::{Decoders, Delivery, OnRetired};
pub use engine_socket::{ConnectionEvent, EngineSocket, receive_from};
pub use event_source::{ConnectError, EventSource};
pub use flash_indexer_queues::{QUEUE_BYTES_MIN, default_queue_bytes};
pub use listener::{Listener, ListenerReport, ListenerState};
pub use listener::{MaintainedIndex, ModelSink, RankActivity, RankOwner, ReleaseOutcome, ReplayClient, ReplayProgress};
pub use message::Frames;
pub use resume_point::{BlockDecoderState, DecoderState, DecoderStateDetail, RankReader, ReadAt, ResumePoint};
pub use sockets::{BindError, BoundOptions, Sockets};
pub use source_thread::{DeliveryGate, RunningThread};
#[doc(hidden)]
pub use tracing;
pub use transport::Transport;
pub use writer::Writers;
