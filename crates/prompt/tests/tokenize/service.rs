//! The client of a tokenizer service, against a service over real sockets.

use std::path::Path;
use std::time::Duration;

use chat_template::ChatRequest;
use flash_indexer_prompt::tokenize::{
    FailureReason, Prompt, PromptOptions, ServiceAddress, SpecialTokens, TokenizeError, TokenizerPool, TokenizerService,
};
use flash_indexer_test_support::wait_for;
use flash_indexer_traces::{Root, TraceParent, Tracer};
use opentelemetry_sdk::trace::SdkTracerProvider;
use serde_json::{Value, json};
use tempfile::tempdir;

use crate::service_stub::{Running, Stub};
use crate::support::{DEADLINE, forgetful, submit, text};

fn pool_with(address: &ServiceAddress, deadline: Duration) -> TokenizerPool {
    let service = TokenizerService::new(address, deadline).expect("a client");
    TokenizerPool::start(vec![Box::new(service)], &forgetful()).expect("threads")
}

fn unix(folder: &Path) -> ServiceAddress {
    format!("unix:{}", folder.join("tokenizer.sock").display()).parse().expect("an address")
}

fn ids(pool: &TokenizerPool, prompt: &str) -> Result<Vec<u32>, TokenizeError> {
    pool.tokenize("model", text(prompt)).map(|tokenized| tokenized.ids)
}

#[test]
fn addresses_are_read_in_their_common_forms() {
    let read = |text: &str| text.parse::<ServiceAddress>().map(|address| address.to_string());
    for (written, meant) in [
        ("unix:/run/t.sock", "unix:/run/t.sock"),
        ("unix:///run/t.sock", "unix:/run/t.sock"),
        ("tcp://localhost:50051", "tcp://localhost:50051"),
        ("http://10.0.0.1:50051/", "tcp://10.0.0.1:50051"),
        ("[::1]:50051", "tcp://[::1]:50051"),
    ] {
        assert_eq!(read(written).as_deref(), Ok(meant));
    }
    for wrong in
        ["", "unix:", "localhost", "tcp://:50051", "tcp://host:port", "https://host:1", "host:70000", "tcp://a/b:1"]
    {
        let error = read(wrong).expect_err(wrong);
        assert!(error.to_string().contains("expected unix:/path"), "{error}");
    }
}

#[test]
fn prompts_are_tokenized_over_a_unix_socket_and_over_tcp() {
    let folder = tempdir().expect("a directory");
    let stub = Stub::default();
    let over_unix = Running::start(&stub, &unix(folder.path()));
    let over_tcp = Running::start(&stub, &"127.0.0.1:0".parse().expect("an address"));
    for running in [&over_unix, &over_tcp] {
        let pool = pool_with(&running.address, DEADLINE);
        let tokenized = pool.tokenize("model", text("one two")).expect("tokens");
        let error = pool.decode("model", None, (&tokenized.ids, 0)).expect_err("the protocol has no text of tokens");
        assert!(
            error.reason() == FailureReason::Unsupported && error.to_string().contains("--tokenizer-dir"),
            "{error}"
        );
        assert_eq!(tokenized.ids, [0, 3, 4]);
        assert_eq!(&*tokenized.source, format!("tokenizer service {}", running.address));
        let with = |special_tokens, keep_last| {
            let options = PromptOptions { special_tokens, keep_last, ..PromptOptions::default() };
            pool.tokenize_with("model", text("one two three"), options).expect("tokens").ids
        };
        assert_eq!(with(SpecialTokens::Omitted, None), [3, 4, 5]);
        assert_eq!(with(SpecialTokens::Omitted, Some(2)), [4, 5]);
        assert_eq!(with(SpecialTokens::AsEngines, Some(2)), [0, 5], "as a local tokenizer");
        assert_eq!(with(SpecialTokens::AsEngines, Some(0)), Vec::<u32>::new());
        assert_eq!(pool.statistics().loads, 1);
    }
    assert_eq!(stub.readied(), ["model", "model"]);
}

