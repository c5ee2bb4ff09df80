//! The files of one model on disk, and their version.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::files::{OTHER_FILES, TEMPLATES_FOLDER, TOKENIZER_FILE, tokenizer_in};
use super::hub_layout;
#[cfg(feature = "hub")]
use flash_indexer_engine_chats::mistral_files;
use flash_indexer_engine_chats::mistral_files::{PARAMETERS_FILE, TEKKEN_FILE};

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
    /// Face hub, where one snapshot is chosen.
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

fn file_version(file: &Path) -> Option<(SystemTime, u64)> {
    let metadata = fs::metadata(file).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}
