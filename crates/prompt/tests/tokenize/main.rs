//! Tokenizing as the service does it: through a pool and the places where tokenizers come from.

mod directory;
mod models;
mod pool;
mod support;
mod text;
