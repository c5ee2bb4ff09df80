//! The files of a model on disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::{Map, Value};

use super::hub_layout;
#[cfg(feature = "hub")]
use flash_indexer_engine_chats::mistral_files;
use flash_indexer_engine_chats::mistral_files::{PARAMETERS_FILE, TEKKEN_FILE};

/// Maximum size of a file, in bytes. The largest vocabularies have about 40 MiB. Loading a vocabulary takes up to 30 times its size.
pub const TOKENIZER_BYTES_MAX: u64 = 64 << 20;
pub(in crate::tokenize) const TOKENIZER_FILE: &str = "tokenizer.json";
pub(super) const TOKENIZER_CONFIG_FILE: &str = "tokenizer_config.json";
/// Files besides the tokenizer's that affect the tokens of a prompt.
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

/// Paths of one model's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFiles {
    /// The model's folder, with the tokenizer's configuration and the chat templates.
    pub directory: PathBuf,
    /// The tokenizer, in the format of the `tokenizers` library, or Mistral's if there is no other.
    pub tokenizer: PathBuf,
}

/// The version of a model's files: modification times and sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FilesVersion(Vec<Option<(SystemTime, u64)>>);

impl ModelFiles {
    /// Finds the files of a model. The path is a tokenizer's file, a model's folder, or its folder in a cache of the Hugging
    /// Face hub, of which one snapshot is chosen.
    ///
    /// # Errors
    ///
    /// If the path is none of these.
    pub fn locate(path: &Path) -> Result<Self, String> {
        let metadata = fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
        if metadata.is_file() {
            let directory = path.parent().unwrap_or(Path::new("")).to_owned();
            return Ok(Self { directory, tokenizer: path.to_owned() });
        }
        if let Some(tokenizer) = tokenizer_in(path) {
            return Ok(Self { directory: path.to_owned(), tokenizer });
        }
        if hub_layout::is_repository(path) {
            let (directory, tokenizer) = hub_layout::snapshot(path)?;
            return Ok(Self { tokenizer, directory });
        }
        Err(format!(
            "{} has no {TOKENIZER_FILE} and no snapshots; configure the path of a tokenizer or of a model's folder",
            path.display()
        ))
    }

    /// Whether a download of these files, in the order of [`tokenizers_of`], was complete.
    #[cfg(feature = "hub")]
    pub(in crate::tokenize) fn is_complete(&self) -> bool {
        let names = mistral_files::names_in(&self.directory);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        !names.contains(&PARAMETERS_FILE) || mistral_files::vocabulary(&names).is_some()
    }

    pub(super) fn version(&self) -> FilesVersion {
        let others = OTHER_FILES.iter().chain(&[TEMPLATES_FOLDER, TEKKEN_FILE, PARAMETERS_FILE]);
        let others = others.map(|name| self.directory.join(name));
        let files = std::iter::once(self.tokenizer.clone()).chain(others);
        FilesVersion(files.map(|file| file_version(&file)).collect())
    }
}

/// The files of a model's tokenizers, by the names of all its files. A model in Mistral's format has its parameters first, which
/// say so, and its own vocabulary last.
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

fn file_version(file: &Path) -> Option<(SystemTime, u64)> {
    let metadata = fs::metadata(file).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
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
