//! Tiny tokenizers, on disk and scripted.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flash_indexer_prompt::tokenize::{
    Effort, LoadError, ModelDirectory, ModelDirectoryOptions, ModelTokenizer, PieceCache, PoolOptions, Prompt,
    PromptOptions, Ticket, Tokenization, TokenizeError, Tokenized, TokenizerPool, TokenizerSource,
};
pub(crate) use flash_indexer_test_support::{TINY_WORDS as WORDS, tiny_tokenizer};
use serde_json::Value;

pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Like [`tiny_tokenizer`], with a given id for `one`.
pub(crate) fn tiny_tokenizer_with_one(id: u32) -> Value {
    let mut tokenizer = tiny_tokenizer();
    tokenizer["model"]["vocab"]["one"] = id.into();
    tokenizer
}

/// Writes a model's folder.
pub(crate) fn write_model(folder: &Path, tokenizer: &Value) {
    fs::create_dir_all(folder).expect("a folder");
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).expect("a tokenizer");
}

/// Searches again for every unknown model.
pub(crate) fn always_searching() -> ModelDirectoryOptions {
    ModelDirectoryOptions { searched_every: Duration::ZERO, ..ModelDirectoryOptions::default() }
}

/// Caches no failures and checks files at every prompt.
pub(crate) fn forgetful() -> PoolOptions {
    PoolOptions { workers: 2, missing_for: Duration::ZERO, checked_every: Duration::ZERO, ..PoolOptions::default() }
}

pub(crate) fn pool_of(source: impl TokenizerSource + 'static) -> TokenizerPool {
    TokenizerPool::start(vec![Box::new(source)], &forgetful()).expect("threads")
}

pub(crate) fn pool_in(root: &Path) -> TokenizerPool {
    pool_with(root, forgetful())
}

pub(crate) fn pool_with(root: &Path, options: PoolOptions) -> TokenizerPool {
    let directory = ModelDirectory::new(root.to_owned(), always_searching());
    TokenizerPool::start(vec![Box::new(directory)], &options).expect("threads")
}

pub(crate) fn text(text: &str) -> Prompt {
    Prompt::Text(text.to_owned())
}

/// The ids of a text.
pub(crate) fn ids(pool: &TokenizerPool, model: &str, prompt: &str) -> Vec<u32> {
    pool.tokenize(model, text(prompt)).unwrap_or_else(|error| panic!("{model}: {error}")).ids
}

/// Submits a prompt of the model `model` with the default options.
pub(crate) fn submit(
    pool: &TokenizerPool,
    prompt: Prompt,
    on_done: impl FnOnce(Result<Tokenized, TokenizeError>) + Send + 'static,
) -> Result<Ticket, TokenizeError> {
    pool.submit("model", prompt, PromptOptions::default(), on_done)
}

/// A source whose loads are a function of the test.
pub(crate) struct Scripted<F>(pub(crate) F);

impl<F> TokenizerSource for Scripted<F>
where
    F: Fn(&str) -> Result<Arc<dyn ModelTokenizer>, LoadError> + Send + Sync,
{
    fn name(&self) -> String {
        "a script".to_owned()
    }

    fn load(&self, model: &str) -> Result<Arc<dyn ModelTokenizer>, LoadError> {
        (self.0)(model)
    }
}

/// A tokenizer that is a function of the test.
pub(crate) struct FnTokenizer<F>(pub(crate) F);

impl<F> ModelTokenizer for FnTokenizer<F>
where
    F: Fn(&str) -> Vec<u32> + Send + Sync,
{
    fn tokenize(
        &self,
        prompt: Prompt,
        _: PromptOptions,
        _: &Arc<PieceCache>,
        _: Effort,
    ) -> Result<Tokenization, TokenizeError> {
        let Prompt::Text(text) = prompt else { panic!("only texts") };
        Ok(Tokenization::Done((self.0)(&text)))
    }
}

/// A source that gives every model a tokenizer with this function.
pub(crate) fn tokenizing_with(
    tokenize: impl Fn(&str) -> Vec<u32> + Clone + Send + Sync + 'static,
) -> impl TokenizerSource {
    Scripted(move |_: &str| -> Result<Arc<dyn ModelTokenizer>, LoadError> {
        Ok(Arc::new(FnTokenizer(tokenize.clone())))
    })
}
