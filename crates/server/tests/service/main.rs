//! The service as its users see it, over its sockets. One program, because linking each file by itself takes longer than running it.

mod discovery;
mod doors;
mod dumps;
mod explain;
mod group_dumps;
mod groups;
mod grpc;
mod kubernetes;
mod logs;
mod memory;
mod metrics;
mod names;
mod offload_dumps;
mod peer_checks;
mod peers;
mod pods;
mod recorded_scores;
mod recovery;
mod scores;
mod shared_index;
mod shared_scores;
mod streams;
mod support;
mod tokenizer_queue;
mod trust;
mod wrong_input;
