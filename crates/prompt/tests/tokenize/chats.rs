//! Chats: rendered with the model's template, then tokenized.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use chat_template::ChatRequest;
use flash_indexer_engine_chats::{Chat, ChatEngine};
use flash_indexer_prompt::tokenize::{FailureReason, Prompt, PromptOptions, SpecialTokens};
use serde_json::{Value, json};
use tempfile::tempdir;

use crate::support::{ids, pool_in, text, tiny_tokenizer, write_model};

fn chat(request: Value) -> Prompt {
    let request: ChatRequest = serde_json::from_value(request).expect("a chat");
    Prompt::Chat(Box::new(request.into()))
}

fn one_message() -> Prompt {
    chat(json!({"messages": [{"role": "one", "content": "two three"}]}))
}

const TEMPLATE: &str = "{% for m in messages %}{{ bos_token }}{{ m.role }} : {{ m.content }}{% endfor %}";

#[test]
fn a_chat_is_rendered_with_the_models_template_and_not_begun_twice() {
    let root = tempdir().expect("a directory");
    let folder = root.path().join("model");
    write_model(&folder, &tiny_tokenizer());
    let config = json!({"bos_token": "<s>", "chat_template": TEMPLATE}).to_string();
    fs::write(folder.join("tokenizer_config.json"), config).expect("a file");
    let pool = pool_in(root.path());
    assert_eq!(pool.tokenize("model", one_message()).expect("tokens").ids, [0, 3, 7, 4, 5]);
    let added = PromptOptions { special_tokens: SpecialTokens::Added, ..PromptOptions::default() };
    assert_eq!(pool.tokenize_with("model", one_message(), added).expect("tokens").ids, [0, 0, 3, 7, 4, 5]);

    let other = chat(
        json!({"messages": [{"role": "user", "content": "one"}], "chat_template": "four {{ messages[0].content }}"}),
    );
    assert_eq!(pool.tokenize("model", other).expect("tokens").ids, [6, 3]);

    fs::write(folder.join("chat_template.jinja"), "four").expect("a file");
    assert_eq!(pool.tokenize("model", one_message()).expect("tokens").ids, [6], "a new template is noticed");
}

#[test]
fn a_chat_that_takes_long_to_render_has_the_same_tokens_as_any_other() {
    let root = tempdir().expect("a directory");
    let folder = root.path().join("model");
    write_model(&folder, &tiny_tokenizer());
    fs::write(folder.join("chat_template.jinja"), "{% for m in messages %}{{ m.content }} {% endfor %}")
        .expect("a file");
    let pool = pool_in(root.path());
    let one = json!({ "role": "user", "content": "one" });
    let many = chat(json!({ "messages": vec![one.clone(); 3_000] }));
    assert_eq!(pool.tokenize("model", many).expect("tokens").ids, vec![3; 3_000]);
    let loops = "{% for a in range(300) %}{% for b in range(300) %}{% endfor %}one {% endfor %}";
    let slow = chat(json!({ "messages": [one.clone()], "chat_template": loops }));
    assert_eq!(pool.tokenize("model", slow).expect("tokens").ids, vec![3; 300]);
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
    let error =
        pool.tokenize("model", chat(json!({ "messages": [one], "chat_template": endless }))).expect_err("a limit");
    assert!(error.to_string().contains("it exceeds the work limit"), "{error}");
}

#[test]
fn a_template_gets_the_special_tokens_of_the_tokenizers_class_that_no_file_names() {
    let root = tempdir().expect("a directory");
    let folder = root.path().join("model");
    write_model(&folder, &tiny_tokenizer());
    let pool = pool_in(root.path());
    for (config, ids) in [
        (json!({}), vec![3]),
        (json!({ "tokenizer_class": "LlamaTokenizer" }), vec![0, 3]),
        (json!({ "tokenizer_class": "LlamaTokenizer", "bos_token": null }), vec![3]),
        (json!({ "tokenizer_class": "LlamaTokenizer", "bos_token": "two" }), vec![4, 3]),
    ] {
        fs::write(folder.join("tokenizer_config.json"), config.to_string()).expect("a file");
        let template = "{% if bos_token %}{{ bos_token }} {% endif %}{{ messages[0].content }}";
        let one = json!({ "role": "user", "content": "one" });
        let request = chat(json!({ "messages": [one], "chat_template": template }));
        assert_eq!(pool.tokenize("model", request).expect("tokens").ids, ids, "{config}");
    }
}

#[test]
fn a_chat_that_cannot_be_rendered_says_why() {
    let root = tempdir().expect("a directory");
    write_model(&root.path().join("bare"), &tiny_tokenizer());
    let strict = root.path().join("strict");
    write_model(&strict, &tiny_tokenizer());
    fs::write(strict.join("chat_template.jinja"), "{{ raise_exception('only one role') }}").expect("a file");
    let pool = pool_in(root.path());

    let error = pool.tokenize("bare", one_message()).expect_err("there is no template");
    assert!(error.to_string().contains("the model has no chat template"), "{error}");
    let own =
        chat(json!({"messages": [{"role": "user", "content": "one"}], "chat_template": "{{ messages[0].content }}"}));
    assert_eq!(pool.tokenize("bare", own).expect("tokens").ids, [3]);
    let error = pool.tokenize("strict", one_message()).expect_err("the template refuses");
    assert!(error.to_string().contains("only one role"), "{error}");
    let wrong = chat(json!({"messages": [], "truncate_prompt_tokens": -2}));
    let error = pool.tokenize("strict", wrong).expect_err("that is no number of tokens");
    assert!(error.to_string().contains("truncate_prompt_tokens is -2"), "{error}");
    assert_eq!(pool.statistics().failed[&FailureReason::Chat], 3);
}

