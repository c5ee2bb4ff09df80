//! Check of one prompt: the tokens of the same request from the service and from an engine.

use std::path::Path;

use anyhow::{Context, Result};
use flash_indexer_api::TokenizedPrompt;
use serde_json::{Value, json};

use super::finding::Outcome;
use flash_indexer_commands::IndexerClient;

/// Tokens that are shown from the first difference on.
const SHOWN_TOKENS: usize = 8;

/// The request of a file, or a chat that engines change before they apply their template: with tools, an argument as a text, null
/// content and text parts.
pub(super) fn request(file: Option<&Path>, model_name: &str) -> Result<Value> {
    if let Some(path) = file {
        let text = std::fs::read(path).with_context(|| format!("failed to read the request {}", path.display()))?;
        let failed =
            || format!("failed to parse the request {}; write the body of a chat or completion", path.display());
        return serde_json::from_slice(&text).with_context(failed);
    }
    let function = json!({ "name": "read", "parameters": { "type": "object", "properties": {} } });
    let call = json!({ "name": "read", "arguments": "{\"path\": \"README.md\", \"limit\": 200}" });
    Ok(json!({
        "model": model_name,
        "messages": [
            { "role": "user", "content": [{ "type": "text", "text": "Read it." }, { "type": "text", "text": "All?" }] },
            { "role": "assistant", "content": null, "tool_calls": [{ "id": "call00001", "type": "function", "function": call }] },
            { "role": "tool", "tool_call_id": "call00001", "content": "# Title" },
        ],
        "tools": [{ "type": "function", "function": function }],
    }))
}

/// Sends the request to `/tokenize` of both and compares the tokens.
pub(super) fn check(service: &IndexerClient, engine_url: &str, request: &Value) -> Outcome {
    let engine = IndexerClient::of_engine(engine_url);
    let [ours, theirs] = [service, &engine].map(|client| client.tokenize(request).map_err(|why| format!("{why:#}")));
    match (ours, theirs) {
        (Ok(ours), Ok(theirs)) => compare(&ours, &theirs.tokens),
        (Err(ours), Err(theirs)) => Outcome::warning(
            format!("the service and the engine reject the request: {ours}; {theirs}"),
            "give a request that the engine accepts: --request",
        ),
        (Err(why), Ok(_)) => Outcome::problem(
            format!("the engine tokenizes the request, the service does not: {why}"),
            "give the service the engine's tokenizer and chat template: --tokenizer-dir",
        ),
        (Ok(_), Err(why)) => Outcome::problem(
            format!("the service tokenizes the request, the engine does not: {why}"),
            "check that --engine-url is the engine's OpenAI API and that it serves the request's model",
        ),
    }
}

/// Compares tokens. For a partial prompt, only the known tokens are compared.
fn compare(ours: &TokenizedPrompt, theirs: &[u32]) -> Outcome {
    let count = ours.tokens.len();
    let same = ours.tokens.iter().zip(theirs).take_while(|(ours, theirs)| ours == theirs).count();
    if same == count && (count == theirs.len() || ours.partial.is_some()) {
        let part = if ours.partial.is_some() { ", as far as the service knows the prompt" } else { "" };
        return Outcome::ok(format!("the service and the engine make the same {count} tokens of it{part}"));
    }
    let shown = |tokens: &[u32]| {
        let from = &tokens[same.min(tokens.len())..];
        format!("{:?} of {} tokens", &from[..from.len().min(SHOWN_TOKENS)], tokens.len())
    };
    let (ours, theirs) = (shown(&ours.tokens), shown(theirs));
    Outcome::problem(
        format!("tokens differ from number {same} on: the service has {ours}, the engine {theirs}"),
        "compare POST /render of the service with the engine's template; give the service the engine's tokenizer files, \
         its --chat-template, and its kind in the registration's `engine`",
    )
}
