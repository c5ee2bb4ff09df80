//! Tokenization as the service does it: through a pool and its sources of tokenizers.

mod chats;
mod classes;
mod directory;
#[cfg(feature = "hub")]
mod hub;
mod media;
mod models;
mod pieces;
mod pool;
mod reference;
mod service;
mod service_stub;
mod slices;
mod support;
mod tekken;
mod text;
