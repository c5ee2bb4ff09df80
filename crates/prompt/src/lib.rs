//! From a prompt or a chat to block keys and scored pods.

pub mod tokenize;
