//! A directory of models as a source of tokenizers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::files::tokenizer_in;
use super::hub_layout;
use super::tokenizer::FileTokenizer;
use crate::tokenize::error::LoadError;
use crate::tokenize::source::{ModelTokenizer, TokenizerSource};

/// Limits of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelDirectoryOptions {
    /// Maximum depth of a model's folder below the directory.
    pub depth_max: usize,
    /// Maximum number of files and folders that one search visits.
    pub entries_max: usize,
    /// Maximum number of models that one search finds.
    pub models_max: usize,
    /// Minimum time between two searches.
    pub searched_every: Duration,
}

impl Default for ModelDirectoryOptions {
    /// Six folders deep, 100,000 entries, 4,096 models, once a second.
    fn default() -> Self {
        Self { depth_max: 6, entries_max: 100_000, models_max: 4096, searched_every: Duration::from_secs(1) }
    }
}

/// A directory of models, found by their files:
///
/// * `models--org--name/snapshots/<revision>/tokenizer.json`, the cache of the Hugging Face libraries, at any depth: `org/name`.
///   With several snapshots, the one that `refs/main` names is used, else the newest.
/// * `some/folders/tokenizer.json`: `some/folders`. A model in the directory itself has the directory's name.
///
/// A Mistral model may have `tekken.json` instead of `tokenizer.json`. Symbolic links are followed, even out of the directory: its owner
/// has created them. A model's name never becomes a path: it is looked up among the models found. Folders whose names begin with a dot are
/// skipped.
pub struct ModelDirectory {
    root: PathBuf,
    options: ModelDirectoryOptions,
    searched: Mutex<Option<Search>>,
    limits_reached: AtomicU64,
}

/// The result of a search.
struct Search {
    begun: Instant,
    models: BTreeMap<String, PathBuf>,
    entries: usize,
    /// The limit that ended the search.
    cut: Option<&'static str>,
    error: Option<String>,
}

impl ModelDirectory {
    /// Creates the source. The first request for a model searches `root`.
    #[must_use]
    pub fn new(root: PathBuf, options: ModelDirectoryOptions) -> Self {
        Self { root, options, searched: Mutex::new(None), limits_reached: AtomicU64::new(0) }
    }

    /// The models and their folders. Searches if no search was done yet.
    #[must_use]
    pub fn models(&self) -> BTreeMap<String, PathBuf> {
        self.with_search(|search| search.models.clone(), |_| true)
    }

    /// Reads the result of the last search, or of a new one if the last does not satisfy and is old enough.
    fn with_search<T>(&self, read: impl Fn(&Search) -> T, satisfies: impl Fn(&T) -> bool) -> T {
        let mut searched = self.searched.lock();
        if let Some(search) = searched.as_ref() {
            let answer = read(search);
            if satisfies(&answer) || search.begun.elapsed() < self.options.searched_every {
                return answer;
            }
        }
        let search = Search::run(&self.root, &self.options);
        if search.cut.is_some() {
            self.limits_reached.fetch_add(1, Relaxed);
        }
        read(searched.insert(search))
    }
}

impl TokenizerSource for ModelDirectory {
    fn name(&self) -> String {
        format!("directory {}", self.root.display())
    }

    fn load(&self, model: &str) -> Result<Arc<dyn ModelTokenizer>, LoadError> {
        check_name(model)?;
        let path = self.with_search(
            |search| search.models.get(model).cloned().ok_or_else(|| search.absence()),
            |path| path.as_ref().is_ok_and(|path| path.exists()),
        )?;
        Ok(Arc::new(FileTokenizer::read(model, &path)?))
    }

    fn limits_reached(&self) -> u64 {
        self.limits_reached.load(Relaxed)
    }
}

/// Rejects names that would lead out of the directory if they were paths.
fn check_name(model: &str) -> Result<(), LoadError> {
    let is_plain = !model.starts_with('/')
        && !model.contains(['\\', '\0'])
        && model.split('/').all(|part| !matches!(part, "" | "." | ".."));
    if is_plain {
        return Ok(());
    }
    Err(LoadError::Absent("the name is refused: it is not a relative path without `.` and `..`".to_owned()))
}

impl Search {
    fn run(root: &Path, options: &ModelDirectoryOptions) -> Self {
        let mut search = Self { begun: Instant::now(), models: BTreeMap::new(), entries: 0, cut: None, error: None };
        search.visit(root, "", &mut Vec::new(), options);
        search
    }

    /// The error for a model that the search has not found.
    fn absence(&self) -> LoadError {
        if let Some(error) = &self.error {
            return LoadError::Failed(error.clone());
        }
        let found = self.models.len();
        LoadError::Absent(match self.cut {
            Some(cut) => format!("not among the {found} models found before the search ended at {cut}"),
            None => format!("not among the {found} models found there"),
        })
    }

    /// Searches a folder. `name` is the name of a model in it; `above` are the real paths of its parent folders.
    fn visit(&mut self, folder: &Path, name: &str, above: &mut Vec<PathBuf>, options: &ModelDirectoryOptions) {
        let Ok(real) = folder.canonicalize().map_err(|error| self.fail_at_root(folder, &error, above)) else { return };
        if above.contains(&real) {
            return;
        }
        let own_name = real.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let link_name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if let Some(model) = hub_layout::model_of(&link_name).or_else(|| hub_layout::model_of(&own_name))
            && hub_layout::is_repository(folder)
        {
            return self.found(model, folder, options);
        }
        if tokenizer_in(folder).is_some() {
            let model = if name.is_empty() { own_name } else { name.to_owned() };
            self.found(model, folder, options);
        }
        if above.len() >= options.depth_max {
            return;
        }
        let Ok(entries) = fs::read_dir(folder).map_err(|error| self.fail_at_root(folder, &error, above)) else {
            return;
        };
        above.push(real);
        let mut below: Vec<PathBuf> = Vec::new();
        for entry in entries.flatten() {
            self.entries += 1;
            if self.entries > options.entries_max {
                self.cut = Some("the maximum number of files and folders");
                break;
            }
            let path = entry.path();
            if !entry.file_name().as_encoded_bytes().starts_with(b".") && path.is_dir() {
                below.push(path);
            }
        }
        below.sort();
        for folder in below {
            if self.cut.is_some() {
                break;
            }
            // No request can name a folder whose name is not UTF-8.
            let Some(last) = folder.file_name().and_then(|name| name.to_str()) else { continue };
            let name = if name.is_empty() { last.to_owned() } else { format!("{name}/{last}") };
            self.visit(&folder, &name, above, options);
        }
        above.pop();
    }

    /// Records a model. If several models have one name, the first in path order is recorded.
    fn found(&mut self, model: String, folder: &Path, options: &ModelDirectoryOptions) {
        if self.models.len() >= options.models_max {
            self.cut = Some("the maximum number of models");
            return;
        }
        self.models.entry(model).or_insert_with(|| folder.to_owned());
    }

    /// Records an unreadable root directory. Unreadable folders below it are skipped.
    fn fail_at_root(&mut self, folder: &Path, error: &std::io::Error, above: &[PathBuf]) {
        if above.is_empty() {
            self.error = Some(format!("{}: {error}", folder.display()));
        }
    }
}
