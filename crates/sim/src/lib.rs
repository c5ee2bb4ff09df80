//! Engines for people without a GPU: simulated prefix caches driven by request traces, and streams
//! recorded from real engines, both published over the sockets that a real engine has.

pub mod workload;

mod cache;
mod engine;
mod fleet;
mod groups;
mod publisher;
mod random;
mod recording;

pub use cache::{CacheChange, PrefixCache, TooLong};
pub use engine::{EngineOptions, PublishedBatch, Served, SimulatedEngine, reusable_blocks};
pub use fleet::{Fleet, FleetOptions, FleetStep, HashSeeds, HoleShare, Routing};
pub use groups::CacheGroups;
pub use publisher::{PublishError, Publisher, PublisherOptions, ReplayFraming, ReplayLoss};
pub use recording::{RecordedLine, RecordedMessage, RecordedRequest, Recording, RecordingError};
pub use workload::Request;
