//! Prompts and chats as tokens, where the service has tokenizers.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "hub")]
use flash_indexer_prompt::tokenize::{Hub, HubOptions};
use flash_indexer_prompt::tokenize::{
    ModelDirectory, ModelDirectoryOptions, NamedPaths, PoolOptions, PoolStatistics, Prompt, PromptOptions,
    ServiceAddress, Ticket, TokenizeError, Tokenized, TokenizerPool, TokenizerService, TokenizerSource,
};
use tokio::sync::oneshot;

use flash_indexer_telemetry::metrics::{Metrics, TokenizedPrompt};

/// Where tokenizers come from, asked in this order, and the pool that uses them.
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
    /// Threads, queue and cache.
    pub pool: PoolOptions,
}

/// A tokenizer service, and how long it may take.
#[derive(Debug, Clone)]
pub struct TokenizerServiceOptions {
    /// Where it listens.
    pub address: ServiceAddress,
    /// Longest time for making a model ready, and for each prompt.
    pub deadline: Duration,
}

/// A prompt has no tokens.
#[derive(Debug, thiserror::Error)]
pub enum TokenizationError {
    /// The service knows no place that tokenizers come from.
    #[error(
        "this service has no tokenizers: send token_ids instead of text, or start it with --tokenizer-dir, --tokenizer or --tokenizer-service"
    )]
    NotConfigured,
    /// The pool has failed.
    #[error(transparent)]
    Failed(#[from] TokenizeError),
}

/// The pool, if there is any place to get tokenizers from.
pub(crate) struct Tokenization {
    pool: Option<TokenizerPool>,
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
        let pool = match sources.is_empty() {
            true => None,
            false => Some(TokenizerPool::start(sources, &options.pool)?),
        };
        Ok(Self { pool, metrics: Arc::clone(metrics) })
    }

    /// The tokens of a prompt. Waits without holding up a thread of the runtime.
    pub(crate) async fn tokens(
        &self,
        model: &str,
        prompt: Prompt,
        options: PromptOptions,
    ) -> Result<Vec<u32>, TokenizationError> {
        let Some(pool) = &self.pool else { return Err(TokenizationError::NotConfigured) };
        let kind = match &prompt {
            Prompt::Text(_) => "text",
            Prompt::Chat(_) => "chat",
        };
        let (sender, done) = oneshot::channel();
        let submitted = pool.submit_with(model, prompt, options, move |result| {
            // Who asked may have gone.
            let _ = sender.send(result);
        });
        let waiting = Waiting { pool, metrics: &self.metrics, kind, ticket: submitted.as_ref().ok().copied() };
        let result = match submitted {
            Ok(_) => done.await.unwrap_or(Err(TokenizeError::Stopped)),
            Err(refused) => Err(refused),
        };
        waiting.end(result.as_ref());
        Ok(result?.ids)
    }

    pub(crate) fn statistics(&self) -> Option<PoolStatistics> {
        self.pool.as_ref().map(TokenizerPool::statistics)
    }

    /// Fails what waits, and waits for what was begun.
    pub(crate) fn stop(&self) {
        if let Some(pool) = &self.pool {
            pool.stop();
        }
    }
}

/// A prompt whose tokens are waited for. Dropped before its end, nobody waits any more: then it does not stay in the queue.
struct Waiting<'a> {
    pool: &'a TokenizerPool,
    metrics: &'a Metrics,
    kind: &'static str,
    ticket: Option<Ticket>,
}

impl Waiting<'_> {
    fn end(mut self, result: Result<&Tokenized, &TokenizeError>) {
        self.ticket = None;
        let figures = |tokenized: &Tokenized| TokenizedPrompt {
            tokens: tokenized.ids.len(),
            waited: tokenized.waited,
            worked: tokenized.worked,
        };
        self.metrics.tokenized(self.kind, result.map(figures).map_err(|error| error.reason().as_str()));
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.pool.withdraw(ticket);
            self.metrics.tokenized(self.kind, Err(TokenizeError::Withdrawn.reason().as_str()));
        }
    }
}
