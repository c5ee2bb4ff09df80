//! Options of `serve` for tokenizers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use flash_indexer_prompt::tokenize::{PoolOptions, ServiceAddress, Transformers};
use flash_indexer_server::{TokenizationOptions, TokenizerServiceOptions};
use toml::value::Datetime;
use tracing::warn;

use crate::parsers::byte_size;

/// Deadline of a tokenizer service, for loading a model and for each prompt.
const SERVICE_DEADLINE: Duration = Duration::from_secs(5);

/// Sources of tokenizers, for prompts that are sent as text.
#[derive(Args)]
pub(crate) struct TokenizerArguments {
    /// Directory of models with their tokenizer.json or tekken.json: a Hugging Face cache, or folders org/model. The folders' names are
    /// the model's name.
    #[arg(long, env = "FLASH_INDEXER_TOKENIZER_DIR", value_name = "DIRECTORY")]
    tokenizer_dir: Option<PathBuf>,

    /// The tokenizer.json or tekken.json of a model, or its folder; may be given several times. Takes precedence over --tokenizer-dir.
    #[arg(long = "tokenizer", env = "FLASH_INDEXER_TOKENIZERS", value_delimiter = ',', value_name = "MODEL=PATH", value_parser = named_path)]
    tokenizers: Vec<(String, PathBuf)>,

    #[cfg(feature = "hub")]
    #[command(flatten)]
    hub: super::hub_options::HubArguments,

    /// Tokenizer service for models that no other source has: unix:/path/of/socket or tcp://host:port.
    #[arg(long, env = "FLASH_INDEXER_TOKENIZER_SERVICE", value_name = "ADDRESS")]
    tokenizer_service: Option<ServiceAddress>,

    /// Date in prompts of gpt-oss, of engines that are started with it (VLLM_SYSTEM_START_DATE); else the current day in UTC.
    #[arg(long, env = "FLASH_INDEXER_GPT_OSS_DATE", value_name = "YYYY-MM-DD", value_parser = prompt_date)]
    gpt_oss_date: Option<Arc<str>>,

    /// Major version of transformers that the vLLM and SGLang engines have: 5 for current releases, 4 for older ones.
    #[arg(long, env = "FLASH_INDEXER_TOKENIZER_TRANSFORMERS", default_value_t = 5, value_name = "4|5", value_parser = clap::value_parser!(u8).range(4..=5))]
    tokenizer_transformers: u8,

    /// Threads that render chats and tokenize; 0 for one for each processor.
    #[arg(long, env = "FLASH_INDEXER_TOKENIZER_THREADS", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=1024))]
    tokenizer_threads: u16,

    /// Limit of the bytes of texts and chats that wait for those threads, at most 1,024 of them. One address may use as many
    /// bytes as are free; beyond it requests are answered with 503.
    #[arg(long, env = "FLASH_INDEXER_TOKENIZER_QUEUE_BYTES_MAX", default_value = "64MiB", value_parser = byte_size, value_name = "BYTES")]
    tokenizer_queue_bytes_max: usize,

    /// Memory for tokenized pieces of prompts, of which a later prompt tokenizes only the new part; 0 turns it off.
    #[arg(long, env = "FLASH_INDEXER_TOKENIZER_CACHE_BYTES", default_value = "128MiB", value_parser = byte_size_or_zero, value_name = "BYTES")]
    tokenizer_cache_bytes: usize,

    /// Memory for the last prompts that clients ask about, such as 64MiB: clients with the scope admin see the text of prefixes in the
    /// dashboard. At most 1,024 prompts are kept, in memory only; 0 keeps none.
    #[arg(long, env = "FLASH_INDEXER_PROMPT_TEXT_BYTES", default_value = "0", value_parser = byte_size_or_zero, value_name = "BYTES")]
    pub(super) prompt_text_bytes: usize,

    /// Tokenizers in memory; the least recently used one is evicted.
    #[arg(long, env = "FLASH_INDEXER_TOKENIZERS_LOADED_MAX", default_value_t = 16)]
    tokenizers_loaded_max: usize,
}

impl TokenizerArguments {
    pub(crate) fn options(&self) -> Result<TokenizationOptions> {
        let mut pool = PoolOptions {
            queued_bytes_max: self.tokenizer_queue_bytes_max,
            cached_bytes_max: self.tokenizer_cache_bytes,
            loaded_models_max: self.tokenizers_loaded_max,
            ..PoolOptions::default()
        };
        if self.tokenizer_threads > 0 {
            pool.workers = self.tokenizer_threads.into();
        }
        let service = self.tokenizer_service.clone();
        let service = service.map(|address| TokenizerServiceOptions { address, deadline: SERVICE_DEADLINE });
        let options = TokenizationOptions {
            named: self.tokenizers.clone(),
            directory: self.tokenizer_dir.clone(),
            #[cfg(feature = "hub")]
            hub: self.hub.options()?,
            service,
            gpt_oss_date: self.gpt_oss_date.clone(),
            transformers: if self.tokenizer_transformers == 4 { Transformers::Four } else { Transformers::Five },
            pool,
        };
        let has_tokenizers = !options.named.is_empty() || options.directory.is_some();
        #[cfg(feature = "hub")]
        let has_tokenizers = has_tokenizers || options.hub.is_some();
        ensure!(
            self.prompt_text_bytes == 0 || has_tokenizers,
            "--prompt-text-bytes has no effect without --tokenizer-dir or --tokenizer, which make text of tokens"
        );
        Ok(options)
    }

    /// Warns of directories and files that are missing at the start. Each prompt looks for them again.
    pub(crate) fn warn_of_missing_paths(&self) {
        if let Some(directory) = self.tokenizer_dir.as_ref().filter(|directory| !directory.is_dir()) {
            warn!(directory = %directory.display(), "--tokenizer-dir: directory not found; create it, or correct the path");
        }
        for (model, path) in self.tokenizers.iter().filter(|(_, path)| !path.exists()) {
            warn!(%model, path = %path.display(), "--tokenizer: file not found; create it, or correct the path");
        }
    }
}

fn byte_size_or_zero(text: &str) -> Result<usize, &'static str> {
    if text == "0" { Ok(0) } else { byte_size(text) }
}

/// Parses `--gpt-oss-date`. An engine accepts any text, but prompts have a date.
fn prompt_date(text: &str) -> Result<Arc<str>, &'static str> {
    match text.parse::<Datetime>() {
        Ok(Datetime { date: Some(_), time: None, offset: None }) => Ok(text.into()),
        _ => Err("expected the date that the engines are started with, such as 2026-11-23"),
    }
}

/// Parses one entry of `--tokenizer`.
fn named_path(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((model, path)) if !model.is_empty() && !path.is_empty() => Ok((model.to_owned(), path.into())),
        _ => Err("expected model=path, such as org/model=/models/org/model/tokenizer.json".to_owned()),
    }
}
