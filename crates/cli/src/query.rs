//! `flash-indexer query`: shows which ranks hold a prompt's prefix.

use std::num::NonZeroUsize;

use anyhow::Result;
use clap::Args;
use flash_indexer_api::{QueryResponse, TokenQuery};

use crate::prompt::PromptArguments;
use flash_indexer_commands::output::{fitted, table};

/// Show which instances hold a prefix of these tokens, and its length.
#[derive(Args)]
#[command(
    after_help = "Example:\n  flash-indexer query --model llama-3-8b --tokens 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16"
)]
pub(crate) struct QueryArguments {
    #[command(flatten)]
    prompt: PromptArguments,

    /// Number of ranks to print, longest matches first.
    #[arg(long)]
    top_k: Option<NonZeroUsize>,

    /// Only ranks that match at least this number of tokens.
    #[arg(long)]
    min_score: Option<u64>,
}

pub(crate) fn run(arguments: &QueryArguments) -> Result<()> {
    let QueryArguments { prompt, top_k, min_score } = arguments;
    let tokens = prompt.tokens()?;
    let client = prompt.client()?;
    let query = TokenQuery { top_k: *top_k, min_score: *min_score, ..prompt.query(&tokens) };
    if prompt.json {
        let answer = client.query_json(&query).map_err(|error| prompt.failure(&client, error))?;
        println!("{}", serde_json::to_string_pretty(&answer)?);
    } else {
        let answer = client.query(&query).map_err(|error| prompt.failure(&client, error))?;
        print_table(&answer, tokens.len());
    }
    Ok(())
}

fn print_table(answer: &QueryResponse, prompt_tokens: usize) {
    if answer.scores.is_empty() {
        println!("no rank matches");
        return;
    }
    let header = ["instance", "rank", "device", "+ host", "+ disk", "any tier", "blocks held", "trust"];
    let mut table = table(header, 1..=6);
    for (instance, ranks) in &answer.scores {
        for (position, (rank, device)) in ranks.iter().enumerate() {
            // An answer has the slower tiers once for each instance.
            let instance_answer = answer.instances.get(instance).filter(|_| position == 0);
            let shown = |value: Option<u64>| value.map_or_else(String::new, |value| value.to_string());
            table.add_row([
                instance.clone(),
                rank.to_string(),
                device.to_string(),
                shown(instance_answer.map(|instance| instance.cpu)),
                shown(instance_answer.map(|instance| instance.disk)),
                shown(instance_answer.map(|instance| instance.longest_matched)),
                shown(answer.tree_sizes.get(instance).and_then(|sizes| sizes.get(rank)).map(|&blocks| blocks as u64)),
                instance_answer.map_or_else(String::new, |instance| instance.trust.as_str().to_owned()),
            ]);
        }
    }
    println!("matched tokens of {prompt_tokens}\n{}", fitted(table));
}
