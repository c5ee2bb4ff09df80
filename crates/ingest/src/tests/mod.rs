//! Tests of the whole ingestion, and the fixture of all tests.

mod curve;
mod engine_events;
pub(crate) mod fixture;
mod overload;
mod relay;
