//! A directory in which models are looked for.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::files::TOKENIZER_FILE;
use super::hub_layout;
use super::tokenizer::FileTokenizer;
use crate::tokenize::counters::Counter;
use crate::tokenize::source::{LoadError, ModelTokenizer, TokenizerSource};

/// How far a search goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelDirectoryOptions {
    /// Folders below the directory that a model's folder may be deep.
    pub depth_max: usize,
    /// Files and folders that are looked at in one search.
    pub entries_max: usize,
    /// Models that are remembered.
    pub models_max: usize,
    /// A model that was not found is searched for again when the last search is so long ago.
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
/// * `models--org--name/snapshots/<revision>/tokenizer.json`, the cache of the Hugging Face libraries, at any depth: `org/name`. With
///   several snapshots the one that `refs/main` names counts, or the newest.
/// * `some/folders/tokenizer.json`: `some/folders`. A model in the directory itself has the directory's name.
///
/// Links are followed, also to places outside: whoever fills the directory has put them there. A model's name never
/// becomes a path: it is looked up among those that were found. Folders whose names begin with a dot are not searched.
pub struct ModelDirectory {
    root: PathBuf,
    options: ModelDirectoryOptions,
    searched: Mutex<Option<Search>>,
    bounds_reached: Counter,
}

/// What a search has found.
struct Search {
    begun: Instant,
    models: BTreeMap<String, PathBuf>,
    entries: usize,
    /// The bound that it ended at.
    cut: Option<&'static str>,
    error: Option<String>,
}

impl ModelDirectory {
    /// Searches `root` when the first model is asked for.
    #[must_use]
    pub fn new(root: PathBuf, options: ModelDirectoryOptions) -> Self {
        Self { root, options, searched: Mutex::new(None), bounds_reached: Counter::default() }
    }

    /// Models that are there, and where; searches if that was not done yet.
    #[must_use]
    pub fn models(&self) -> BTreeMap<String, PathBuf> {
        self.with_search(|search| search.models.clone(), |_| true)
    }

    /// Reads something off the last search, or off a new one when the last does not satisfy and is old enough.
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
            self.bounds_reached.add_one();
        }
        read(searched.insert(search))
    }
}

impl TokenizerSource for ModelDirectory {
    fn place(&self) -> String {
        format!("directory {}", self.root.display())
    }

    fn load(&self, model: &str) -> Result<Arc<dyn ModelTokenizer>, LoadError> {
        check_name(model)?;
        let path = self.with_search(
            |search| search.models.get(model).cloned().ok_or_else(|| search.absence()),
            |path| path.as_ref().is_ok_and(|path| path.exists()),
        )?;
        Ok(Arc::new(FileTokenizer::read(&path)?))
    }

    fn bounds_reached(&self) -> u64 {
        self.bounds_reached.get()
    }
}

/// Refuses names that would lead out of a directory if they were paths.
fn check_name(model: &str) -> Result<(), LoadError> {
    let is_plain = !model.starts_with('/')
        && !model.contains(['\\', '\0'])
        && model.split('/').all(|part| !matches!(part, "" | "." | ".."));
    if is_plain {
        return Ok(());
    }
    Err(LoadError::Absent("the name is refused, because it is not that of something in a directory".to_owned()))
}

impl Search {
    fn run(root: &Path, options: &ModelDirectoryOptions) -> Self {
        let mut search = Self { begun: Instant::now(), models: BTreeMap::new(), entries: 0, cut: None, error: None };
        let mut above = Vec::new();
        search.look_into(root, "", &mut above, options);
        search
    }

    /// Why a model is not among those that were found.
    fn absence(&self) -> LoadError {
        if let Some(error) = &self.error {
            return LoadError::Failed(error.clone());
        }
        let found = self.models.len();
        match self.cut {
            Some(cut) => {
                LoadError::Absent(format!("not among the {found} models found before the search ended at {cut}"))
            }
            None => LoadError::Absent(format!("not among the {found} models found there")),
        }
    }

    /// `name` is what a model in this folder is called; `above` are the real paths of the folders on the way here.
    fn look_into(&mut self, folder: &Path, name: &str, above: &mut Vec<PathBuf>, options: &ModelDirectoryOptions) {
        let real = match folder.canonicalize() {
            Ok(real) => real,
            Err(error) => return self.fail_at_root(folder, &error, above),
        };
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
        if folder.join(TOKENIZER_FILE).is_file() {
            let model = if name.is_empty() { own_name } else { name.to_owned() };
            self.found(model, folder, options);
        }
        if above.len() >= options.depth_max {
            return;
        }
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) => return self.fail_at_root(folder, &error, above),
        };
        above.push(real);
        let mut below: Vec<PathBuf> = Vec::new();
        for entry in entries.flatten() {
            self.entries += 1;
            if self.entries > options.entries_max {
                self.cut = Some("its largest number of files and folders");
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
            // A name that is not text cannot be asked for.
            let Some(last) = folder.file_name().and_then(|name| name.to_str()) else { continue };
            let name = if name.is_empty() { last.to_owned() } else { format!("{name}/{last}") };
            self.look_into(&folder, &name, above, options);
        }
        above.pop();
    }

    /// The first of several with one name counts, in the order of their paths.
    fn found(&mut self, model: String, folder: &Path, options: &ModelDirectoryOptions) {
        if self.models.len() >= options.models_max {
            self.cut = Some("its largest number of models");
            return;
        }
        self.models.entry(model).or_insert_with(|| folder.to_owned());
    }

    /// What cannot be read inside the directory is as if it were not there; the directory itself must be there.
    fn fail_at_root(&mut self, folder: &Path, error: &std::io::Error, above: &[PathBuf]) {
        if above.is_empty() {
            self.error = Some(format!("{}: {error}", folder.display()));
        }
    }
}
