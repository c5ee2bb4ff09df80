//! Options that give a prompt and the service to query.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow, ensure};
use clap::{ArgGroup, Args};
use flash_indexer_api::{ModelScope, TokenQuery};

use flash_indexer_commands::{IndexerClient, ServiceUrl, TlsArguments};

/// A prompt, its model and tenant, and the service to query.
#[derive(Args)]
#[command(group(ArgGroup::new("given_tokens").args(["tokens", "tokens_file"]).required(true)))]
pub(crate) struct PromptArguments {
    /// Token ids of the prompt, separated by commas.
    #[arg(long, value_delimiter = ',')]
    tokens: Vec<u32>,

    /// File with token ids separated by commas, spaces or lines, or as a JSON list; - for standard input.
    #[arg(long, value_name = "FILE")]
    tokens_file: Option<PathBuf>,

    /// Model of the engines.
    #[arg(long, visible_alias = "model-name", default_value = "default")]
    model: String,

    /// Tenant of the engines [default: the service's default tenant].
    #[arg(long)]
    tenant_id: Option<String>,

    /// LoRA adapter of the request.
    #[arg(long)]
    lora_name: Option<String>,

    /// Cache salt of the request.
    #[arg(long)]
    cache_salt: Option<String>,

    #[command(flatten)]
    pub(crate) service: ServiceUrl,

    #[command(flatten)]
    tls: TlsArguments,

    /// Print the service's response as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl PromptArguments {
    /// Client of the service to query.
    pub(crate) fn client(&self) -> Result<IndexerClient> {
        self.tls.client(self.service.as_str())
    }

    /// The prompt's tokens, from the command line or the file.
    pub(crate) fn tokens(&self) -> Result<Vec<u32>> {
        match &self.tokens_file {
            Some(path) => tokens_in(path),
            None => Ok(self.tokens.clone()),
        }
    }

    /// The error of a query. If the service has no instance of the model, the error names the service's models.
    pub(crate) fn failure(&self, client: &IndexerClient, error: Error) -> Error {
        match client.check_selection(Some(&self.model), self.tenant_id.as_deref()) {
            Err(unknown) => anyhow!("{unknown}; choose one with --model and --tenant-id"),
            Ok(()) => error,
        }
    }

    /// A query of these tokens.
    pub(crate) fn query(&self, tokens: &[u32]) -> TokenQuery {
        TokenQuery {
            token_ids: tokens.to_vec(),
            scope: ModelScope::of(&self.model, self.tenant_id.as_deref()),
            lora_name: self.lora_name.clone(),
            cache_salt: self.cache_salt.clone(),
            ..TokenQuery::default()
        }
    }
}

fn tokens_in(path: &Path) -> Result<Vec<u32>> {
    let mut text = String::new();
    if path.as_os_str() == "-" {
        std::io::stdin().read_to_string(&mut text).context("failed to read standard input")?;
    } else {
        text = std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
    }
    let list = text.trim();
    let list = list.strip_prefix('[').and_then(|list| list.strip_suffix(']')).unwrap_or(list);
    let words = list.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    let path = path.display();
    let parse = |word: &str| {
        let invalid = |_| anyhow!("invalid token id {word:?} in {path}: give whole numbers from 0 to {}", u32::MAX);
        word.parse::<u32>().map_err(invalid)
    };
    let tokens = words.map(parse).collect::<Result<Vec<_>>>()?;
    ensure!(!tokens.is_empty(), "no token in {path}; give at least one token id");
    Ok(tokens)
}
