//! Metrics of the service, supervision of its long-lived threads, and the writer of its log.
//!
//! ```
//! use flash_indexer_telemetry::metrics::{Limit, MetricNames, Metrics};
//!
//! let metrics = Metrics::new(MetricNames::Own);
//! metrics.limit_reached(Limit::Dumps);
//! assert_eq!(metrics.limit_reached_count(Limit::Dumps), 1);
//! ```
//!
//! | module | role |
//! |---|---|
//! | [`metrics`] | counters, gauges and histograms, one file for each area, and their text formats |
//! | [`log`] | the writer of the log, with its bounded buffer |
//! | [`memory`] | the memory that this process may use |
//! | [`clock`] | the clocks that threads read and wait by, of the system or of a simulation |
//! | [`supervision`] | panics, unexpected ends and stalls of threads, and which of them fail readiness |
//! | `thread_kind.rs` | roles of threads, as metrics and supervision label them |

pub mod clock;
pub mod log;
pub mod memory;
pub mod metrics;
pub mod supervision;
mod thread_kind;
