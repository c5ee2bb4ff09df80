//! The client against a service with a simulated engine.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::num::NonZeroUsize;
use std::time::Duration;

use flash_indexer_client::{
    BlockSize, Client, ClientError, DoneRequest, Events, ExplainRequest, HashQuery, HashVariant, InstanceId, LocalHash,
    ModelScope, PodScores, Prompt, PromptOptions, QueryResponse, RegisterRequest, TokenQuery, TokenWindow, Trust,
    UncheckedInstanceId, UnregisterRequest, local_hashes,
};
use flash_indexer_core::SequenceHash;
use flash_indexer_server::{Server, ServerOptions};
use flash_indexer_sim::{Publisher, PublisherOptions};
use flash_indexer_wire::{BlockStored, Encoding, EngineEvent, TokenIds, encode_batch};
use serde_json::{Value, json};

const BLOCK_TOKENS: u32 = 4;
const PATIENCE: Duration = Duration::from_secs(60);

/// A service that has the first blocks of a prompt for the engine `gpu-1`.
struct Fleet {
    server: Server,
    client: Client,
    _engine: Publisher,
}

impl Fleet {
    /// The engine holds `blocks` blocks of [`tokens`].
    async fn start(blocks: u32) -> Self {
        let server = Server::start(ServerOptions { port: 0, ..ServerOptions::default() }).await.expect("a server");
        let client = Client::new(&server.url()).expect("a URL").with_deadline(PATIENCE);
        let engine = Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
        let stored = EngineEvent::Stored(BlockStored {
            block_hashes: (1..=u64::from(blocks)).map(SequenceHash).collect(),
            token_ids: TokenIds::Plain(tokens(blocks)),
            block_size: BLOCK_TOKENS,
            ..BlockStored::default()
        });
        engine.keep(0, &encode_batch(1.0, &[stored], None, Encoding::Map));
        let rank = RegisterRequest {
            endpoint: Some(engine.endpoint().to_owned()),
            replay_endpoint: Some(engine.replay_endpoint().to_owned()),
            ..rank("gpu-1")
        };
        client.register(&rank).await.expect("a registration");
        for attempt in 0.. {
            let answer = client.query(&query(tokens(blocks))).await.expect("an answer");
            if answer.instances.get("gpu-1").is_some_and(|held| held.trust == Trust::Exact) {
                break;
            }
            assert!(attempt < 6_000, "the engine's events are indexed: {answer:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Self { server, client, _engine: engine }
    }
}

fn rank(instance: &str) -> RegisterRequest {
    RegisterRequest {
        instance_id: given(instance),
        endpoint: None,
        events: None,
        cache_blocks: None,
        kind: None,
        shared_caches: None,
        scope: scope(),
        block_size: Some(BLOCK_TOKENS),
        dp_rank: None,
        replay_endpoint: None,
        lora_name: None,
        engine: None,
        removal: None,
        extra_keys: None,
    }
}

fn given(instance: &str) -> UncheckedInstanceId {
    InstanceId::parse(instance).expect("an id").into()
}

fn scope() -> ModelScope {
    ModelScope::of("m", None)
}

fn tokens(blocks: u32) -> Vec<u32> {
    (0..blocks * BLOCK_TOKENS).collect()
}

fn query(token_ids: Vec<u32>) -> TokenQuery {
    TokenQuery { token_ids, scope: scope(), ..TokenQuery::default() }
}

fn matched(answer: &QueryResponse) -> u64 {
    answer.instances.get("gpu-1").map_or(0, |held| held.longest_matched)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_by_tokens_or_hashes_has_the_same_matches() {
    let Fleet { server, client, _engine } = Fleet::start(100).await;
    let prompt = [tokens(50), vec![900, 901, 902, 903]].concat();
    let expected = client.query(&query(prompt.clone())).await.expect("an answer");
    assert_eq!(matched(&expected), 200);
    let size = BlockSize::new(BLOCK_TOKENS).expect("above zero");
    let block_hashes = local_hashes(HashVariant::new(None, None), &prompt, size, TokenWindow::Block);
    let by_hash = HashQuery { block_hashes, scope: scope(), ..HashQuery::default() };
    assert_eq!(client.query_by_hash(&by_hash).await.expect("an answer").scores, expected.scores);
    for (held, other) in [
        (0, query(vec![7; 8])),
        (0, TokenQuery { lora_name: Some("other".to_owned()), ..query(prompt.clone()) }),
        (0, TokenQuery { cache_salt: Some("a&b".to_owned()), ..query(prompt.clone()) }),
        (0, TokenQuery { min_score: Some(201), ..query(prompt.clone()) }),
        (200, TokenQuery { top_k: NonZeroUsize::new(1), ..query(prompt) }),
    ] {
        assert_eq!(matched(&client.query(&other).await.expect("an answer")), held, "{other:?}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_sends_only_what_is_new_and_answers_for_the_whole() {
    let Fleet { server, client, _engine } = Fleet::start(100).await;
    let mut turns = client.conversation(scope());
    for blocks in [50, 70, 100, 120] {
        let whole = client.query(&query(tokens(blocks))).await.expect("an answer");
        assert_eq!(turns.query(&tokens(blocks)).await.expect("an answer"), whole);
        assert_eq!(Some(turns.covered_tokens() as u64), whole.cursor_tokens);
    }
    assert!(turns.covered_tokens() > 300);
    let other = [tokens(39), vec![0; 300]].concat();
    assert_eq!(matched(&turns.query(&other).await.expect("an answer")), 156);

    let unknown =
        TokenQuery { after: Some(serde_json::from_value(json!(12345)).expect("a hash")), ..query(vec![1; 8]) };
    let error = client.query(&unknown).await.expect_err("no engine holds it");
    assert!(error.is_unknown_cursor(), "{error}");
    assert_eq!(turns.query(&tokens(100)).await.map(|answer| matched(&answer)).expect("an answer"), 400);
    let request = UnregisterRequest { instance_id: given("gpu-1"), scope: scope(), dp_rank: None };
    client.unregister(&request).await.expect("it is registered");
    client.register(&RegisterRequest { events: Some(Events::None), ..rank("gpu-2") }).await.expect("a registration");
    let cold = turns.query(&tokens(100)).await.expect("a second request with the whole prompt");
    assert_eq!(matched(&cold), 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn scores_and_picks_count_what_is_held_predicted_and_in_flight() {
    let Fleet { server, client, _engine } = Fleet::start(100).await;
    let prompt = [tokens(10), vec![500; 40]].concat();
    let prompt = Prompt::Tokens("m", &prompt);
    let gpu_1 = InstanceId::parse("gpu-1").expect("an id");
    let options = PromptOptions { ttl_ms: Some(60_000), ..PromptOptions::default() };
    assert_eq!(client.predict(&gpu_1, prompt, &options).await.expect("an answer").blocks, 20);
    let PodScores::Detailed { pods, .. } = client.score(prompt, &PromptOptions::default()).await.expect("an answer")
    else {
        panic!("scores have details")
    };
    assert_eq!((pods["gpu-1"].held_blocks, pods["gpu-1"].predicted_blocks), (10, 10));
    let others = PromptOptions { pods: vec![given("another")], ..PromptOptions::default() };
    let PodScores::Detailed { pods, .. } = client.score(prompt, &others).await.expect("an answer") else {
        panic!("scores have details")
    };
    assert!(pods.is_empty());

    client.register(&RegisterRequest { events: Some(Events::None), ..rank("gpu-2") }).await.expect("a registration");
    let named = PromptOptions { request_id: Some("r".to_owned()), pick_seed: Some(1), ..PromptOptions::default() };
    let picked = client.pick(prompt, &named).await.expect("an answer");
    let done = DoneRequest { request_id: "r".to_owned(), scope: scope(), ..DoneRequest::default() };
    assert_eq!((picked.blocks, picked.seed), (20, 1));
    client.done(&done).await.expect("it was picked");
    let explained = ExplainRequest { token_ids: Some(tokens(101)), scope: scope(), ..ExplainRequest::default() };
    let explanation = client.explain(&explained).await.expect("an answer");
    assert!(explanation.ranks.iter().any(|rank| rank.gpu == 400), "{explanation:?}");
    assert_eq!(client.workers().await.expect("an answer").len(), 2);
    client.ready().await.expect("it is ready");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_request_says_why() {
    let Fleet { server, client, _engine } = Fleet::start(1).await;
    let error =
        client.register(&RegisterRequest { block_size: Some(5), ..rank("gpu-1") }).await.expect_err("a conflict");
    assert!(matches!(error, ClientError::Refused { .. }), "{error}");
    let body = json!({ "model": "m", "messages": [{ "role": "user", "content": "hi" }] });
    for error in [
        client.score(Prompt::Text("m", "a text"), &PromptOptions::default()).await.map(drop),
        client.score(Prompt::OpenAi(&body), &PromptOptions::default()).await.map(drop),
        client.tokenize(Prompt::Text("m", "a text")).await.map(drop),
    ] {
        assert!(
            matches!(error, Err(ClientError::Refused { status: 501, .. })),
            "no tokenizer is configured: {error:?}"
        );
    }
    let list = json!([]);
    let error = client.score(Prompt::OpenAi(&list), &PromptOptions::default()).await.expect_err("a list is no chat");
    assert!(matches!(error, ClientError::NoChat), "{error}");
    for url in ["", "localhost:8090", "ftp://h", "http://"] {
        assert!(matches!(Client::new(url), Err(ClientError::Url { .. })), "{url}");
    }
    server.stop().await;
}

/// A server that answers each connection with the next of these responses, and then with none.
fn scripted(responses: &'static [&'static str]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for (at, connection) in listener.incoming().enumerate() {
            let mut connection = connection.expect("a connection");
            match responses.get(at) {
                Some(&"") => {}
                Some(response) => {
                    let _ = connection.read(&mut [0; 4096]);
                    let _ = connection.write_all(response.as_bytes());
                }
                None => silent.push(connection),
            }
        }
    });
    url
}

const BUSY: &str = "HTTP/1.1 503 x\r\ncontent-length: 16\r\nconnection: close\r\n\r\n{\"error\":\"busy\"}";
const OK: &str = "HTTP/1.1 200 x\r\ncontent-length: 2\r\nconnection: close\r\n\r\n[]";

#[tokio::test]
async fn attempts_are_repeated_within_the_deadline_and_never_twice_if_they_may_have_had_an_effect() {
    let client = |responses| Client::new(&scripted(responses)).expect("a URL").with_deadline(PATIENCE);
    assert_eq!(client(&[BUSY, "", OK]).workers().await.expect("the third attempt").len(), 0);
    let error = client(&[BUSY, BUSY, BUSY, OK]).workers().await.expect_err("three attempts");
    assert!(matches!(&error, ClientError::Refused { status: 503, message } if message == "busy"), "{error}");
    let tokens = [1, 2, 3, 4];
    let pick = client(&["", OK]);
    let error = pick.pick(Prompt::Tokens("m", &tokens), &PromptOptions::default()).await.expect_err("one attempt");
    assert!(matches!(error, ClientError::Connection { .. }), "{error}");
    let silent = client(&[]).with_deadline(Duration::from_millis(50));
    let error = silent.workers().await.expect_err("no answer");
    assert!(matches!(error, ClientError::Deadline { path: "/workers", .. }), "{error}");
}

#[test]
fn local_hashes_match_the_vectors_of_all_clients() {
    let text = std::fs::read_to_string("../../clients/testdata/local-hashes.json").expect("the vectors");
    let vectors: Value = serde_json::from_str(&text).expect("JSON");
    let cases = vectors["cases"].as_array().expect("a list");
    assert!(cases.len() >= 40, "only {} cases", cases.len());
    for case in cases {
        let number = |name: &str| u32::try_from(case[name].as_u64().expect("a number")).expect("32 bits");
        let tokens: Vec<u32> =
            (0..number("tokens")).map(|i| number("first_token").wrapping_add(i.wrapping_mul(number("step")))).collect();
        let variant = HashVariant::new(case["lora_name"].as_str(), case["cache_salt"].as_str());
        let size = BlockSize::new(number("block_size")).expect("above zero");
        let hashes = local_hashes(variant, &tokens, size, TokenWindow::Block);
        let expected = case["hashes"].as_array().expect("a list").iter();
        let expected: Vec<_> =
            expected.map(|hash| LocalHash(hash.as_str().expect("text").parse().expect("64 bits"))).collect();
        assert_eq!(hashes, expected, "{case}");
    }
}
