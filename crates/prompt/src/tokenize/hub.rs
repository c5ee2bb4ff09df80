//! The Hugging Face hub as a source of tokenizers.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use hf_hub::Cache;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use parking_lot::Mutex;

use flash_indexer_engine_chats::mistral_files::TEKKEN_FILE;

use super::error::LoadError;
use super::local::{FileTokenizer, ModelFiles, OTHER_FILES, TEMPLATES_FOLDER, TOKENIZER_FILE, tokenizers_of};
use super::source::{ModelTokenizer, TokenizerSource};

/// Maximum number of concurrent downloads. Includes downloads that no prompt waits for any more.
pub const DOWNLOADS_MAX: usize = 4;
/// Maximum number of further templates that are downloaded.
const TEMPLATES_MAX: usize = 64;

/// Address, cache and credentials of the hub.
#[derive(Clone, PartialEq, Eq)]
pub struct HubOptions {
    /// The hub's address.
    pub endpoint: String,
    /// Directory of downloaded files, in the layout of the Hugging Face libraries. Other programs may share it.
    pub cache: PathBuf,
    /// An access token, for gated models.
    pub token: Option<String>,
    /// Maximum wait of a prompt for a download. The download continues for later prompts.
    pub deadline: Duration,
}

impl fmt::Debug for HubOptions {
    /// Prints all options but the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoint, cache, deadline, .. } = self;
        let mut shown = f.debug_struct("HubOptions");
        shown.field("endpoint", endpoint).field("cache", cache).field("deadline", deadline).finish_non_exhaustive()
    }
}

impl HubOptions {
    /// The public hub, without a token, with a deadline of 8 s.
    #[must_use]
    pub fn with_cache(cache: PathBuf) -> Self {
        Self { endpoint: "https://huggingface.co".to_owned(), cache, token: None, deadline: Duration::from_secs(8) }
    }
}

/// Downloads tokenizers and chat templates from the Hugging Face hub. Never downloads a cached model again.
pub struct Hub {
    options: HubOptions,
    api: Api,
    downloading: Arc<Mutex<HashSet<String>>>,
}

impl Hub {
    /// Creates the client. It connects at the first download.
    ///
    /// # Errors
    ///
    /// If the HTTPS client cannot be created.
    pub fn new(options: HubOptions) -> std::io::Result<Self> {
        let builder = ApiBuilder::from_cache(Cache::new(options.cache.clone()))
            .with_endpoint(options.endpoint.clone())
            .with_token(options.token.clone())
            .with_progress(false);
        let api = builder.build().map_err(std::io::Error::other)?;
        Ok(Self { options, api, downloading: Arc::default() })
    }

    /// Starts a download and waits for it, at most until the deadline.
    fn download(&self, model: &str) -> Result<(), LoadError> {
        let busy = |why: &str| Err(LoadError::Failed(format!("{why}; retry later")));
        {
            let mut downloading = self.downloading.lock();
            if downloading.len() >= DOWNLOADS_MAX {
                return busy(&format!("{DOWNLOADS_MAX} downloads are running already"));
            }
            if !downloading.insert(model.to_owned()) {
                return busy("the download is still running");
            }
        }
        let (sender, result) = channel();
        let (repository, ongoing, name) =
            (self.api.model(model.to_owned()), Arc::clone(&self.downloading), model.to_owned());
        let thread = std::thread::Builder::new().name("hub-download".to_owned()).spawn(move || {
            let result = fetch(&repository);
            ongoing.lock().remove(&name);
            // The receiver is gone if the prompt's deadline has passed.
            let _ = sender.send(result);
        });
        if let Err(error) = thread {
            self.downloading.lock().remove(model);
            return Err(LoadError::Failed(format!("failed to start a download thread: {error}")));
        }
        match result.recv_timeout(self.options.deadline) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => busy("the download continues in the background"),
            Err(RecvTimeoutError::Disconnected) => {
                self.downloading.lock().remove(model);
                Err(LoadError::Failed("the download panicked".to_owned()))
            }
        }
    }
}

impl TokenizerSource for Hub {
    fn name(&self) -> String {
        format!("hub {}", self.options.endpoint)
    }

    fn load(&self, model: &str) -> Result<Arc<dyn ModelTokenizer>, LoadError> {
        if !is_repository_name(model) {
            return Err(LoadError::Absent("not the name of a repository on the hub".to_owned()));
        }
        let folder = self.options.cache.join(format!("models--{}", model.replace('/', "--")));
        if !ModelFiles::locate(&folder).is_ok_and(|files| files.is_complete()) {
            self.download(model)?;
        }
        Ok(Arc::new(FileTokenizer::read(model, &folder)?))
    }
}

/// Whether a name is `name` or `organisation/name`, of letters, digits, `-`, `_` and `.`, as on the hub.
fn is_repository_name(model: &str) -> bool {
    let is_part = |part: &str| {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        !part.is_empty()
            && part.bytes().all(is_allowed)
            && !part.starts_with('.')
            && !part.contains("--")
            && !part.contains("..")
    };
    model.split('/').count() <= 2 && model.split('/').all(is_part)
}

/// Downloads a model's files, its tokenizers last, so their presence in the cache implies that the others are there.
fn fetch(repository: &ApiRepo) -> Result<(), LoadError> {
    let listed = repository.info().map_err(|error| explain(&error, TOKENIZER_FILE))?.siblings;
    let names: Vec<&str> = listed.iter().map(|file| file.rfilename.as_str()).collect();
    let tokenizers = tokenizers_of(&names);
    if !tokenizers.iter().any(|name| [TOKENIZER_FILE, TEKKEN_FILE].contains(name)) {
        return Err(absent(TOKENIZER_FILE));
    }
    let is_template = |name: &&str| {
        let file = name.strip_prefix(TEMPLATES_FOLDER).and_then(|name| name.strip_prefix('/'));
        file.is_some_and(|file| file.ends_with(".jinja") && !file.contains(['/', '\\']))
    };
    let templates = names.iter().copied().filter(is_template).take(TEMPLATES_MAX);
    let others = OTHER_FILES.into_iter().filter(|name| names.contains(name));
    for name in others.chain(templates).chain(tokenizers) {
        repository.get(name).map_err(|error| explain(&error, name))?;
    }
    Ok(())
}

fn status(error: &ApiError) -> Option<u16> {
    match error {
        ApiError::RequestError(error) => match **error {
            ureq::Error::StatusCode(code) => Some(code),
            _ => None,
        },
        ApiError::TooManyRetries(error) => status(error),
        _ => None,
    }
}

fn explain(error: &ApiError, file: &str) -> LoadError {
    match status(error) {
        Some(404) => absent(file),
        Some(code @ (401 | 403)) => {
            LoadError::Failed(format!("the hub answered {code}; configure a token whose owner may read this model"))
        }
        _ => LoadError::Failed(error.to_string()),
    }
}

fn absent(file: &str) -> LoadError {
    LoadError::Absent(format!("the hub does not have this model with a {file}"))
}
