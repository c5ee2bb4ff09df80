//! Chats are rendered to prompts as the registered engine renders them.

use std::fs;
use std::path::Path;

use flash_indexer_server::{IndexerOptions, ServerOptions, TokenizationOptions};
use flash_indexer_test_support::testdata;
use flash_indexer_wire::{BlockStored, EngineEvent, TokenIds};
use serde_json::{Value, json};
use tonic::Code;

use crate::support::proto::indexer_service_client::IndexerServiceClient;
use crate::support::proto::{GetPodScoresRequest, PartialPrompt};
use crate::support::{BLOCK_TOKENS, Engine, Service, store};

/// A template that accepts parts as a list, and prints arguments, tools and nulls.
const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for message in messages %}{{ message.role }}: \
    {% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}<{{ part.text }}>\
    {% endfor %}{% endif %}{% for call in message.tool_calls %}{{ call.function.arguments | tojson }}{% endfor %}\n{% endfor %}";

fn service(models: &Path) -> Service {
    for model in ["vllm-model", "sglang-model", "trtllm-model"] {
        let folder = models.join(model);
        fs::create_dir(&folder).expect("a folder");
        let tokenizer = testdata().join("tokenizers/test-model");
        fs::copy(tokenizer.join("tokenizer.json"), folder.join("tokenizer.json")).expect("copied");
        fs::write(folder.join("chat_template.jinja"), TEMPLATE).expect("written");
    }
    let directory = Some(models.to_owned());
    let tokenization = TokenizationOptions { directory, ..TokenizationOptions::default() };
    let indexer = IndexerOptions { tokenization, ..IndexerOptions::default() };
    Service::start_with(ServerOptions { indexer, grpc_port: Some(0), ..ServerOptions::default() })
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
    for ids in ["[5.0, \"6\"]", "[[\"5\", 6.0]]", "[\"5\", 6]", "[\" 05 \", \"6.0\", true]"] {
        let read = if ids.contains("true") { json!([5, 6, 1]) } else { json!([5, 6]) };
        assert_eq!(tokens(&format!("\"prompt\": {ids}")), read, "{ids}");
    }
    assert_eq!(tokens("\"prompt\": [\"5\"]"), tokens("\"prompt\": \"5\""), "a list of texts alone has texts");
    // 0 keeps none.
    for prompt in ["\"prompt\": \"one\"", "\"prompt\": [5, 6]", "\"token_ids\": [5, 6]", &user("\"one\"")] {
        for none in ["0", "\"0\"", "-0.0", "false", "0, \"truncation_side\": \"right\""] {
            assert_eq!(tokens(&format!("{prompt}, \"truncate_prompt_tokens\": {none}")), json!([]), "{prompt} {none}");
        }
    }
    assert_eq!(tokens(&format!("{}, \"metadata\": \"\\ud800\"", user("\"one\""))), tokens(&user("\"one\"")));
    // Values of other types, as the engines' request models read them, and non-JSON constants that their parser accepts.
    let kept = |count: &str| tokens(&format!("{}, \"truncate_prompt_tokens\": {count}", user("\"one\"")));
    for count in ["\"3\"", "3.0", "\" +3.0\\n\""] {
        assert_eq!(kept(count), kept("3"), "{count}");
        let of_text = |count: &str| tokens(&format!("\"prompt\": [5, 6, 7, 8], \"truncate_prompt_tokens\": {count}"));
        assert_eq!(of_text(count), json!([6, 7, 8]), "{count}");
    }
    let added = |value: &str| tokens(&format!("\"prompt\": \"one\", \"add_special_tokens\": {value}"));
    assert_eq!(added("\"No\""), added("false"));
    assert_ne!(added("false"), added("true"));
    assert_eq!(added("1"), added("true"));
    assert_eq!(
        tokens(&format!("{}, \"temperature\": NaN, \"x\": [-Infinity]", user("\"one\""))),
        tokens(&user("\"one\""))
    );
    for path in ["/render", "/score_chat_completions", "/predict"] {
        let (status, answer) = post(path, &format!("{}, \"pod\": \"v\", \"temperature\": Infinity", user("\"one\"")));
        assert_eq!(status, 200, "{path}: {answer}");
    }
    let file = "[{\"type\": \"text\", \"text\": \"look\"}, {\"type\": \"file\", \"file\": {\"file_id\": \"x\"}}]";
    for (fields, status, text) in [
        (user(file), 501, "\"file\""),
        (user("5"), 400, "fits no type"),
        (user("\"\\ud800\""), 400, "lone surrogate"),
        ("\"prompt\": \"\\ud800\"".to_owned(), 400, "lone surrogate"),
        (format!("{}, \"truncation_side\": \"middle\"", user("\"one\"")), 422, "middle"),
        ("\"prompt\": \"one\", \"truncation_side\": {\"left\": null}".to_owned(), 422, "truncation_side"),
        ("\"prompt\": [\"one\", \"two\"]".to_owned(), 422, "one at a time"),
        ("\"prompt\": [\"one\", 2]".to_owned(), 422, "several types"),
        ("\"prompt\": [1.5]".to_owned(), 422, "prompt: "),
        ("\"prompt\": [-1]".to_owned(), 422, "-1"),
        ("\"prompt\": 5".to_owned(), 422, "a text or a list of token ids"),
        ("\"prompt\": [[1], [2]]".to_owned(), 422, "one at a time"),
        (format!("{}, \"truncate_prompt_tokens\": -5", user("\"one\"")), 400, "-5"),
        ("\"prompt\": \"one\", \"truncate_prompt_tokens\": -5".to_owned(), 400, "-5"),
        ("\"token_ids\": [1], \"truncate_prompt_tokens\": -5".to_owned(), 400, "-5"),
        (format!("{}, \"truncate_prompt_tokens\": \"3.5\"", user("\"one\"")), 422, "truncate_prompt_tokens"),
        ("\"prompt\": \"one\", \"add_special_tokens\": \"maybe\"".to_owned(), 422, "add_special_tokens"),
        (format!("{}, \"truncate_prompt_tokens\": NaN", user("\"one\"")), 400, "out of range"),
        (format!("{}, \"temperature\": -NaN", user("\"one\"")), 400, "not JSON"),
        ("\"top_k\": 1".to_owned(), 422, "missing field"),
    ] {
        let (answered, error) = post("/tokenize", &fields);
        let message = error["error"].as_str().expect("a text");
        assert!(answered == status && message.contains(text), "{fields}: {answered} {message}");
    }
}

