//! Tests of simulated engines and of recorded streams. One program, because linking each file by itself takes longer than running it.

mod engine;
mod fleet;
mod publisher;
mod recordings;
mod workloads;
