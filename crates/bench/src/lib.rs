//! Measures of an index: how long events and queries take, and how much memory it holds.
//!
//! Everything is measured through [`Contender`], [`Backend`], [`Lane`] and [`Finder`], so that designs of this
//! project and other people's indexes go the same way. [`run`] takes the contenders in turns, round after
//! round, reports medians, and compares what they answered: a figure says nothing beside a different answer.
//!
//! # What is not timed
//!
//! Making events and queries, converting them to an index's own types, and copying a query into the
//! index's buffer, which also brings it into the cache: a prompt's hashes have just been computed
//! when a router asks, and streaming 1.5 KB of them from memory costs as much as a good index does.

mod backend;
mod check;
mod child;
mod clock;
mod density;
mod designs;
pub mod keys;
mod known;
mod latencies;
mod measure;
mod memory;
mod report;
mod resident;
mod run;
mod stream;
mod sweep;
mod workload;

pub use backend::{Backend, Contender, Finder, Found, Lane, Setup, WorkerEvent, Writers, keep_deepest};
pub use child::{Child, serve_child};
pub use clock::Clock;
pub use density::{DensityBin, EventDensity};
pub use designs::{BoundedContender, DesignContender};
pub use known::KnownHits;
pub use latencies::{Latencies, LatencyFigures};
pub use measure::Measure;
pub use report::{Difference, MeasureReport, Report, Row, short};
pub use resident::{RESIDENT_UNAVAILABLE, resident_bytes};
pub use run::{BenchError, Observer, Processes, RunOptions, run};
pub use sweep::{SweepPoint, sweep};
pub use workload::{HeldBlocks, Play, PlayedRequest, Workload};