#[test]
fn a_prompt_is_truncated_at_the_side_that_the_request_names() {
    let models = tempfile::tempdir().expect("a folder");
    let service = service(models.path());
    let _engine = Engine::registered(&service, json!("v"), 0, &json!({ "model_name": "vllm-model" }));
    let tokens = |prompt: &str, truncation: &str| -> Vec<u32> {
        let body = format!("{{\"model\": \"vllm-model\", {prompt}{truncation}}}");
        let (status, answer) = service.post_text("/tokenize", &body);
        assert_eq!(status, 200, "{body}: {answer}");
        serde_json::from_value(answer["tokens"].clone()).expect("tokens")
    };
    let prompts = [
        "\"messages\": [{\"role\": \"user\", \"content\": \"one two three four\"}]",
        "\"prompt\": \"one two three four\"",
        "\"prompt\": [5, 6, 7, 8, 9, 10]",
        "\"token_ids\": [5, 6, 7, 8, 9, 10]",
    ];
    for prompt in prompts {
        let whole = tokens(prompt, "");
        let truncated =
            |side: &str| tokens(prompt, &format!(", \"truncate_prompt_tokens\": 4, \"truncation_side\": {side}"));
        assert!(whole.len() > 4, "{whole:?}");
        assert_eq!(truncated("\"right\""), whole[..4], "{prompt}");
        assert_eq!(truncated("\"left\""), whole[whole.len() - 4..], "{prompt}");
        assert_eq!(truncated("null"), tokens(prompt, ", \"truncate_prompt_tokens\": 4"), "{prompt}");
        assert_eq!(tokens(prompt, ", \"truncation_side\": \"right\""), whole, "{prompt}");
    }
}

