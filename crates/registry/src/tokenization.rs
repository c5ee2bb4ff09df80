//! Tokenization of texts and chats, if the service has tokenizers.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use flash_indexer_engine_chats::ChatEngine;
#[cfg(feature = "hub")]
use flash_indexer_prompt::tokenize::{Hub, HubOptions};
use flash_indexer_prompt::tokenize::{
    ModelDirectory, ModelDirectoryOptions, NamedPaths, PoolOptions, PoolStatistics, Prompt, PromptOptions,
    ServiceAddress, Ticket, TokenizeError, Tokenized, TokenizerPool, TokenizerService, TokenizerSource, Transformers,
};
use tokio::sync::oneshot;

use flash_indexer_telemetry::metrics::{Metrics, TokenizedPrompt};

/// Sources of tokenizers, tried in this order, and the pool that runs them.
#[derive(Debug, Clone, Default)]
pub struct TokenizationOptions {
    /// Models and their tokenizer files or folders.
    pub named: Vec<(String, PathBuf)>,
    /// A directory of models.
    pub directory: Option<PathBuf>,
    /// The Hugging Face hub.
    #[cfg(feature = "hub")]
    pub hub: Option<HubOptions>,
    /// A tokenizer service.
    pub service: Option<TokenizerServiceOptions>,
    /// The date in prompts of gpt-oss, if the engines have a fixed one. `None` takes the current day in UTC.
    pub gpt_oss_date: Option<Arc<str>>,
    /// The library with which vLLM and SGLang engines load tokenizers.
    pub transformers: Transformers,
    /// Threads, queue and cache.
    pub pool: PoolOptions,
}

/// A tokenizer service and its deadline.
#[derive(Debug, Clone)]
pub struct TokenizerServiceOptions {
    /// Its address.
    pub address: ServiceAddress,
    /// Deadline for loading a model, and for each prompt.
    pub deadline: Duration,
}

/// A prompt cannot be tokenized.
#[derive(Debug, thiserror::Error)]
pub enum TokenizationError {
    /// The service has no source of tokenizers.
    #[error(
        "this service has no tokenizers; send token_ids instead of text, or start it with --tokenizer-dir, --tokenizer or --tokenizer-service"
    )]
    NotConfigured,
    /// The pool has failed.
    #[error(transparent)]
    Failed(#[from] TokenizeError),
}

/// The tokenizer pool, if a source of tokenizers is configured.
pub(crate) struct Tokenization {
    pool: Option<TokenizerPool>,
    gpt_oss_date: Option<Arc<str>>,
    transformers: Transformers,
    metrics: Arc<Metrics>,
}

impl Tokenization {
    pub(crate) fn start(options: &TokenizationOptions, metrics: &Arc<Metrics>) -> io::Result<Self> {
        let mut sources: Vec<Box<dyn TokenizerSource>> = Vec::new();
        if !options.named.is_empty() {
            sources.push(Box::new(options.named.iter().cloned().collect::<NamedPaths>()));
        }
        if let Some(directory) = &options.directory {
            sources.push(Box::new(ModelDirectory::new(directory.clone(), ModelDirectoryOptions::default())));
        }
        #[cfg(feature = "hub")]
        if let Some(hub) = &options.hub {
            sources.push(Box::new(Hub::new(hub.clone())?));
        }
        if let Some(service) = &options.service {
            sources.push(Box::new(TokenizerService::new(&service.address, service.deadline)?));
        }
        let has_sources = !sources.is_empty();
        let pool = has_sources.then(|| TokenizerPool::start(sources, &options.pool)).transpose()?;
        let gpt_oss_date = options.gpt_oss_date.clone();
        Ok(Self { pool, gpt_oss_date, transformers: options.transformers, metrics: Arc::clone(metrics) })
    }

    /// Tokenizes a prompt. Does not block a thread of the runtime. `held` is dropped when the pool has finished with the prompt, possibly
    /// after the future is dropped.
    pub(crate) async fn tokens(
        &self,
        model: &str,
        mut prompt: Prompt,
        mut options: PromptOptions,
        held: impl Send + 'static,
    ) -> Result<Tokenized, TokenizationError> {
        let Some(pool) = &self.pool else { return Err(TokenizationError::NotConfigured) };
        let kind = prompt.kind();
        options.transformers = self.transformers;
        if let Prompt::Chat(chat) = &mut prompt {
            chat.gpt_oss_date.clone_from(&self.gpt_oss_date);
        }
        let (sender, done) = oneshot::channel();
        let submitted = pool.submit(model, prompt, options, move |result| {
            drop(held);
            // The request may have been cancelled.
            let _ = sender.send(result);
        });
        let pending = PendingPrompt { pool, metrics: &self.metrics, kind, ticket: submitted.as_ref().ok().copied() };
        let result = match submitted {
            Ok(_) => done.await.unwrap_or(Err(TokenizeError::Stopped)),
            Err(refused) => Err(refused),
        };
        pending.finish(result.as_ref());
        Ok(result?)
    }

    /// The text of an engine's tokens in two parts, see [`TokenizerPool::decode`].
    pub(crate) fn decode(
        &self,
        model: &str,
        engine: ChatEngine,
        tokens: (&[u32], usize),
    ) -> Result<(String, String), TokenizationError> {
        let pool = self.pool.as_ref().ok_or(TokenizationError::NotConfigured)?;
        Ok(pool.decode(model, Some(engine), tokens)?)
    }

    pub(crate) fn statistics(&self) -> Option<PoolStatistics> {
        self.pool.as_ref().map(TokenizerPool::statistics)
    }

    /// Fails queued prompts and waits for running ones.
    pub(crate) fn stop(&self) {
        if let Some(pool) = &self.pool {
            pool.stop();
        }
    }
}

/// A submitted prompt. Dropping it before it is finished withdraws it from the queue.
struct PendingPrompt<'a> {
    pool: &'a TokenizerPool,
    metrics: &'a Metrics,
    kind: &'static str,
    ticket: Option<Ticket>,
}

impl PendingPrompt<'_> {
    fn finish(mut self, result: Result<&Tokenized, &TokenizeError>) {
        self.ticket = None;
        let figures = |tokenized: &Tokenized| TokenizedPrompt {
            tokens: tokenized.ids.len(),
            waited: tokenized.waited,
            worked: tokenized.worked,
        };
        self.metrics.tokenized(self.kind, result.map(figures).map_err(|error| error.reason().as_str()));
    }
}

impl Drop for PendingPrompt<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.pool.withdraw(ticket);
            self.metrics.tokenized(self.kind, Err(TokenizeError::Withdrawn.reason().as_str()));
        }
    }
}
