//! Writes BENCHMARKS.md, the summary, and the details next to the results.

mod details;
mod summary;

pub(crate) use self::summary::write;