#[test]
fn a_completion_has_the_prompt_that_its_engine_makes() {
    let models = tempfile::tempdir().expect("a folder");
    let service = service(models.path());
    let _vllm = Engine::registered(&service, json!("v"), 0, &json!({ "model_name": "vllm-model", "engine": "vllm" }));
    let _sglang =
        Engine::registered(&service, json!("s"), 0, &json!({ "model_name": "sglang-model", "engine": "sglang" }));
    let tokenize = |model: &str, fields: &str| {
        service.post_text("/tokenize", &format!("{{\"model\": \"{model}-model\", {fields}}}"))
    };
    let (_, whole) = tokenize("vllm", "\"prompt\": \"one two three\"");
    // vLLM puts a suffix into the prompts of some models, and rejects it for others. SGLang has a setting for it.
    for prompt in ["\"one two three\"", "[\"one\"]", "[5, 6]"] {
        let (status, answer) = tokenize("vllm", &format!("\"prompt\": {prompt}, \"suffix\": \"four\""));
        assert!(status == 501 && answer["error"].as_str().expect("a text").contains("suffix"), "{status} {answer}");
    }
    assert_eq!(tokenize("vllm", "\"prompt\": \"one two three\", \"suffix\": null"), (200, whole.clone()));
    assert_eq!(tokenize("vllm", "\"token_ids\": [5, 6], \"suffix\": \"four\"").0, 200);
    // Several prompts are refused as without a suffix. A suffix that is not a text is also refused.
    assert_eq!(tokenize("vllm", "\"prompt\": [\"one\", \"two\"], \"suffix\": \"four\"").0, 422);
    for prompt in ["\"prompt\": \"one two three\"", "\"token_ids\": [5, 6]"] {
        for suffix in ["5", "true", "[]", "{}"] {
            for engine in ["vllm", "sglang"] {
                let (status, answer) = tokenize(engine, &format!("{prompt}, \"suffix\": {suffix}"));
                assert_eq!(status, 422, "{engine} {prompt} {suffix}: {answer}");
            }
        }
    }
    // SGLang's completions have no such fields.
    for fields in [
        "\"suffix\": \"four\"",
        "\"add_special_tokens\": false",
        "\"truncate_prompt_tokens\": 3",
        "\"truncate_prompt_tokens\": 3, \"truncation_side\": \"right\"",
    ] {
        let prompt = format!("\"prompt\": \"one two three\", {fields}");
        assert_eq!(tokenize("sglang", &prompt), (200, whole.clone()), "{fields}");
        let (_, ids) = tokenize("sglang", &format!("\"prompt\": [5, 6, 7, 8], {fields}"));
        assert_eq!(ids["tokens"], json!([5, 6, 7, 8]), "{fields}");
    }
    // So they may hold anything, in chats as well.
    let messages = "\"messages\": [{\"role\": \"user\", \"content\": \"one\"}]";
    let unknown = "\"truncation_side\": 5, \"add_special_tokens\": \"maybe\"";
    for (prompt, fields) in [
        ("\"prompt\": \"one two three\"", unknown.to_owned()),
        ("\"prompt\": [5, 6]", unknown.to_owned()),
        (messages, format!("{unknown}, \"chat_template\": [], \"add_generation_prompt\": \"x\", \"documents\": {{}}")),
        (messages, "\"return_assistant_tokens_mask\": \"x\", \"chat_template\": \"{{ }}\"".to_owned()),
    ] {
        let (status, bare) = tokenize("sglang", prompt);
        assert_eq!(status, 200, "{bare}");
        assert_eq!(tokenize("sglang", &format!("{prompt}, {fields}")), (200, bare), "{fields}");
        assert_eq!(tokenize("vllm", &format!("{prompt}, {unknown}")).0, 422, "{fields}");
    }
    assert_eq!(tokenize("vllm", &format!("{messages}, \"return_assistant_tokens_mask\": \"x\"")).0, 200);
}

