//! `flash-indexer explain`: shows where each rank's match ends, and why.

use anyhow::{Context, Result, bail};
use clap::Args;
use flash_indexer_api::{AbsenceReason, ExplainRequest, Explanation, TokenQuery};
use flash_indexer_types::InstanceId;
use flash_indexer_types::hashes::FormattedHash;
use flash_indexer_wire::plural;

use crate::prompt::PromptArguments;
use flash_indexer_commands::output::{fitted, table};

/// Show where each rank's match of these tokens ends, and why.
#[derive(Args)]
#[command(
    after_help = "Example:\n  flash-indexer explain --model llama-3-8b --tokens-file prompt.txt --instance gpu-1"
)]
pub(crate) struct ExplainArguments {
    #[command(flatten)]
    prompt: PromptArguments,

    /// Only this instance.
    #[arg(long)]
    instance: Option<String>,
}

pub(crate) fn run(arguments: &ExplainArguments) -> Result<()> {
    let ExplainArguments { prompt, instance } = arguments;
    let tokens = prompt.tokens()?;
    let instance_id = instance.as_deref().map(InstanceId::parse).transpose()?.map(Into::into);
    let TokenQuery { token_ids, scope, lora_name, cache_salt, .. } = prompt.query(&tokens);
    let request =
        ExplainRequest { token_ids: Some(token_ids), scope, lora_name, cache_salt, instance_id, ..Default::default() };
    let client = prompt.client()?;
    let answer = client.explain(&request).map_err(|error| prompt.failure(&client, error))?;
    if prompt.json {
        println!("{}", serde_json::to_string_pretty(&answer)?);
    }
    let explanation: Explanation = serde_json::from_value(answer)
        .context("failed to parse the explanation; use the same release of command and service")?;
    if !prompt.json {
        print_table(&explanation, tokens.len());
    }
    match explanation.absent.iter().find(|absent| absent.reason == AbsenceReason::NotRegistered) {
        Some(absent) => bail!("instance {}: {}", absent.instance_id, absent.why),
        None => Ok(()),
    }
}

fn print_table(explanation: &Explanation, prompt_tokens: usize) {
    let header = ["instance", "rank", "device", "any tier", "trust", "ends at", "why", "local hash", "sequence hash"];
    let mut table = table(header, [1, 2, 3, 5]);
    for rank in &explanation.ranks {
        for (at, end) in rank.ends.iter().enumerate() {
            let once = |text: String| if at == 0 { text } else { String::new() };
            table.add_row([
                once(rank.instance_id.to_string()),
                once(rank.dp_rank.to_string()),
                once(rank.gpu.to_string()),
                once(rank.longest_matched.to_string()),
                once(rank.trust.as_str().to_owned()),
                end.position.to_string(),
                end.why.clone(),
                hex(&end.local_hash),
                hex(&end.sequence_hash),
            ]);
            for (group, missing) in
                end.facts.cache_groups.iter().flat_map(|of| of.missing.iter().map(|block| (of.group, block)))
            {
                let other_tier =
                    missing.tier.map_or_else(String::new, |tier| format!(", but held in {}", tier.as_str()));
                let position = missing.position.to_string();
                let why = format!("  missing in cache group {group}{other_tier}");
                let (local_hash, sequence_hash) = (hex(&missing.local_hash), hex(&missing.sequence_hash));
                table.add_row(["", "", "", "", "", &position, &why, &local_hash, &sequence_hash]);
            }
        }
    }
    for absent in &explanation.absent {
        let rank = absent.dp_rank.map_or_else(String::new, |rank| rank.to_string());
        let instance = absent.instance_id.to_string();
        table.add_row([instance.as_str(), &rank, "", "", "", "", &absent.why]);
    }
    println!(
        "{prompt_tokens} tokens, {} {}; matches in tokens, ends in blocks from 0\n{}",
        explanation.blocks,
        plural(explanation.blocks as u64, "block", "blocks"),
        fitted(table)
    );
}

fn hex(hash: &Option<FormattedHash>) -> String {
    hash.as_ref().map_or_else(String::new, |FormattedHash(hash, _)| format!("{hash:#018x}"))
}
