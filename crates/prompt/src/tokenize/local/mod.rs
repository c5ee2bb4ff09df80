//! Tokenizers from local files.

mod directory;
mod files;
mod hub_layout;
mod named;
mod scores;
mod tekken;
mod tokenizer;
mod tokens;

pub use directory::{ModelDirectory, ModelDirectoryOptions};
#[cfg(feature = "hub")]
pub(super) use files::TOKENIZER_FILE;
pub use files::{ModelFiles, TOKENIZER_BYTES_MAX};
pub use named::NamedPaths;
#[cfg(feature = "hub")]
pub(super) use tokenizer::FileTokenizer;