#[test]
fn a_broken_template_spoils_chats_and_not_texts() {
    let root = tempdir().expect("a directory");
    let folder = root.path().join("model");
    write_model(&folder, &tiny_tokenizer());
    fs::write(folder.join("chat_template.json"), "[").expect("a file");
    let pool = pool_in(root.path());
    assert_eq!(ids(&pool, "model", "one"), [0, 3]);
    let error = pool.tokenize("model", one_message()).expect_err("the template is broken");
    assert!(error.to_string().contains("chat_template.json"), "{error}");
    assert_eq!(error.reason(), FailureReason::LoadFailed, "not the fault of who asked");
    assert!(pool.tokenize("model", text("two")).is_ok());
}

#[test]
fn a_chat_of_a_family_without_templates_is_rendered_by_code() {
    let root = tempdir().expect("a directory");
    let pool = pool_in(root.path());
    let tokens = |model: &str, engine| {
        let body = json!({"messages": [{"role": "user", "content": "one two"}]}).to_string();
        let chat = Chat::from_body(body.as_bytes(), engine, SystemTime::UNIX_EPOCH).expect("a chat");
        pool.tokenize(model, Prompt::Chat(Box::new(chat))).map(|tokens| tokens.ids)
    };
    let models = [
        ("deepseek", "DeepseekV32ForCausalLM"),
        ("kimi", "KimiK3ForConditionalGeneration"),
        ("gpt-oss", "GptOssForCausalLM"),
    ];
    for (model, architecture) in models {
        let folder = root.path().join(model);
        write_model(&folder, &tiny_tokenizer());
        fs::write(folder.join("config.json"), json!({"architectures": [architecture]}).to_string()).expect("a file");
        // The engine does not read it.
        fs::write(folder.join("chat_template.jinja"), "four").expect("a file");
    }

    let plain = PromptOptions { special_tokens: SpecialTokens::Omitted, ..PromptOptions::default() };
    let expected = text("<｜begin▁of▁sentence｜><｜User｜>one two<｜Assistant｜></think>");
    let expected = pool.tokenize_with("deepseek", expected, plain).expect("tokens").ids;
    assert_eq!(tokens("deepseek", ChatEngine::Vllm).expect("tokens"), expected);
    assert_eq!(tokens("deepseek", ChatEngine::Sglang).expect("tokens"), [6], "by its template");

    let unknown = [
        ("kimi", ChatEngine::Vllm, "Kimi-K3"),
        ("kimi", ChatEngine::TensorRtLlm, "Kimi-K3"),
        ("deepseek", ChatEngine::TensorRtLlm, "DeepSeek-V3.2"),
        ("gpt-oss", ChatEngine::TensorRtLlm, "gpt-oss"),
    ];
    for (model, engine, family) in unknown {
        let error = tokens(model, engine).expect_err("only the engine knows the prompt");
        assert_eq!(error.reason(), FailureReason::Unsupported);
        assert!(error.to_string().contains(family), "{error}");
    }
}

#[test]
fn a_chat_of_gpt_oss_has_the_date_and_is_tokenized_part_by_part() {
    let root = tempdir().expect("a directory");
    let folder = root.path().join("gpt-oss");
    write_model(&folder, &tiny_tokenizer());
    fs::write(folder.join("config.json"), json!({"model_type": "gpt_oss"}).to_string()).expect("a file");
    let pool = pool_in(root.path());
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(86_400 * 365 - 1);
    let render = |content: Value| {
        // Such prompts are not truncated.
        let body = json!({"messages": [{"role": "user", "content": content}], "truncate_prompt_tokens": 1}).to_string();
        let mut chat = Chat::from_body(body.as_bytes(), ChatEngine::Vllm, now).expect("a chat");
        let rendering = Arc::default();
        chat.rendering = Some(Arc::clone(&rendering));
        let ids = pool.tokenize("gpt-oss", Prompt::Chat(Box::new(chat))).expect("tokens").ids;
        (rendering.get().expect("a rendering").text.clone(), ids)
    };
    let plain = PromptOptions { special_tokens: SpecialTokens::Omitted, ..PromptOptions::default() };
    let tokens = |text_of: String| pool.tokenize_with("gpt-oss", text(&text_of), plain).expect("tokens").ids;

    let (rendered, ids) = render(json!("one"));
    assert!(rendered.contains("\nCurrent date: 1970-12-31\n"), "{rendered}");
    assert_eq!(ids, tokens(rendered));

    let (rendered, ids) = render(json!([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]));
    let (before, after) = rendered.split_once("onetwo").expect("both parts");
    assert_eq!(ids, [tokens(format!("{before}one")), tokens(format!("two{after}"))].concat());
    assert_ne!(ids, tokens(rendered.clone()), "a token would span both parts");
}
