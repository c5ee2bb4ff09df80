//! Clients of the gRPC services.

pub(crate) use flash_indexer_proto::flash_indexer::v1::*;
pub(crate) use flash_indexer_proto::indexer::v1::*;
