//! `flash-indexer query`: a person's question.

use anyhow::Result;
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};

use crate::client::{Answer, IndexerClient, Query};
use crate::prompt::PromptArguments;

/// Which instances hold the longest prefix of these tokens, and how deep?
#[derive(Args)]
#[command(
    after_help = "Example:\n  flash-indexer query --model llama-3-8b --tokens 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16"
)]
pub(crate) struct QueryArguments {
    #[command(flatten)]
    prompt: PromptArguments,

    /// Only so many ranks with the deepest matches.
    #[arg(long)]
    top_k: Option<usize>,

    /// Only ranks that match at least so many tokens.
    #[arg(long)]
    min_score: Option<u64>,
}

pub(crate) fn run(arguments: &QueryArguments) -> Result<()> {
    let QueryArguments { prompt, top_k, min_score } = arguments;
    let tokens = prompt.tokens()?;
    let client = IndexerClient::new(&prompt.url);
    let query = Query { top_k: *top_k, min_score: *min_score, ..prompt.query(&tokens) };
    if prompt.json {
        println!("{}", serde_json::to_string_pretty(&client.query_json(&query)?)?);
    } else {
        print_table(&client.query(&query)?, tokens.len());
    }
    Ok(())
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