#[test]
fn a_call_continues_the_trace_of_its_request() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    let stub = Stub::default();
    let running = Running::start(&stub, &"127.0.0.1:0".parse().expect("an address"));
    let pool = pool_with(&running.address, DEADLINE);
    ids(&pool, "one").expect("tokens");
    let tracer = Tracer::new(&SdkTracerProvider::builder().build());
    let parent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let caller = TraceParent::read(|name| (name == "traceparent").then_some(parent.as_str()).into_iter());
    let request = tracer.request(&caller, Root::Never, None).expect("its caller is sampled");
    {
        let _request = request.attach();
        ids(&pool, "two").expect("tokens");
    }
    ids(&pool, "three").expect("tokens");
    let [before, Some(traced), after] = &stub.trace_parents()[..] else { panic!("{:?}", stub.trace_parents()) };
    assert_eq!((before, after), (&None, &None), "requests that are not traced");
    let (trace, span) = traced.strip_prefix("00-").and_then(|it| it.strip_suffix("-01")).expect("sampled").split_at(32);
    assert_eq!(trace, TRACE);
    assert_ne!(span, "-00f067aa0ba902b7", "the call has a span of its own");
}

#[test]
fn chats_are_rendered_there_with_all_that_they_say() {
    let folder = tempdir().expect("a directory");
    let stub = Stub::default();
    let running = Running::start(&stub, &unix(folder.path()));
    let pool = pool_with(&running.address, DEADLINE);
    let chat = |request: Value| {
        let request: ChatRequest = serde_json::from_value(request).expect("a chat");
        Prompt::Chat(Box::new(request.into()))
    };
    let prompt = chat(json!({
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "image_url", "image_url": {"url": "http://x/y"}},
                                         {"type": "input_audio", "input_audio": {"data": "AA"}}]},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]},
            {"role": "tool", "content": "two", "tool_call_id": "1"},
        ],
        "tools": [{"type": "function"}], "documents": [{"title": "t"}], "chat_template": "{{ x }}",
        "chat_template_kwargs": {"enable_thinking": false}, "truncate_prompt_tokens": 2,
    }));
    assert_eq!(pool.tokenize("model", prompt).expect("tokens").ids, [5, 6], "the last two of four");
    let request = stub.last_chat();
    assert_eq!(request.model_name, "model");
    assert_eq!((request.add_generation_prompt, request.continue_final_message), (true, false));
    assert_eq!(request.tools_json.as_deref(), Some(r#"[{"type":"function"}]"#));
    assert_eq!(request.chat_template.as_deref(), Some("{{ x }}"));
    let kwargs: Value = serde_json::from_str(&request.chat_template_kwargs.expect("variables")).expect("JSON");
    assert_eq!(kwargs, json!({"enable_thinking": false, "documents": [{"title": "t"}]}));
    let [user, assistant, tool] = &request.messages[..] else { panic!("three messages") };
    assert_eq!((user.role.as_str(), user.content.as_deref()), ("user", None));
    let [words, image, sound] = &user.content_parts[..] else { panic!("three parts") };
    assert_eq!((words.r#type.as_str(), words.text.as_deref()), ("text", Some("one")));
    assert_eq!(image.image_url.as_ref().map(|image| image.url.as_str()), Some("http://x/y"));
    assert_eq!(sound.other_json.as_deref(), Some(r#"{"input_audio":{"data":"AA"}}"#));
    assert_eq!(
        (assistant.content.as_deref(), assistant.other_json.as_deref()),
        (None, Some(r#"{"tool_calls":[{"id":"1"}]}"#))
    );
    assert_eq!((tool.content.as_deref(), tool.other_json.as_deref()), (Some("two"), Some(r#"{"tool_call_id":"1"}"#)));

    let continued =
        chat(json!({"messages": [{"role": "assistant", "content": "one"}], "continue_final_message": true}));
    pool.tokenize("model", continued).expect("tokens");
    let request = stub.last_chat();
    assert_eq!((request.add_generation_prompt, request.continue_final_message), (false, true));
    assert_eq!((request.tools_json, request.chat_template, request.chat_template_kwargs), (None, None, None));

    let more = PromptOptions { special_tokens: SpecialTokens::Added, ..PromptOptions::default() };
    let error = pool.tokenize_with("model", chat(json!({"messages": []})), more).expect_err("it cannot");
    assert!(error.to_string().contains("does not add special tokens"), "{error}");
}

#[test]
fn a_service_that_is_not_there_is_named() {
    let folder = tempdir().expect("a directory");
    let address = unix(folder.path());
    let pool = pool_with(&address, DEADLINE);
    // On the first attempt, during the pause, and on the next attempt.
    for _ in 0..3 {
        let error = ids(&pool, "one").expect_err("no service listens");
        assert_eq!(error.reason(), FailureReason::LoadFailed);
        let message = error.to_string();
        assert!(message.contains(&format!("{address} is unreachable")), "{message}");
        assert!(message.contains("No such file"), "{message}");
    }
    let _running = Running::start(&Stub::default(), &address);
    wait_for("tokens", DEADLINE, || ids(&pool, "one").ok().filter(|ids| *ids == [0, 3]));
}

#[test]
fn a_service_s_message_is_in_the_error() {
    let folder = tempdir().expect("a directory");
    let running = Running::start(&Stub::default(), &unix(folder.path()));
    let pool = pool_with(&running.address, DEADLINE);
    let error = pool.tokenize("unknown", text("one")).expect_err("it does not have that model");
    assert_eq!(error.reason(), FailureReason::UnknownModel);
    assert!(error.to_string().contains("no such model: unknown"), "{error}");

    for (prompt, says) in
        [("refuse", "these words I refuse"), ("crash", "a fault of the service"), ("lost", "not implemented")]
    {
        let error = ids(&pool, prompt).expect_err(prompt);
        assert_eq!(error.reason(), FailureReason::ServiceRefused, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
    assert_eq!(ids(&pool, "one").expect("it goes on"), [0, 3]);
}

#[test]
fn messages_are_bounded_both_ways() {
    let folder = tempdir().expect("a directory");
    let running = Running::start(&Stub::default(), &unix(folder.path()));
    let pool = pool_with(&running.address, DEADLINE);
    for prompt in ["flood", &"x".repeat(65 << 20)] {
        let error = ids(&pool, prompt).expect_err("too large");
        assert!(error.to_string().contains("exceeds 67108864 bytes"), "{error}");
    }
    assert_eq!(ids(&pool, "one").expect("it goes on"), [0, 3]);
}

#[test]
fn a_slow_service_costs_a_deadline_and_no_more() {
    let folder = tempdir().expect("a directory");
    let running = Running::start(&Stub::default(), &unix(folder.path()));
    let pool = pool_with(&running.address, Duration::from_millis(300));
    let error = wait_for("a prompt that is late", DEADLINE, || match ids(&pool, "slow") {
        Err(error) if error.reason() == FailureReason::ServiceTimedOut => Some(error),
        // A machine that stands still may miss the deadline earlier.
        _ => None,
    });
    assert!(error.to_string().contains("did not respond within 300ms"), "{error}");
    wait_for("tokens", DEADLINE, || ids(&pool, "one").ok());
}

#[test]
fn a_service_may_die_and_come_back() {
    let folder = tempdir().expect("a directory");
    let stub = Stub::default();
    for address in [unix(folder.path()), "127.0.0.1:0".parse().expect("an address")] {
        let running = Running::start(&stub, &address);
        let address = running.address.clone();
        let pool = pool_with(&address, DEADLINE);
        assert_eq!(ids(&pool, "one").expect("tokens"), [0, 3]);

        running.stop();
        let running = Running::start(&stub, &address);
        assert_eq!(ids(&pool, "one two").expect("no call was made while it was down"), [0, 3, 4]);

        running.stop();
        let error = wait_for("an error", DEADLINE, || ids(&pool, "one").err());
        assert_eq!(error.reason(), FailureReason::ServiceUnreachable, "{error}");
        stub.forget_models();
        let _running = Running::start(&stub, &address);
        wait_for("tokens", DEADLINE, || ids(&pool, "one").ok());
        assert_eq!(pool.statistics().loads, 1, "the model was made ready again, not loaded");
    }
}

#[test]
fn a_pool_with_a_service_may_be_dropped_inside_a_runtime() {
    let folder = tempdir().expect("a directory");
    let running = Running::start(&Stub::default(), &unix(folder.path()));
    let pool = pool_with(&running.address, DEADLINE);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        assert!(submit(&pool, text("one"), |_| {}).is_ok());
        drop(pool);
        drop(TokenizerService::new(&running.address, DEADLINE).expect("a client"));
    });
}
