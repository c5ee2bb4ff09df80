//! Tests of the whole ingestion, and the fixture of all tests.

mod engine_events;
pub(crate) mod fixture;
mod overload;
