//! `flash-indexer query`: a person's question.

use std::io::Read;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};

use crate::client::{Answer, IndexerClient, Query};

/// Which instances hold the longest prefix of these tokens, and how deep?
#[derive(Args)]
#[command(
    after_help = "Example:\n  flash-indexer query --model llama-3-8b --tokens 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16"
)]
pub(crate) struct QueryArguments {
    /// Token ids of the prompt, separated by commas.
    #[arg(long, value_delimiter = ',', required_unless_present = "tokens_file", conflicts_with = "tokens_file")]
    tokens: Vec<u32>,

    /// File with token ids separated by commas, spaces or lines, or as a JSON list; - for standard input.
    #[arg(long, value_name = "FILE")]
    tokens_file: Option<PathBuf>,

    /// Model whose engines are asked about.
    #[arg(long, alias = "model-name", default_value = "default")]
    model: String,

    /// Tenant whose engines are asked about [default: the service's default tenant].
    #[arg(long)]
    tenant_id: Option<String>,

    /// LoRA adapter that the request would use.
    #[arg(long)]
    lora_name: Option<String>,

    /// Cache salt that the request would use.
    #[arg(long)]
    cache_salt: Option<String>,

    /// Only so many ranks with the deepest matches.
    #[arg(long)]
    top_k: Option<usize>,

    /// Only ranks that match at least so many tokens.
    #[arg(long)]
    min_score: Option<u64>,

    /// The service to ask.
    #[arg(long, env = "FLASH_INDEXER_URL", default_value = "http://127.0.0.1:8090")]
    url: String,

    /// Print the service's answer as it is.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &QueryArguments) -> Result<()> {
    let tokens = match &arguments.tokens_file {
        Some(path) => tokens_in(path)?,
        None => arguments.tokens.clone(),
    };
    let client = IndexerClient::new(&arguments.url);
    let query = Query {
        token_ids: &tokens,
        model_name: &arguments.model,
        tenant_id: arguments.tenant_id.as_deref(),
        lora_name: arguments.lora_name.as_deref(),
        cache_salt: arguments.cache_salt.as_deref(),
        top_k: arguments.top_k,
        min_score: arguments.min_score,
    };
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&client.query_json(&query)?)?);
    } else {
        print_table(&client.query(&query)?, tokens.len());
    }
    Ok(())
}

fn tokens_in(path: &PathBuf) -> Result<Vec<u32>> {
    let mut text = String::new();
    if path.as_os_str() == "-" {
        std::io::stdin().read_to_string(&mut text).context("failed to read standard input")?;
    } else {
        text = std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
    }
    let list = text.trim();
    let list = list.strip_prefix('[').and_then(|list| list.strip_suffix(']')).unwrap_or(list);
    let words = list.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    let tokens: Result<Vec<u32>> = words
        .map(|word| word.parse().with_context(|| format!("{word:?} in {} is not a token id", path.display())))
        .collect();
    match tokens?.as_slice() {
        [] => bail!("there is no token in {}", path.display()),
        tokens => Ok(tokens.to_vec()),
    }
}

fn print_table(answer: &Answer, prompt_tokens: usize) {
    if answer.scores.is_empty() {
        println!("no rank fits");
        return;
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["instance", "rank", "device", "+ host", "+ disk", "any tier", "blocks held", "trust"]);
    for column in table.column_iter_mut().skip(1).take(6) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for (instance, ranks) in &answer.scores {
        for (position, (rank, device)) in ranks.iter().enumerate() {
            // Slower tiers are told for the instance as a whole.
            let whole = answer.instances.get(instance).filter(|_| position == 0);
            let shown = |value: Option<u64>| value.map_or_else(String::new, |value| value.to_string());
            table.add_row([
                instance.clone(),
                rank.to_string(),
                device.to_string(),
                shown(whole.map(|whole| whole.cpu)),
                shown(whole.map(|whole| whole.disk)),
                shown(whole.map(|whole| whole.longest_matched)),
                shown(answer.tree_sizes.get(instance).and_then(|sizes| sizes.get(rank)).copied()),
                whole.map_or_else(String::new, |whole| whole.trust.clone()),
            ]);
        }
    }
    println!("matched tokens of {prompt_tokens}\n{table}");
}
