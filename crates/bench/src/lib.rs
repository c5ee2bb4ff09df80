//! Benchmarks of an index: time of events and queries, and memory.
//!
//! All contenders are measured through [`Contender`], [`Backend`], [`Lane`] and [`Finder`], both the designs of this
//! project and third-party indexes. [`run`] measures the contenders in turn, round after round, reports medians, and
//! compares the answers: figures of indexes with different answers cannot be compared.
//!
//! # What is not timed
//!
//! Generating events and queries, converting them to an index's own types, and copying a query into the index's buffer.
//! The copy brings the query into the processor's cache, as in a router, which has just computed the prompt's hashes.
//! Reading 1.5 KB of them from memory would cost as much as a query of a fast index.
//!
//! # Module map
//!
//! | file | role |
//! |---|---|
//! | `backend.rs` | the traits that an index implements to take part |
//! | `designs.rs` | this project's designs as contenders |
//! | `churn.rs` | events of a large fleet that fills, replaces and loses its blocks |
//! | `workload.rs`, `density.rs` | requests and events of a trace, simulated in advance; their distribution over time |
//! | `measure/` | the measures, each a function of a contender and a workload |
//! | `run.rs`, `child.rs`, `memory.rs`, `fill.rs`, `stream.rs` | runs all measures, in separate processes where needed |
//! | `check.rs`, `report.rs` | comparison of answers; the results |
//! | `hits.rs`, `sweep.rs` | hit rate of a bounded index; throughput under rising load |
//! | `clock.rs`, `latencies.rs`, `resident.rs` | timing of single calls, histograms, resident memory |
//! | `keys/` | block keys of other systems |

mod backend;
mod check;
mod child;
mod churn;
mod clock;
mod density;
mod designs;
mod fill;
mod hits;
pub mod keys;
mod latencies;
mod measure;
mod memory;
mod report;
mod resident;
mod run;
mod stream;
mod sweep;
mod workload;

pub use backend::{Backend, Contender, Finder, Lane, MatchTotals, Setup, WorkerEvent, Writers, keep_deepest};
pub use child::{Child, serve_child};
pub use clock::Clock;
pub use density::{DensityBin, EventDensity};
pub use designs::{BoundedContender, DesignContender, ShardsContender};
pub use hits::PredictedHits;
pub use latencies::{Latencies, LatencyFigures};
pub use measure::Measure;
pub use report::{Difference, MeasureReport, Report, Row, short};
pub use resident::{RESIDENT_UNAVAILABLE, resident_bytes};
pub use run::{BenchError, Observer, Processes, RunOptions, run};
pub use sweep::{SweepPoint, sweep};
pub use workload::{HeldBlocks, Play, PlayedRequest, Workload};