#[test]
fn values_are_read_as_python_reads_them() {
    let models = tempfile::tempdir().expect("a folder");
    let service = service(models.path());
    let _engine = Engine::registered(&service, json!("v"), 0, &json!({ "model_name": "vllm-model" }));
    let render = |fields: &str| service.post_text("/render", &format!("{{\"model\": \"vllm-model\", {fields}}}"));
    let prompt = |fields: &str| {
        let (status, answer) = render(fields);
        assert_eq!(status, 200, "{fields}: {answer}");
        answer["prompt"].as_str().expect("a text").to_owned()
    };
    let user = "\"messages\": [{\"role\": \"user\", \"content\": \"one\"}]";
    let tools = |function: &str, more: &str| {
        format!("{user}, \"tools\": [{{\"type\": \"function\", \"function\": {{\"name\": \"f\"{function}}}{more}}}]")
    };
    let called = |arguments: &str| {
        format!(
            "\"messages\": [{{\"role\": \"assistant\", \"tool_calls\": [{{\"id\": \"c\", \"type\": \"function\", \"function\": \
             {{\"name\": \"f\", \"arguments\": {}}}}}]}}]",
            json!(arguments)
        )
    };

    // Integers of any size.
    let integers = "{\"a\": 18446744073709551616, \"b\": -9223372036854775809, \
                    \"c\": 115792089237316195423570985008687907853269984665640564039457584007913129639935, \"d\": 1e22}";
    let printed = integers.replace("1e22", "1e+22");
    assert!(
        prompt(&tools(&format!(", \"parameters\": {integers}"), "")).contains(&format!("\"parameters\": {printed}"))
    );
    assert!(prompt(&called(integers)).contains(&printed));

    // Truth values as numbers and words.
    for (value, is_true) in [("0", false), ("\"No\"", false), ("1", true), ("\"on\"", true)] {
        let template = "\"chat_template\": \"{{ add_generation_prompt }}\"";
        let printed = prompt(&format!("{user}, {template}, \"add_generation_prompt\": {value}"));
        assert_eq!(printed, if is_true { "True" } else { "False" }, "{value}");
    }
    for field in ["add_generation_prompt", "continue_final_message"] {
        let (status, answer) = render(&format!("{user}, \"{field}\": \"perhaps\""));
        assert!(
            status == 422 && answer["error"].as_str().expect("a text").contains("expected true or false"),
            "{status} {answer}"
        );
    }

    // Fields that the engine omits may hold anything.
    let deep = "[".repeat(1000) + &"]".repeat(1000);
    for odd in [deep.as_str(), "\"\\ud800\""] {
        let extra = format!(", \"x\": {odd}");
        let message = format!("\"messages\": [{{\"role\": \"user\", \"content\": \"one\"{extra}}}]");
        assert_eq!(prompt(&message), prompt(user));
        let part = |extra: &str| {
            format!(
                "\"messages\": [{{\"role\": \"user\", \"content\": [{{\"type\": \"text\", \"text\": \"one\"{extra}}}]}}]"
            )
        };
        assert_eq!(prompt(&part(&extra)), prompt(&part("")));
        assert_eq!(prompt(&tools(&extra, &extra)), prompt(&tools("", "")));
        let shown = render(&part(&extra)).1["messages"].to_string();
        assert!(shown.contains("(nested too deeply)") || shown.contains('\u{fffd}'), "{shown}");
    }
    // The error names the part that a prompt would print.
    for (fields, why) in [
        (tools(&format!(", \"parameters\": {{\"a\": {deep}}}"), ""), "nested more than 190 deep"),
        (called(&format!("{{\"a\": {deep}}}")), "nested more than 190 deep"),
        (called("{\"a\": \"\\ud800\"}"), "lone surrogate"),
    ] {
        let (status, answer) = render(&fields);
        assert!(status == 400 && answer["error"].as_str().expect("a text").contains(why), "{status} {answer}");
    }
}

