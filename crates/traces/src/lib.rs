//! Spans of requests and of their stages, as OpenTelemetry defines them. The crate `otlp` exports them.
//!
//! ```
//! use flash_indexer_traces::{Stage, stage};
//!
//! {
//!     let _hash = stage(Stage::Hash);
//!     // … the stage ends with the value.
//! }
//! ```
//!
//! The server starts a [`RequestSpan`], and polls the request's future [within](RequestSpan::within) it. Code below then records
//! stages without a reference to the request: [`stage`] and [`describe`] find it in the thread's current OpenTelemetry context.
//! Work that moves to another thread takes the context along ([`current`]).
//!
//! # Cost
//!
//! Without a [`Tracer`] in the process, a stage costs one load and one branch. With one, a request that is not sampled costs the
//! decision, and a stage of it one read of a thread-local value.
//!
//! | file | role |
//! |---|---|
//! | `trace_parent.rs` | the trace context that a caller sends, and the outgoing one |
//! | `request.rs` | the span of a request |
//! | `stages.rs` | stages of the current request |

mod request;
mod stages;
mod trace_parent;

pub use opentelemetry::KeyValue;

pub use self::request::{RequestSpan, Root, Tracer};
pub use self::stages::{
    CurrentGuard, CurrentRequest, Stage, StageSpan, current, describe, stage, stage_begin, stage_since,
};
pub use self::trace_parent::{TraceParent, outgoing_headers};

/// Names of attributes.
pub mod attribute {
    /// Model that a request names.
    pub const MODEL: &str = "gen_ai.request.model";
    /// Tenant of the model's index.
    pub const TENANT: &str = "flash_indexer.tenant";
    /// Complete blocks of the prompt.
    pub const BLOCKS: &str = "flash_indexer.prompt.blocks";
    /// Tokens of the prompt.
    pub const TOKENS: &str = "flash_indexer.prompt.tokens";
    /// Leading blocks of the prompt that the best rank holds.
    pub const MATCHED_BLOCKS: &str = "flash_indexer.matched.blocks";
    /// Whether an answer includes other replicas.
    pub const STORE: &str = "flash_indexer.store";
}
