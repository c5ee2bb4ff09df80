//! Chats are changed, rendered and tokenized as the engines do it. The recordings were made by the real engines; README.md
//! says how.

mod coded;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use chat_template::{ChatTemplates, Json};
use flash_indexer_engine_chats::{Chat, ChatEngine};
use flash_indexer_prompt::tokenize::{
    Effort, ModelTokenizer, NamedPaths, PieceCache, Prompt, PromptOptions, Tokenization, TokenizeError, TokenizerSource,
};
use flash_indexer_test_support::testdata;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The outcomes of an engine for each request and template.
#[derive(Deserialize)]
struct Recording {
    templates: BTreeMap<String, String>,
    requests: BTreeMap<String, Json>,
    texts: Vec<String>,
    conversations: Vec<String>,
    /// Outcomes by template and request.
    cases: BTreeMap<String, BTreeMap<String, Outcome>>,
    /// Tokens by template and request.
    tokens: BTreeMap<String, BTreeMap<String, Vec<u32>>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Outcome {
    /// Positions of the conversation that the template was given, and of the text.
    Rendered(usize, usize),
    Failed {
        error: String,
    },
}

/// A request that is not compared.
struct Exception {
    request: &'static str,
    #[expect(dead_code, reason = "documents the exception")]
    reason: &'static str,
}

fn read<R: DeserializeOwned>(name: &str) -> R {
    let path = testdata().join("chats").join(name);
    serde_json::from_str(&fs::read_to_string(path).expect("a recording")).expect("JSON of the right shape")
}

/// The day of the recordings, 2026-11-23.
fn recorded_day() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_392_000)
}

fn chat(body: &str, engine: ChatEngine) -> Result<Chat, serde_json::Error> {
    Chat::from_body(body.as_bytes(), engine, recorded_day())
}

/// A model's folder with the tokenizer of the tests and one template.
fn model(template: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for file in fs::read_dir(testdata().join("tokenizers/test-model")).expect("a folder") {
        let file = file.expect("a file").path();
        let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
        if name != "chat_template.jinja" {
            fs::copy(&file, folder.path().join(name)).expect("copied");
        }
    }
    fs::write(folder.path().join("chat_template.jinja"), template).expect("written");
    folder
}

fn conversation(messages: &[Json], tools: Option<&[Json]>) -> String {
    let list = |items: &[Json]| Json::list(items.iter().cloned()).expect("not nested too deeply");
    let tools = tools.map_or_else(Json::null, list);
    Json::object([("messages", list(messages)), ("tools", tools)]).expect("not nested too deeply").to_text()
}

/// The body of a recorded request: the content of a string, or the JSON of any other value.
fn body(request: &Json) -> String {
    request.as_str().map_or_else(|| request.to_text(), str::to_owned)
}

/// Numbers of compared cases.
struct Compared {
    cases: usize,
    /// Cases that both reject.
    rejected: usize,
    /// Cases that only the engine rejects.
    taken: usize,
}

