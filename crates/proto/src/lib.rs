//! Messages, clients and servers of the gRPC services, generated from `proto/`.
//!
//! The generated code is part of the repository, so a build of the program does not need a protobuf compiler. A
//! test generates the code again and compares. After a change of `proto/`, `scripts/update-proto` writes the code.
//!
//! | file | role |
//! |---|---|
//! | `generated/*.rs` | one file for each protobuf package |
//! | `generated/descriptors.bin` | file descriptors of the services of the program, for reflection |

#![allow(missing_docs, unreachable_pub, clippy::all, clippy::unwrap_used, reason = "generated")]

/// The services of the llm-d indexer.
pub mod indexer {
    /// Version 1.
    pub mod v1 {
        include!("generated/indexer.v1.rs");
    }
}

/// The services of this project.
pub mod flash_indexer {
    /// Version 1.
    pub mod v1 {
        include!("generated/flash_indexer.v1.rs");
    }
}

/// The tokenizer service, which the program calls.
pub mod tokenization {
    include!("generated/tokenization.rs");
}

/// Envoy's external processing.
pub mod ext_proc {
    include!("generated/envoy.service.ext_proc.v3.rs");
}

/// Events of engines, as servers for the SGLang gateway stream them.
pub mod engine_events {
    include!("generated/smg.grpc.common.rs");
}

/// Endpoints at which a vLLM engine publishes its events.
pub mod vllm_control {
    include!("generated/vllm.rs");
}

/// The messages of `google.protobuf` that other messages contain.
pub use prost_types as google;

/// Encoded file descriptors of `indexer` and `flash_indexer`, served by gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");
