//! From a prompt or a chat to block keys and scored pods.

pub mod chat;
pub mod keys;
pub mod score;
pub mod tokenize;