#[test]
fn a_family_whose_prompts_are_made_by_code_is_named() {
    let models = tempfile::tempdir().expect("a folder");
    let service = service(models.path());
    fs::write(
        models.path().join("vllm-model/config.json"),
        "{\"architectures\": [\"KimiK3ForConditionalGeneration\"]}",
    )
    .expect("written");
    let _engine = Engine::registered(&service, json!("v"), 0, &json!({ "model_name": "vllm-model" }));
    let (status, error) = service.post("/score_chat_completions", &request("vllm-model"));
    assert!(status == 501 && error["error"].as_str().expect("a text").contains("Kimi-K3"), "{status} {error}");
}

#[test]
fn a_chat_is_rendered_for_the_registered_engine() {
    let models = tempfile::tempdir().expect("a folder");
    let service = service(models.path());
    let render = |model: &str| {
        let (status, answer) = service.post("/render", &request(model));
        assert_eq!(status, 200, "{answer}");
        answer
    };
    assert_eq!(render("sglang-model")["engine"], json!("vllm"), "no engine is registered");
    let engines = ["vllm", "sglang", "trtllm"].map(|engine| {
        let model = format!("{engine}-model");
        Engine::registered(&service, json!(engine), 0, &json!({ "model_name": model, "engine": engine }))
    });
    let [vllm, sglang, trtllm] =
        engines.map(|engine| render(&format!("{}-model", engine.instance.as_str().expect("a name"))));

    let call = "{\"a\": 1, \"b\": \"é\"}";
    let tool = |rest: &str| "[{\"type\": \"function\", \"function\": {".to_owned() + rest;
    let of_vllm = tool("\"name\": \"f\", \"description\": null, \"parameters\": {}}}]");
    let of_sglang = tool("\"name\": \"f\", \"parameters\": {}, \"description\": null}, \"defer_loading\": null}]");
    let of_trtllm = tool("\"name\": \"f\", \"description\": null, \"parameters\": {}, \"strict\": null}}]");
    for (answer, engine, format, prompt) in [
        (vllm, "vllm", "openai", format!("{of_vllm}\nuser: <one><two>assistant: {call}tool: three")),
        (sglang, "sglang", "openai", format!("{of_sglang}\nuser: <one><two>assistant: {call}tool: three")),
        (trtllm, "trtllm", "string", format!("{of_trtllm}\nuser: one\ntwoassistant: {call}tool: three")),
    ] {
        assert_eq!((&answer["engine"], &answer["content_format"]), (&json!(engine), &json!(format)), "{answer}");
        assert_eq!(answer["prompt"], json!(prompt), "{engine}");
        let (_, tokenized) = service.post("/tokenize", &request(&format!("{engine}-model")));
        assert_eq!(answer["count"], tokenized["count"]);
    }
}

#[test]
fn a_text_is_tokenized_for_the_registered_engine() {
    let models = tempfile::tempdir().expect("a folder");
    let service = service(models.path());
    // vLLM reads the vocabulary, and finds no special tokens in texts.
    for (engine, status, code) in [("vllm", 501, Code::Unimplemented), ("sglang", 200, Code::Ok)] {
        let model = format!("{engine}-model");
        for name in ["tokenizer.model.v3", "consolidated.safetensors"] {
            fs::write(models.path().join(&model).join(name), "").expect("written");
        }
        let _engine = Engine::registered(&service, json!(engine), 0, &json!({ "model_name": model, "engine": engine }));
        let tokenize = |text: &str| service.post("/tokenize", &json!({ "model": model, "prompt": text })).0;
        assert_eq!((tokenize("one"), tokenize("one [SEP]")), (200, status), "{engine}");
        let (model_name, prompt) = (model.clone(), Some("one [SEP]".to_owned()));
        let request = GetPodScoresRequest { model_name, prompt, ..GetPodScoresRequest::default() };
        let answered = service.block_on(IndexerServiceClient::new(service.channel()).get_pod_scores(request));
        assert_eq!(answered.map_or_else(|error| error.code(), |_| Code::Ok), code, "{engine}");
    }
}

