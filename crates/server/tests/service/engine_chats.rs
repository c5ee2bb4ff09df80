//! Chats are prompts as the engine that is registered makes them.

use std::fs;
use std::path::Path;

use flash_indexer_server::{IndexerOptions, ServerOptions, TokenizationOptions};
use flash_indexer_test_support::testdata;
use serde_json::{Value, json};

use crate::support::{Engine, Service};

/// A template that takes parts as a list, and prints arguments, tools and nulls.
const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for message in messages %}{{ message.role }}: \
    {% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}<{{ part.text }}>\
    {% endfor %}{% endif %}{% for call in message.tool_calls %}{{ call.function.arguments | tojson }}{% endfor %}\n{% endfor %}";

fn service(models: &Path) -> Service {
    for model in ["vllm-model", "sglang-model"] {
        let folder = models.join(model);
        fs::create_dir(&folder).expect("a folder");
        let tokenizer = testdata().join("tokenizers/test-model");
        fs::copy(tokenizer.join("tokenizer.json"), folder.join("tokenizer.json")).expect("copied");
        fs::write(folder.join("chat_template.jinja"), TEMPLATE).expect("written");
    }
    let directory = Some(models.to_owned());
    let tokenization = TokenizationOptions { directory, ..TokenizationOptions::default() };
    let indexer = IndexerOptions { tokenization, ..IndexerOptions::default() };
    Service::start_with(ServerOptions { indexer, ..ServerOptions::default() })
}

/// A request as an OpenAI client sends it in the middle of a session.
fn request(model: &str) -> Value {
    let call =
        json!({ "id": "c1", "type": "function", "function": { "name": "f", "arguments": "{\"a\": 1, \"b\": \"é\"}" } });
    json!({
        "model": model,
        "messages": [
            { "role": "user", "content": [{ "type": "text", "text": "one" }, { "type": "text", "text": "two" }] },
            { "role": "assistant", "content": null, "tool_calls": [call], "refusal": null },
            { "role": "tool", "tool_call_id": "c1", "content": "three" },
        ],
        "tools": [{ "type": "function", "function": { "parameters": {}, "name": "f" } }],
        "temperature": 0.5,
        "stream": true,
    })
}

#[test]
fn fields_that_clients_send_besides_are_ignored_and_wrong_ones_are_named() {
    let models = tempfile::tempdir().expect("a folder");
    let service = service(models.path());
    let _engine = Engine::registered(&service, json!("v"), 0, &json!({ "model_name": "vllm-model" }));
    let deep = "[".repeat(1000) + &"]".repeat(1000);
    let post = |path: &str, fields: &str| service.post_text(path, &format!("{{\"model\": \"vllm-model\", {fields}}}"));
    let user = |content: &str| format!("\"messages\": [{{\"role\": \"user\", \"content\": {content}}}]");
    let tokens = |fields: &str| {
        let (status, answer) = post("/tokenize", fields);
        assert_eq!(status, 200, "{fields}: {answer}");
        answer["tokens"].clone()
    };
    assert_eq!(tokens(&format!("{}, \"metadata\": {deep}", user("\"one\""))), tokens(&user("\"one\"")));
    assert_eq!(tokens(&format!("\"prompt\": \"one\", \"metadata\": {deep}")), tokens("\"prompt\": \"one\""));
    assert_eq!(tokens("\"prompt\": [\"one\"]"), tokens("\"prompt\": \"one\""));
    assert_eq!(tokens("\"prompt\": [[5, 6]]"), json!([5, 6]));
    assert_eq!(tokens("\"prompt\": [5, 6]"), json!([5, 6]));
    assert_eq!(tokens("\"prompt\": [5, 6], \"truncate_prompt_tokens\": -1"), json!([5, 6]));
    assert_eq!(tokens("\"token_ids\": [5, 6], \"truncate_prompt_tokens\": 1"), json!([6]));
    assert_eq!(tokens(&format!("{}, \"metadata\": \"\\ud800\"", user("\"one\""))), tokens(&user("\"one\"")));
    let image =
        "[{\"type\": \"text\", \"text\": \"look\"}, {\"type\": \"image_url\", \"image_url\": {\"url\": \"data:x\"}}]";
    for (fields, status, text) in [
        (user(image), 501, "\"image_url\""),
        (user("5"), 400, "fits no type"),
        (user("\"\\ud800\""), 400, "not JSON"),
        ("\"prompt\": [\"one\", \"two\"]".to_owned(), 422, "one at a time"),
        ("\"prompt\": [[1], [2]]".to_owned(), 422, "one at a time"),
        (format!("{}, \"truncate_prompt_tokens\": -5", user("\"one\"")), 400, "-5"),
        ("\"prompt\": \"one\", \"truncate_prompt_tokens\": -5".to_owned(), 400, "-5"),
        ("\"token_ids\": [1], \"truncate_prompt_tokens\": -5".to_owned(), 400, "-5"),
        ("\"top_k\": 1".to_owned(), 422, "missing field"),
    ] {
        let (answered, error) = post("/tokenize", &fields);
        let message = error["error"].as_str().expect("a text");
        assert!(answered == status && message.contains(text), "{fields}: {answered} {message}");
    }
}

#[test]
fn a_family_whose_prompts_are_made_by_code_is_named() {
    let models = tempfile::tempdir().expect("a folder");
    let service = service(models.path());
    fs::write(models.path().join("vllm-model/config.json"), "{\"architectures\": [\"DeepseekV32ForCausalLM\"]}")
        .expect("written");
    let _engine = Engine::registered(&service, json!("v"), 0, &json!({ "model_name": "vllm-model" }));
    let (status, error) = service.post("/score_chat_completions", &request("vllm-model"));
    assert!(status == 501 && error["error"].as_str().expect("a text").contains("DeepSeek-V3.2"), "{status} {error}");
}
