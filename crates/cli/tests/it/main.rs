//! The program, as an operator runs it. One program, because linking each file separately takes longer than running it.

mod commands;
mod config;
mod discovered;
mod doctor;
mod documented;
mod dumps;
mod engines;
#[cfg(feature = "hub")]
mod hub;
mod incidents;
mod logs;
mod replay;
mod replicas;
#[path = "../support/mod.rs"]
mod support;
mod trace;