/// Compares every case, except cases that only the engine rejects.
fn compare(name: &str, engine: ChatEngine, exceptions: &[Exception]) -> Compared {
    let recording: Recording = read(name);
    let (mut cases, mut rejected, mut taken) = (0, 0, 0);
    let mut wrong = Vec::new();
    for (template, outcomes) in &recording.cases {
        let folder = model(&recording.templates[template]);
        let templates =
            ChatTemplates::read_with_clock(folder.path(), recorded_day).expect("files").expect("a template");
        for (request, outcome) in outcomes {
            if exceptions.iter().any(|it| it.request == request) {
                continue;
            }
            cases += 1;
            let rendered = chat(&body(&recording.requests[request]), engine).map_err(|error| error.to_string());
            let rendered = rendered.and_then(|chat| chat.render(&templates).map_err(|error| error.to_string()));
            match (outcome, rendered) {
                (Outcome::Failed { .. }, Err(_)) => rejected += 1,
                (Outcome::Failed { error }, Ok(rendering)) => {
                    taken += 1;
                    println!("{template} {request}\n  rejected {error:?}\n  rendered {:?}", rendering.text);
                }
                (Outcome::Rendered(_, text), Err(error)) => {
                    let text = &recording.texts[*text];
                    wrong.push(format!("{template} {request}\n  expected {text:?}\n  rejected {error:?}"));
                }
                (Outcome::Rendered(given, text), Ok(rendering)) => {
                    let request_given = &rendering.prepared.request;
                    let ours = conversation(&request_given.messages, request_given.tools.as_deref());
                    let expected = &recording.conversations[*given];
                    if ours != *expected && !request_given.chat_template_kwargs.as_ref().is_some_and(has_tools) {
                        wrong.push(format!("{template} {request}\n  expected {expected}\n  prepared {ours}"));
                    } else if rendering.text != recording.texts[*text] {
                        let text = &recording.texts[*text];
                        wrong.push(format!(
                            "{template} {request}\n  expected {text:?}\n  rendered {:?}",
                            rendering.text
                        ));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {cases} differ:\n{}", wrong.len(), shorten(&wrong));
    Compared { cases, rejected, taken }
}

/// Tools among the variables replace those of the request when the template is rendered.
fn has_tools(kwargs: &Json) -> bool {
    kwargs.get("tools").is_some()
}

fn shorten(wrong: &[String]) -> String {
    wrong.iter().take(4000).cloned().collect::<Vec<_>>().join("\n")
}

/// The tokens of a prompt, all slices at once.
fn tokens(tokenizer: &dyn ModelTokenizer, prompt: Prompt, pieces: &Arc<PieceCache>) -> Result<Vec<u32>, TokenizeError> {
    match tokenizer.tokenize(prompt, PromptOptions::default(), pieces, Effort::Full)? {
        Tokenization::Done(ids) => Ok(ids),
        Tokenization::TooLong(_) => panic!("the effort is the full one"),
        Tokenization::Sliced(mut slices) => loop {
            if let Some(ids) = slices.step()? {
                return Ok(ids);
            }
        },
    }
}

/// Compares the tokens of the templates for which they are recorded.
fn compare_tokens(name: &str, engine: ChatEngine, exceptions: &[Exception]) -> usize {
    let recording: Recording = read(name);
    let mut wrong = Vec::new();
    let mut cases = 0;
    for (template, requests) in &recording.tokens {
        let folder = model(&recording.templates[template]);
        let named: NamedPaths = [("m".to_owned(), Path::new(folder.path()).to_owned())].into_iter().collect();
        let tokenizer = named.with_clock(recorded_day).load("m").expect("a tokenizer");
        let pieces = Arc::new(PieceCache::new(1 << 20));
        for (request, expected) in requests {
            if exceptions.iter().any(|it| it.request == request) {
                continue;
            }
            cases += 1;
            let chat = chat(&body(&recording.requests[request]), engine).expect("a request that the engine takes");
            let ids = tokens(&*tokenizer, Prompt::Chat(Box::new(chat)), &pieces);
            if ids.as_ref().ok() != Some(expected) {
                wrong.push(format!("{template} {request}\n  expected {expected:?}\n  tokens   {ids:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {cases} differ:\n{}", wrong.len(), shorten(&wrong));
    cases
}

/// Requests that the engines reject, and this service accepts or rejects later.
const LENIENT: [Exception; 2] = [
    Exception { request: "null_generation_prompt", reason: "null counts as missing" },
    Exception { request: "truncated_negative", reason: "rejected when the tokens are cut" },
];

/// Requests that SGLang treats differently, because it has no such field or checks more than the prompt.
const SGLANG: [Exception; 2] = [
    Exception {
        request: "truncated_negative",
        reason: "SGLang ignores truncate_prompt_tokens, of which -5 is rejected here",
    },
    Exception { request: "tools_numbers", reason: "SGLang checks the JSON schema of parameters" },
];

#[test]
fn chats_are_rendered_as_by_vllm() {
    let Compared { cases, rejected, taken } = compare("vllm-0.32.0.json", ChatEngine::Vllm, &LENIENT);
    assert!(cases >= 13_000 && rejected < cases / 2 && taken == 0, "{cases} cases, {rejected} rejected, {taken} taken");
}

#[test]
fn chats_are_rendered_as_by_sglang() {
    let Compared { cases, rejected, taken } = compare("sglang-0.5.23.json", ChatEngine::Sglang, &SGLANG);
    assert!(cases > 12_500 && rejected < cases / 2 && taken == 0, "{cases} cases, {rejected} rejected, {taken} taken");
}

#[test]
fn random_bodies_are_rendered_and_tokenized_as_by_vllm() {
    let Compared { cases, rejected, taken } = compare("vllm-0.32.0-random.json", ChatEngine::Vllm, &[]);
    assert!(cases > 10_000 && rejected > 2_000 && taken < rejected / 20, "{cases}, {rejected} rejected, {taken} taken");
    assert!(compare_tokens("vllm-0.32.0-random.json", ChatEngine::Vllm, &[]) > 2_000);
}

#[test]
fn random_bodies_are_rendered_and_tokenized_as_by_sglang() {
    let Compared { cases, rejected, taken } = compare("sglang-0.5.23-random.json", ChatEngine::Sglang, &[]);
    assert!(cases > 10_000 && rejected > 2_000 && taken < rejected / 20, "{cases}, {rejected} rejected, {taken} taken");
    assert!(compare_tokens("sglang-0.5.23-random.json", ChatEngine::Sglang, &[]) > 2_000);
}

#[test]
fn chats_are_tokenized_as_by_sglang() {
    assert!(compare_tokens("sglang-0.5.23.json", ChatEngine::Sglang, &SGLANG) > 350);
}

#[test]
fn chats_are_tokenized_as_by_vllm() {
    assert!(compare_tokens("vllm-0.32.0.json", ChatEngine::Vllm, &[]) > 400);
}

#[test]
fn the_content_of_a_list_of_parts_is_the_last_key_for_sglang() {
    let folder = model("{% for m in messages %}{% for part in m.content %}{% endfor %}{{ m }}{% endfor %}");
    let templates = ChatTemplates::read(folder.path()).expect("files").expect("a template");
    let render = |content: &str| {
        let body = format!(r#"{{"messages": [{{"role": "tool", "content": {content}, "tool_call_id": "c"}}]}}"#);
        chat(&body, ChatEngine::Sglang).expect("a chat").render(&templates).expect("a text").text
    };
    let parts = r#"[{"type": "text", "text": "r1"}, {"type": "text", "text": "r2"}]"#;
    assert_eq!(render(parts), "{'role': 'tool', 'tool_call_id': 'c', 'content': 'r1 r2'}");
    assert_eq!(render("[]"), "{'role': 'tool', 'tool_call_id': 'c', 'content': ''}");
    assert_eq!(render("\"r1\""), "{'role': 'tool', 'content': 'r1', 'tool_call_id': 'c'}");
}

#[test]
fn chats_are_rendered_by_the_rules_of_tensorrt_llm() {
    let template = "{{ tools | tojson }}{% for m in messages %}{{ m | tojson }}\n{% endfor %}";
    let folder = model(template);
    let templates = ChatTemplates::read(folder.path()).expect("files").expect("a template");
    let body = r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": ""},
        {"type": "text", "text": "b"}], "name": "n"}, {"role": "assistant", "content": null, "reasoning": "r", "tool_calls":
        [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]}],
        "tools": [{"type": "function", "function": {"name": "f"}}]}"#;
    let chat = chat(body, ChatEngine::TensorRtLlm).expect("a chat");
    let expected = concat!(
        r#"[{"type": "function", "function": {"name": "f", "description": null, "parameters": null, "strict": null}}]"#,
        "{\"role\": \"user\", \"content\": \"a\\nb\"}\n",
        r#"{"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [{"id": "c", "function": {"#,
        "\"arguments\": {\"x\": 1}, \"name\": \"f\"}, \"type\": \"function\"}]}\n",
    );
    assert_eq!(chat.render(&templates).expect("a text").text, expected);
}
