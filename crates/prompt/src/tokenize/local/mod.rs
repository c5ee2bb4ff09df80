//! Tokenizers from local files.

mod classes;
mod components;
mod directory;
mod files;
mod hub_layout;
mod model_files;
mod named;
mod rebuilt;
mod scores;
mod tekken;
mod tokenizer;
mod tokens;

pub use directory::{ModelDirectory, ModelDirectoryOptions};
pub use files::TOKENIZER_BYTES_MAX;
#[cfg(feature = "hub")]
pub(super) use files::{OTHER_FILES, TEMPLATES_FOLDER, TOKENIZER_FILE, tokenizers_of};
pub use model_files::ModelFiles;
pub use named::NamedPaths;
#[cfg(feature = "hub")]
pub(super) use tokenizer::FileTokenizer;
