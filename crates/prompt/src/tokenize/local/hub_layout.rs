//! The layout of the Hugging Face libraries' download cache:
//! `models--org--name/{blobs, refs/main, snapshots/<revision>/tokenizer.json}`.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::files::{TOKENIZER_FILE, tokenizer_in};

const REPOSITORY_PREFIX: &str = "models--";
const SNAPSHOTS: &str = "snapshots";
/// Maximum length of a revision, in bytes. A revision is a hash of 40 digits or a short name.
const REVISION_BYTES_MAX: u64 = 256;
/// Maximum number of snapshots of one model that are compared.
const SNAPSHOTS_MAX: usize = 256;

/// The model's name from the folder's: `models--org--name` is `org/name`.
pub(super) fn model_of(folder: &str) -> Option<String> {
    let name = folder.strip_prefix(REPOSITORY_PREFIX)?.replace("--", "/");
    (!name.is_empty() && name.split('/').all(|part| !part.is_empty())).then_some(name)
}

/// Whether a folder is a model's in this layout.
pub(super) fn is_repository(folder: &Path) -> bool {
    folder.join(SNAPSHOTS).is_dir()
}

/// The snapshot to use, and its tokenizer: the one that `refs/main` names when it has a tokenizer, else the newest that has one.
pub(super) fn snapshot(repository: &Path) -> Result<(PathBuf, PathBuf), String> {
    let snapshots = repository.join(SNAPSHOTS);
    let entries = fs::read_dir(&snapshots).map_err(|error| format!("{}: {error}", snapshots.display()))?;
    if let Some(main) = main_revision(repository) {
        let snapshot = snapshots.join(main);
        if let Some(tokenizer) = tokenizer_in(&snapshot) {
            return Ok((snapshot, tokenizer));
        }
    }
    let usable = entries.flatten().filter_map(|entry| Some((entry.path(), tokenizer_in(&entry.path())?)));
    usable.take(SNAPSHOTS_MAX).max_by_key(|(path, _)| (modified(path), path.clone())).ok_or_else(|| {
        format!("no snapshot in {} has a {TOKENIZER_FILE}; download the model's tokenizer again", snapshots.display())
    })
}

/// The revision in `refs/main`, if it is a plain folder name.
fn main_revision(repository: &Path) -> Option<String> {
    let reference = repository.join("refs").join("main");
    if fs::metadata(&reference).ok()?.len() > REVISION_BYTES_MAX {
        return None;
    }
    let revision = fs::read_to_string(reference).ok()?.trim().to_owned();
    let mut components = Path::new(&revision).components();
    let is_plain = matches!(components.next(), Some(Component::Normal(_))) && components.next().is_none();
    is_plain.then_some(revision)
}

fn modified(path: &Path) -> Option<std::time::SystemTime> {
    fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}
