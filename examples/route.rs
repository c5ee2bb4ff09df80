//! A router that asks the service which instance holds the longest prefix of a prompt.
//!
//! `cargo run -p flash-indexer-examples --example route -- MODEL TOKEN…` against a service on port 8090.

use anyhow::{Context, Result};
use serde_json::{Value, json};

const SERVICE: &str = "http://127.0.0.1:8090";

/// A rank that holds some of the prompt.
struct Candidate {
    instance: String,
    tokens: u64,
    /// Whether the answer can be relied on: nothing is known to be missing.
    is_exact: bool,
}

fn candidates(model: &str, tokens: &[u32]) -> Result<Vec<Candidate>> {
    let query = json!({ "model_name": model, "token_ids": tokens });
    let response = ureq::post(format!("{SERVICE}/query")).content_type("application/json").send(query.to_string());
    let text = response.context("failed to query the service; check that it runs")?.body_mut().read_to_string()?;
    let answer: Value = serde_json::from_str(&text)?;
    let instances = answer["instances"].as_object().context("the answer has no instances")?;
    let candidate = |(instance, held): (&String, &Value)| Candidate {
        instance: instance.clone(),
        tokens: held["longest_matched"].as_u64().unwrap_or(0),
        is_exact: held["trust"] == "exact",
    };
    Ok(instances.iter().map(candidate).collect())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().context("give a model name and token ids")?;
    let tokens =
        arguments.map(|token| token.parse()).collect::<Result<Vec<u32>, _>>().context("a token is a number")?;
    // Of equal prefixes, the exact one.
    let best = candidates(&model, &tokens)?.into_iter().max_by_key(|it| (it.tokens, it.is_exact));
    match best {
        Some(Candidate { instance, tokens: held, is_exact }) if held > 0 => {
            let trust = if is_exact { "exact" } else { "not exact" };
            println!("send it to instance {instance}: {held} of {} tokens are cached ({trust})", tokens.len());
        }
        _ => println!("no instance holds the first block: choose by load"),
    }
    Ok(())
}
