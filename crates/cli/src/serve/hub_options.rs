//! Options of `serve` for the Hugging Face hub.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use flash_indexer_prompt::tokenize::HubOptions;

#[derive(Args)]
pub(crate) struct HubArguments {
    /// Download tokenizers and chat templates from the Hugging Face hub, for models that --tokenizer and --tokenizer-dir
    /// lack. Clients can cause a download of any public model.
    #[arg(long, env = "FLASH_INDEXER_TOKENIZER_HUB")]
    tokenizer_hub: bool,

    /// Address of the hub, or of a mirror.
    #[arg(
        long,
        env = "FLASH_INDEXER_TOKENIZER_HUB_ENDPOINT",
        default_value = "https://huggingface.co",
        requires = "tokenizer_hub",
        value_name = "URL"
    )]
    tokenizer_hub_endpoint: String,

    /// Directory of downloads, in the layout of the Hugging Face libraries [default: $HF_HOME/hub, or
    /// ~/.cache/huggingface/hub].
    #[arg(long, env = "FLASH_INDEXER_TOKENIZER_HUB_CACHE", requires = "tokenizer_hub", value_name = "DIRECTORY")]
    tokenizer_hub_cache: Option<PathBuf>,

    /// File with a token, for gated and private models. FLASH_INDEXER_TOKENIZER_HUB_TOKEN is the token itself.
    #[arg(long, env = "FLASH_INDEXER_TOKENIZER_HUB_TOKEN_FILE", requires = "tokenizer_hub", value_name = "FILE")]
    tokenizer_hub_token_file: Option<PathBuf>,

    /// How long a prompt waits for a download. The download continues after that.
    #[arg(
        long,
        env = "FLASH_INDEXER_TOKENIZER_HUB_TIMEOUT_MS",
        default_value_t = 8_000,
        requires = "tokenizer_hub",
        value_name = "MILLISECONDS"
    )]
    tokenizer_hub_timeout_ms: u64,
}

impl HubArguments {
    /// Options of the hub, if `--tokenizer-hub` is given.
    pub(crate) fn options(&self) -> Result<Option<HubOptions>> {
        if !self.tokenizer_hub {
            return Ok(None);
        }
        let cache = self.tokenizer_hub_cache.clone().or_else(default_cache);
        let token = match &self.tokenizer_hub_token_file {
            Some(path) => {
                let read = std::fs::read_to_string(path);
                Some(read.with_context(|| format!("failed to read {}", path.display()))?)
            }
            None => std::env::var("FLASH_INDEXER_TOKENIZER_HUB_TOKEN").ok(),
        };
        Ok(Some(HubOptions {
            endpoint: self.tokenizer_hub_endpoint.clone(),
            cache: cache.context("there is no home directory to keep tokenizers in: give --tokenizer-hub-cache")?,
            token: token.map(|token| token.trim().to_owned()),
            deadline: Duration::from_millis(self.tokenizer_hub_timeout_ms),
        }))
    }
}

/// The cache directory of the Hugging Face libraries.
fn default_cache() -> Option<PathBuf> {
    let home = std::env::var_os("HF_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cache/huggingface")));
    Some(home?.join("hub"))
}