#[test]
fn blocks_before_an_image_are_scored() {
    let models = tempfile::tempdir().expect("a folder");
    let service = service(models.path());
    let engine = Engine::registered(&service, json!("v"), 0, &json!({ "model_name": "vllm-model", "engine": "vllm" }));
    let chat = |last: Value| {
        let parts = json!([{ "type": "text", "text": "look here" }, last]);
        let messages = json!([
            { "role": "system", "content": "one two three four five six seven [SEP] eight nine [SEP]" },
            { "role": "user", "content": parts },
        ]);
        json!({ "model": "vllm-model", "messages": messages })
    };
    let image = chat(json!({ "type": "image_url", "image_url": { "url": "data:x" } }));
    let text = chat(json!({ "type": "text", "text": "a text" }));
    let (status, known) = service.post("/tokenize", &image);
    let (_, whole) = service.post("/tokenize", &text);
    let tokens = |answer: &Value| -> Vec<u32> { serde_json::from_value(answer["tokens"].clone()).expect("tokens") };
    let (known_tokens, count) = (tokens(&known), known["count"].as_u64().expect("a number"));
    let blocks = count / u64::from(BLOCK_TOKENS);
    assert!(status == 200 && blocks >= 2 && tokens(&whole).starts_with(&known_tokens), "{known}");
    let reason = known["partial"]["reason"].clone();
    assert!(reason.as_str().expect("a text").contains("\"image_url\""), "{reason}");
    assert_eq!(known["partial"], json!({ "from_token": count, "reason": reason }));
    assert_eq!((whole.get("partial"), tokens(&whole).len() as u64 > count), (None, true));

    let names: Vec<u64> = (1..=blocks).collect();
    let stored = BlockStored {
        token_ids: TokenIds::Plain(known_tokens[..(blocks * u64::from(BLOCK_TOKENS)) as usize].to_vec()),
        ..store(None, &names)
    };
    engine.say(&service, 0, &[EngineEvent::Stored(stored)]);
    let partial = json!({ "from_block": blocks, "from_token": count, "reason": reason });
    let with = |chat: &Value, more: Value| {
        let mut chat = chat.clone();
        chat.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        chat
    };
    let (status, scores) = service.post("/score_chat_completions", &with(&image, json!({ "detail": true })));
    assert_eq!(
        (status, &scores["partial"], &scores["pods"]["v"]["held_blocks"]),
        (200, &partial, &json!(blocks)),
        "{scores}"
    );
    assert_eq!(service.post("/score_chat_completions", &image).1, json!({ "v": blocks as f64 }));
    let header = |chat: &Value| service.header("/score_chat_completions", chat, "flash-indexer-partial");
    let answered: Value = serde_json::from_str(&header(&image).expect("a header")).expect("JSON");
    assert_eq!((answered, header(&text)), (partial.clone(), None));
    let (status, rendered) = service.post("/render", &image);
    assert_eq!((status, &rendered["partial"]), (200, &known["partial"]), "{rendered}");
    let (status, predicted) = service.post("/predict", &with(&image, json!({ "pod": "v" })));
    assert_eq!((status, &predicted["blocks"], &predicted["partial"]), (200, &json!(blocks), &partial), "{predicted}");

    let mut client = IndexerServiceClient::new(service.channel());
    let mut over_grpc = |chat: &Value| {
        let (model_name, chat_json) = ("vllm-model".to_owned(), chat.to_string());
        let request = GetPodScoresRequest { model_name, chat_json, ..GetPodScoresRequest::default() };
        service.block_on(client.get_pod_scores(request)).expect("scores").into_inner()
    };
    let scores = over_grpc(&image);
    let reason = reason.as_str().expect("a text").to_owned();
    let expected = PartialPrompt { from_block: blocks as u32, from_token: count as u32, reason };
    assert_eq!(
        (scores.prompt_blocks, scores.partial, scores.scores[0].held_blocks),
        (blocks as u32, Some(expected), blocks as u32)
    );
    assert_eq!(over_grpc(&text).partial, None);
}
