//! Prompts that engines make by code, compared with what the real engines make.

use std::collections::BTreeMap;
use std::fs;

use chat_template::Json;
use flash_indexer_prompt::normalize::{ChatEngine, CodedPrompts};
use serde::Deserialize;

use crate::{chat, read, shorten};

/// What an engine made of each request for each family.
#[derive(Deserialize)]
struct Recording {
    requests: BTreeMap<String, Json>,
    texts: Vec<String>,
    /// Outcomes by family and request.
    cases: BTreeMap<String, BTreeMap<String, Outcome>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Outcome {
    /// Position of the text.
    Rendered(usize),
    Failed {
        error: String,
    },
}

/// What the engine rejects, and this service takes or rejects later.
const LENIENT: [&str; 4] = [
    // Null counts as missing.
    "null_generation_prompt",
    // Rejected when the tokens are cut.
    "truncated_negative",
    // Ignored. The engine rejects templates of requests unless it is started to trust them.
    "of_code.template",
    "of_code.kwargs_template",
];

/// What becomes of a model of an architecture.
fn prompts_of(architecture: &str) -> CodedPrompts {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = format!("{{\"architectures\": [{architecture:?}]}}");
    fs::write(folder.path().join("config.json"), config).expect("written");
    CodedPrompts::read(folder.path(), false)
}

/// What follows the common beginning of two texts.
fn from_difference<'t>(a: &'t str, b: &'t str) -> (&'t str, &'t str) {
    let common = a.char_indices().zip(b.chars()).find(|((_, a), b)| a != b).map(|((at, _), _)| at);
    let common = common.unwrap_or_else(|| a.len().min(b.len()));
    (&a[common..], &b[common..])
}

/// Compares every case of a family, and returns the number of cases and of those that the engine rejects.
fn compare(name: &str, family: &str, architecture: &str, exceptions: &[&str]) -> (usize, usize) {
    let recording: Recording = read(name);
    let coded = prompts_of(architecture).of(ChatEngine::Vllm).expect("a family with prompts by code");
    let (mut cases, mut rejected) = (0, 0);
    let mut wrong = Vec::new();
    for (request, outcome) in &recording.cases[family] {
        let base = request.trim_end_matches("+thinking");
        if LENIENT.contains(&base) || exceptions.contains(&base) {
            continue;
        }
        cases += 1;
        let rendered = chat(&recording.requests[request].to_text(), ChatEngine::Vllm);
        let rendered = rendered.map_err(|error| error.to_string());
        let rendered = rendered.and_then(|chat| chat.render_by_code(coded).map_err(|error| error.to_string()));
        match (outcome, rendered) {
            (Outcome::Failed { .. }, Err(_)) => rejected += 1,
            (Outcome::Failed { error }, Ok(rendering)) => {
                wrong.push(format!("{request}\n  rejected {error:?}\n  rendered {:?}", rendering.text));
            }
            (Outcome::Rendered(text), Err(error)) => {
                wrong.push(format!("{request}\n  expected {:?}\n  rejected {error:?}", recording.texts[*text]));
            }
            (Outcome::Rendered(text), Ok(rendering)) if rendering.text != recording.texts[*text] => {
                let (expected, ours) = from_difference(&recording.texts[*text], &rendering.text);
                wrong.push(format!("{request}\n  expected {expected:?}\n  rendered {ours:?}"));
            }
            (Outcome::Rendered(_), Ok(_)) => {}
        }
    }
    assert!(wrong.is_empty(), "{} of {cases} differ:\n{}", wrong.len(), shorten(&wrong));
    (cases, rejected)
}

#[test]
fn prompts_of_deepseek_v32_are_those_of_vllm() {
    let (cases, rejected) = compare("vllm-0.32.0-coded.json", "deepseek_v32", "DeepseekV32ForCausalLM", &[]);
    assert!(cases > 400 && rejected < cases / 2, "{cases} cases, {rejected} rejected");
}

/// 501: reasoning that is no text, which the encoder prints as Python does.
const UNKNOWN_TO_V4: [&str; 2] = ["of_code.reasoning_number", "of_code.reasoning_object"];

#[test]
fn prompts_of_deepseek_v4_are_those_of_vllm() {
    let (cases, rejected) = compare("vllm-0.32.0-coded.json", "deepseek_v4", "DeepseekV4ForCausalLM", &UNKNOWN_TO_V4);
    assert!(cases > 400 && rejected < cases / 2, "{cases} cases, {rejected} rejected");
}

/// What vLLM makes a prompt of gpt-oss of, and this service does not.
const UNKNOWN_TO_HARMONY: [&str; 5] = [
    // Rejected: a tool call that is no function's.
    "call_custom",
    // 501: only the engine knows the tokens of special tokens that a text spells out.
    "of_code.special_tokens",
    "of_code.special_answer",
    // 501: a user's message with tool calls.
    "of_code.user_calls",
    // Rejected: reasoning that is no text, which vLLM drops before it reads it.
    "of_code.reasoning_object",
];

#[test]
fn prompts_of_gpt_oss_are_those_of_vllm() {
    let (cases, rejected) = compare("vllm-0.32.0-coded.json", "harmony", "GptOssForCausalLM", &UNKNOWN_TO_HARMONY);
    assert!(cases > 400 && rejected < cases / 4, "{cases} cases, {rejected} rejected");
}
