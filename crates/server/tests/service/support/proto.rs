//! Clients of the gRPC services, generated from `proto/`.

#![allow(missing_docs, unreachable_pub, dead_code, clippy::all, reason = "generated")]

include!(concat!(env!("OUT_DIR"), "/client/indexer.v1.rs"));
include!(concat!(env!("OUT_DIR"), "/client/flash_indexer.v1.rs"));
