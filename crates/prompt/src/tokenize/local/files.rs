//! Names of a model's files, and how they are read.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use flash_indexer_engine_chats::mistral_files::TEKKEN_FILE;
#[cfg(feature = "hub")]
use flash_indexer_engine_chats::mistral_files::{self, PARAMETERS_FILE};

/// Maximum size of a file, in bytes. The largest vocabularies have about 40 MiB. Loading a vocabulary takes up to 30 times its size.
pub const TOKENIZER_BYTES_MAX: u64 = 64 << 20;
pub(in crate::tokenize) const TOKENIZER_FILE: &str = "tokenizer.json";
pub(super) const TOKENIZER_CONFIG_FILE: &str = "tokenizer_config.json";
/// Files other than the tokenizer's that affect the tokens of a prompt.
pub(in crate::tokenize) const OTHER_FILES: [&str; 6] = [
    "config.json",
    TOKENIZER_CONFIG_FILE,
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
];
/// Folder of further templates.
pub(in crate::tokenize) const TEMPLATES_FOLDER: &str = "additional_chat_templates";

/// The files of a model's tokenizers, from the names of all its files. For a model in Mistral's format, the parameters file is
/// first (it identifies the format), and the vocabulary is last.
#[cfg(feature = "hub")]
pub(in crate::tokenize) fn tokenizers_of<'n>(names: &[&'n str]) -> Vec<&'n str> {
    let given = |name: &'n str| names.contains(&name).then_some(name);
    match mistral_files::vocabulary(names).filter(|_| mistral_files::has_weights(names)) {
        Some(vocabulary) => [PARAMETERS_FILE].into_iter().chain(given(TOKENIZER_FILE)).chain([vocabulary]).collect(),
        None => given(TOKENIZER_FILE).or_else(|| given(TEKKEN_FILE)).into_iter().collect(),
    }
}

/// The tokenizer's file in a model's folder.
pub(super) fn tokenizer_in(folder: &Path) -> Option<PathBuf> {
    [TOKENIZER_FILE, TEKKEN_FILE].iter().map(|name| folder.join(name)).find(|file| file.is_file())
}

/// Reads a file. `None` if it does not exist.
pub(super) fn read_if_present(path: &Path) -> Result<Option<Vec<u8>>, String> {
    match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{}: {error}", path.display())),
        Ok(metadata) if metadata.len() > TOKENIZER_BYTES_MAX => {
            let bytes = metadata.len();
            return Err(format!(
                "{} has {bytes} bytes, more than {TOKENIZER_BYTES_MAX}; use the file of the model's publisher",
                path.display()
            ));
        }
        Ok(_) => {}
    }
    fs::read(path).map(Some).map_err(|error| format!("{}: {error}", path.display()))
}

/// Reads a JSON object. It is empty if the file does not exist.
pub(super) fn read_object(path: &Path) -> Result<Map<String, Value>, String> {
    let Some(bytes) = read_if_present(path)? else { return Ok(Map::new()) };
    serde_json::from_slice(&bytes).map_err(|error| format!("{}: {error}", path.display()))
}
