//! Traces of requests, as a collector receives them.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use flash_indexer_server::{ClientFiles, IndexerOptions, OtlpOptions, ServerOptions, TokenizationOptions};
use flash_indexer_test_support::{Authority, RedisNode, redis_server, testdata, wait_for};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tonic::{Code, Request};
use tracing::Level;

use crate::grpc::Sent;
use crate::support::fake_collector::{Answers, FakeCollector, attributes, hex};
use crate::support::logs::{LogEvent, capture, logged};
use crate::support::proto::QueryRequest;
use crate::support::proto::router_service_client::RouterServiceClient;
use crate::support::{Engine, PATIENCE, Service, replica_at, stored, tokens};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A context in which a caller's span is sampled.
fn sampled(trace_id: &str) -> String {
    format!("00-{trace_id}-{PARENT}-01")
}

fn options(collector: &FakeCollector, ratio: &str) -> OtlpOptions {
    let options = OtlpOptions::to(collector.url().parse().expect("a URL"));
    OtlpOptions { sample_ratio: ratio.parse().expect("a ratio"), ..options }
}

/// A service that traces, with gRPC.
fn service(traces: OtlpOptions) -> Service {
    Service::start_with(ServerOptions { traces: Some(traces), grpc_port: Some(0), ..ServerOptions::default() })
}

/// A query with these headers.
fn post(service: &Service, path: &str, headers: &[(&str, &str)], body: &Value) -> (u16, Value) {
    let headers: Vec<_> = headers.iter().copied().chain([("content-type", "application/json")]).collect();
    service.post_bytes(path, &headers, body.to_string().as_bytes())
}

fn query(blocks: &[u64]) -> Value {
    json!({ "model_name": "m", "token_ids": tokens(blocks) })
}

/// A trace id that ends with a number.
fn trace_id(number: u8) -> String {
    format!("4bf92f3577b34da6a3ce929d0e0e47{number:02x}")
}

#[test]
fn a_query_continues_the_trace_of_its_caller_and_has_a_span_for_each_stage() {
    let collector = FakeCollector::start();
    let service = service(options(&collector, "0"));
    let engine = Engine::registered(&service, json!("one"), 0, &json!({ "tenant_id": "t" }));
    engine.say(&service, 0, &[stored(None, &[1, 2])]);
    let headers = [("traceparent", sampled(TRACE)), ("tracestate", "vendor=a:b".to_owned())];
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let body = json!({ "model_name": "m", "tenant_id": "t", "token_ids": tokens(&[1, 2, 3]) });
    assert_eq!(post(&service, "/query", &headers, &body).0, 200);

    let trace = collector.wait_for_trace(TRACE);
    assert_eq!((hex(&trace.root.parent_span_id).as_str(), trace.root.kind()), (PARENT, SpanKind::Server));
    assert_eq!((trace.root.name.as_str(), trace.root.trace_state.as_str()), ("POST /query", "vendor=a:b"));
    let expected = [
        ("http.request.method", json!("POST")),
        ("http.route", json!("/query")),
        ("url.path", json!("/query")),
        ("url.scheme", json!("http")),
        ("http.response.status_code", json!(200)),
        ("gen_ai.request.model", json!("m")),
        ("flash_indexer.tenant", json!("t")),
        ("flash_indexer.prompt.blocks", json!(3)),
        ("flash_indexer.matched.blocks", json!(2)),
    ];
    // All of them: no attribute has tokens or text.
    assert_eq!(trace.attributes(), expected.map(|(name, value)| (name.to_owned(), value)).into());
    assert_eq!(trace.stage_names(), ["parse", "hash", "lookup", "answer"]);
    for stage in &trace.stages {
        assert_eq!(
            (stage.parent_span_id.as_slice(), stage.kind()),
            (trace.root.span_id.as_slice(), SpanKind::Internal)
        );
        assert_eq!(stage.trace_state, "vendor=a:b");
        let (begin, end) = (stage.start_time_unix_nano, stage.end_time_unix_nano);
        assert!(trace.root.start_time_unix_nano <= begin && begin <= end && end <= trace.root.end_time_unix_nano);
    }
    assert_eq!(
        attributes(&trace.stage("hash").attributes),
        [("flash_indexer.prompt.tokens".to_owned(), json!(12))].into()
    );

    let resource = collector.resource();
    assert_eq!((&resource["service.name"], &resource["service.version"]), (&json!("flash-indexer"), &json!("0.1.0")));
    assert!(resource["service.instance.id"].as_str().is_some_and(|id| id.len() >= 16), "{resource:?}");
}

#[test]
fn wrong_requests_are_no_errors_of_the_service_and_have_their_status() {
    let collector = FakeCollector::start();
    let service = service(options(&collector, "0"));
    let status_of = |number: u8, path: &str, body: &Value| {
        let (trace_id, answered) =
            (trace_id(number), post(&service, path, &[("traceparent", &sampled(&trace_id(number)))], body).0);
        let trace = collector.wait_for_trace(&trace_id);
        let attributes = trace.attributes();
        assert_eq!(attributes["http.response.status_code"], json!(answered));
        let is_error = trace.root.status.as_ref().is_some_and(|status| status.code() == StatusCode::Error);
        assert_eq!(is_error, attributes.contains_key("error.type"));
        (trace.root.name.clone(), answered, is_error, attributes.get("http.route").cloned())
    };
    let route = |route: &str| Some(json!(route));
    assert_eq!(status_of(1, "/query", &query(&[1])), ("POST /query".to_owned(), 404, false, route("/query")));
    assert_eq!(status_of(2, "/query", &json!([])), ("POST /query".to_owned(), 422, false, route("/query")));
    assert_eq!(status_of(3, "/secret", &json!({})), ("POST".to_owned(), 404, false, None));
    let text = json!({ "model_name": "m", "prompt": "text" });
    let refused = status_of(4, "/score_completions", &text);
    assert_eq!((refused.1, refused.2), (501, true), "this service has no tokenizers");
}

#[test]
fn a_chat_has_spans_of_its_rendering_and_its_tokenization() {
    let (models, collector) = (tempfile::tempdir().expect("a folder"), FakeCollector::start());
    let folder = models.path().join("m");
    fs::create_dir(&folder).expect("a folder");
    let tokenizer = testdata().join("tokenizers/test-model/tokenizer.json");
    fs::copy(tokenizer, folder.join("tokenizer.json")).expect("copied");
    let template = "{% for message in messages %}{{ message.content }}{% endfor %}";
    fs::write(folder.join("chat_template.jinja"), template).expect("written");
    let tokenization =
        TokenizationOptions { directory: Some(models.path().to_owned()), ..TokenizationOptions::default() };
    let service = Service::start_with(ServerOptions {
        traces: Some(options(&collector, "0")),
        indexer: IndexerOptions { tokenization, ..IndexerOptions::default() },
        ..ServerOptions::default()
    });
    let _engine = Engine::registered(&service, json!("one"), 0, &json!({}));
    let chat = |text: &str| json!({ "model": "m", "messages": [{ "role": "user", "content": text }] });
    let headers = [("traceparent", sampled(TRACE))];
    let headers = [(headers[0].0, headers[0].1.as_str())];
    assert_eq!(post(&service, "/score_chat_completions", &headers, &chat("the secret question")).0, 200);
    let trace = collector.wait_for_trace(TRACE);
    let stages = ["parse", "parse", "render", "tokenize", "hash", "lookup", "answer"];
    assert_eq!(trace.stage_names(), stages, "the fields, then the chat");
    let tokens = &attributes(&trace.stage("tokenize").attributes)["flash_indexer.prompt.tokens"];
    assert_eq!(Some(tokens), attributes(&trace.stage("hash").attributes).get("flash_indexer.prompt.tokens"));
    assert!(!format!("{trace:?}").contains("secret"), "{trace:?}");

    // A large request is answered on another thread, in the same trace.
    let second = trace_id(1);
    let large = chat(&"word ".repeat(60 << 10));
    assert_eq!(post(&service, "/score_chat_completions", &[("traceparent", &sampled(&second))], &large).0, 200);
    assert_eq!(collector.wait_for_trace(&second).stage_names(), stages);
}

#[test]
fn grpc_requests_continue_the_trace_in_their_metadata() {
    let collector = FakeCollector::start();
    let service = service(options(&collector, "0"));
    let engine = Engine::registered(&service, json!("one"), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1, 2])]);
    let mut client = RouterServiceClient::new(service.channel());
    let request = |blocks: &[u64], model_name: &str| QueryRequest {
        model_name: model_name.to_owned(),
        token_ids: tokens(blocks),
        ..QueryRequest::default()
    };
    fn traced<T>(message: T, trace_id: &str) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("traceparent", sampled(trace_id).parse().expect("a value"));
        request
    }
    service.block_on(client.query(traced(request(&[1, 2, 3], "m"), TRACE))).expect("an answer");
    let trace = collector.wait_for_trace(TRACE);
    assert_eq!((hex(&trace.root.parent_span_id).as_str(), trace.root.kind()), (PARENT, SpanKind::Server));
    assert_eq!(trace.root.name, "flash_indexer.v1.RouterService/Query");
    let attributes = trace.attributes();
    let expected = [
        ("rpc.system.name", json!("grpc")),
        ("rpc.method", json!("flash_indexer.v1.RouterService/Query")),
        ("rpc.response.status_code", json!("OK")),
        ("gen_ai.request.model", json!("m")),
        ("flash_indexer.tenant", json!("default")),
        ("flash_indexer.prompt.blocks", json!(3)),
        ("flash_indexer.matched.blocks", json!(2)),
    ];
    assert_eq!(attributes, expected.map(|(name, value)| (name.to_owned(), value)).into());
    assert_eq!(trace.stage_names(), ["parse", "hash", "lookup", "answer"]);

    let unknown = trace_id(1);
    let failed = service.block_on(client.query(traced(request(&[1], "unknown"), &unknown))).expect_err("an error");
    assert_eq!(failed.code(), Code::NotFound);
    let failed = collector.wait_for_trace(&unknown);
    assert_eq!(failed.attributes()["rpc.response.status_code"], json!("NOT_FOUND"));
    assert!(!failed.attributes().contains_key("error.type"));

    // Each request of a stream has its own span.
    let streamed = trace_id(2);
    let (sender, requests) = mpsc::channel(2);
    let mut answers =
        service.block_on(client.query_stream(traced(Sent(requests), &streamed))).expect("a stream").into_inner();
    for model in ["m", "unknown"] {
        service.block_on(sender.send(request(&[1], model))).expect("it is read");
        service.block_on(answers.message()).expect("an answer").expect("one for each request");
    }
    let spans = wait_for("both requests", PATIENCE, || {
        let spans = collector.spans().into_iter().filter(|span| hex(&span.trace_id) == streamed);
        let spans: Vec<_> = spans.filter(|span| span.kind() == SpanKind::Server).collect();
        (spans.len() == 2).then_some(spans)
    });
    for (span, code) in spans.iter().zip(["OK", "NOT_FOUND"]) {
        assert_eq!(span.name, "flash_indexer.v1.RouterService/QueryStream");
        assert_eq!(hex(&span.parent_span_id), PARENT);
        assert_eq!(attributes_of(span)["rpc.response.status_code"], json!(code));
        let of_request = |stage: &Span| stage.parent_span_id == span.span_id;
        let stages: Vec<_> = collector.spans().into_iter().filter(of_request).collect();
        let names: Vec<_> = stages.iter().map(|stage| stage.name.as_str()).collect();
        let expected: &[&str] = if code == "OK" { &["parse", "hash", "lookup", "answer"] } else { &["parse"] };
        assert_eq!(names, expected);
        for stage in &stages {
            let (begin, end) = (stage.start_time_unix_nano, stage.end_time_unix_nano);
            assert!(span.start_time_unix_nano <= begin && begin <= end && end <= span.end_time_unix_nano);
        }
    }
}

fn attributes_of(span: &Span) -> std::collections::BTreeMap<String, Value> {
    attributes(&span.attributes)
}

#[test]
fn the_caller_decides_whether_its_request_is_traced_and_the_ratio_decides_for_others() {
    let collector = FakeCollector::start();
    let (none, all) = (service(options(&collector, "0")), service(options(&collector, "1")));
    let unsampled = format!("00-{TRACE}-{PARENT}-00");
    for service in [&none, &all] {
        post(service, "/query", &[("traceparent", &unsampled)], &query(&[1]));
        // A probe begins no trace.
        service.get("/ready");
    }
    post(&none, "/query", &[], &query(&[1]));
    // The spans of a service arrive in their order: all spans before this request have arrived as well.
    let last = trace_id(1);
    let headers = [("traceparent", sampled(&last))];
    for service in [&none, &all] {
        let (status, _) = service.post_bytes("/query", &[("traceparent", &headers[0].1)], b"{}");
        assert_eq!(status, 422);
    }
    let roots = || -> Vec<_> { collector.spans().into_iter().filter(|span| span.kind() == SpanKind::Server).collect() };
    wait_for("the last requests", PATIENCE, || (roots().len() >= 2).then_some(()));
    assert!(roots().iter().all(|span| hex(&span.trace_id) == last), "{:?}", roots());

    // Requests that begin a trace have their own ids. An invalid context counts as none.
    let invalid = ["00-00000000000000000000000000000000-00f067aa0ba902b7-01", "00-4bf9-00f0-01", "ff", ""];
    for traceparent in invalid {
        post(&all, "/query", &[("traceparent", traceparent)], &query(&[1]));
    }
    let began = wait_for("traces of their own", PATIENCE, || {
        let began: Vec<_> = roots().into_iter().filter(|span| span.parent_span_id.is_empty()).collect();
        (began.len() == invalid.len()).then_some(began)
    });
    let mut ids: Vec<_> = began.iter().map(|span| span.trace_id.clone()).collect();
    ids.sort();
    ids.dedup();
    assert!(ids.len() == invalid.len() && ids.iter().all(|id| id.len() == 16), "{ids:?}");
}

/// Values of the counters of spans: exported, rejected, dropped.
fn counted(service: &Service) -> [f64; 3] {
    let metrics = service.metrics();
    ["exported", "rejected", "dropped"]
        .map(|outcome| metrics.value("flash_indexer_spans_total", &[("outcome", outcome)]))
}

#[test]
fn a_collector_that_is_down_delays_no_request_and_costs_at_most_the_queue() {
    const QUEUED_MAX: usize = 8;
    capture();
    // A port that was free a moment ago.
    let address: SocketAddr = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a free port");
    let endpoint = format!("http://localhost:{}", address.port());
    let traces = OtlpOptions {
        sample_ratio: "1".parse().expect("a ratio"),
        queued_spans_max: QUEUED_MAX,
        ..OtlpOptions::to(endpoint.parse().expect("a URL"))
    };
    let service = service(traces);
    let limit = || service.metrics().value("flash_indexer_limit_reached_total", &[("limit", "queued_spans")]);
    wait_for("a full queue", PATIENCE, || {
        assert_eq!(post(&service, "/query", &[], &query(&[1])).0, 404, "requests are answered as before");
        (limit() > 0.0).then_some(())
    });
    let failures = || service.metrics().value("flash_indexer_span_export_failures_total", &[]);
    wait_for("two attempts", PATIENCE, || (failures() >= 2.0).then_some(()));
    let endpoint = format!("{endpoint}/v1/traces");
    let logged = |level: Level, message: &str| {
        let is_it = |event: &LogEvent| event.level == level && event.message().starts_with(message);
        logged("endpoint", &endpoint).into_iter().filter(is_it).count()
    };
    assert_eq!(logged(Level::WARN, "failed to export spans"), 1, "an outage is logged once");

    let collector = FakeCollector::at(address, Answers::All, None);
    wait_for("the waiting spans", PATIENCE, || {
        let [exported, rejected, dropped] = counted(&service);
        // The batch that the thread had, and a full queue.
        let is_complete = exported == collector.spans().len() as f64 && exported > QUEUED_MAX as f64 && rejected == 0.0;
        (is_complete && dropped == limit()).then_some(())
    });
    wait_for("the end of the outage", PATIENCE, || {
        (logged(Level::INFO, "the collector accepts spans again") == 1).then_some(())
    });
}

#[test]
fn what_a_collector_refuses_is_counted_and_not_repeated() {
    for answers in [Answers::Status(400), Answers::AllBut(1)] {
        let collector = FakeCollector::that_answers(answers);
        let service = service(options(&collector, "0"));
        // Two spans: the model is not known, so the request has the stage parse only.
        let (status, _) = post(&service, "/query", &[("traceparent", &sampled(TRACE))], &query(&[1]));
        assert_eq!(status, 404);
        let counted = wait_for("the answer for each span", PATIENCE, || {
            Some(counted(&service)).filter(|counted| counted.iter().sum::<f64>() >= 2.0)
        });
        let requests = collector.requests() as f64;
        let failures = service.metrics().value("flash_indexer_span_export_failures_total", &[]);
        match answers {
            Answers::AllBut(_) => assert_eq!((counted, failures), ([2.0 - requests, requests, 0.0], 0.0)),
            _ => assert_eq!((counted, failures), ([0.0, 2.0, 0.0], requests)),
        }
    }
}

#[test]
fn a_stop_sends_the_spans_that_wait() {
    let collector = FakeCollector::start();
    let service = service(options(&collector, "0"));
    post(&service, "/query", &[("traceparent", &sampled(TRACE))], &query(&[1]));
    let _runtime = service.stop();
    let names: Vec<_> = collector.spans().into_iter().map(|span| span.name).collect();
    assert!(names.contains(&"POST /query".to_owned()), "{names:?}");
}

#[test]
fn a_stop_does_not_wait_for_a_silent_collector() {
    capture();
    let collector = FakeCollector::that_answers(Answers::Nothing);
    // The request ends by its deadline long after this test.
    let service = service(OtlpOptions { send_deadline: 100 * PATIENCE, ..options(&collector, "0") });
    post(&service, "/query", &[("traceparent", &sampled(TRACE))], &query(&[1]));
    wait_for("a request that is not answered", PATIENCE, || (collector.requests() > 0).then_some(()));
    let (ended, end) = std::sync::mpsc::channel();
    // The runtime ends with the thread, and would wait as well.
    std::thread::spawn(move || ended.send(service.stop()));
    let runtime = end.recv_timeout(PATIENCE).expect("a stop that gives the collector up");
    runtime.shutdown_background();
    let has_given_up = |event: &LogEvent| event.message().contains("does not answer within the deadline");
    let endpoint = format!("{}/v1/traces", collector.url());
    assert!(logged("endpoint", &endpoint).iter().any(has_given_up), "it waits for the answer");
}

#[test]
fn a_lookup_in_the_shared_store_is_a_call_of_another_service() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    let url = format!("redis://127.0.0.1:{}", node.port());
    let other = replica_at(&url);
    let engine = Engine::registered(&other, json!("elsewhere"), 0, &json!({}));
    engine.say(&other, 0, &[stored(None, &[1, 2])]);
    let collector = FakeCollector::start();
    let store = flash_indexer_redis::StoreOptions {
        deadline: PATIENCE,
        ..flash_indexer_redis::StoreOptions::at(url.parse().expect("an address"))
    };
    let service = Service::start_with(ServerOptions {
        traces: Some(options(&collector, "0")),
        indexer: IndexerOptions { store: Some(store), ..IndexerOptions::default() },
        ..ServerOptions::default()
    });
    wait_for("the other replica's rank", PATIENCE, || {
        let (_, answer) = service.post("/query", &query(&[1, 2]));
        (answer["scores"] == json!({ "elsewhere": { "0": 8 } })).then_some(())
    });
    assert_eq!(post(&service, "/query", &[("traceparent", &sampled(TRACE))], &query(&[1, 2])).0, 200);
    let trace = collector.wait_for_trace(TRACE);
    assert_eq!(trace.stage_names(), ["parse", "hash", "store", "lookup", "answer"]);
    assert_eq!(trace.stage("store").kind(), SpanKind::Client);
    assert_eq!(trace.attributes()["flash_indexer.matched.blocks"], json!(2));
}

#[test]
fn a_collector_with_tls_is_known_by_its_authority() {
    let authority = Authority::new();
    let issued = authority.issue("collector");
    let chain =
        CertificateDer::pem_file_iter(&issued.certificate).expect("a file").map(|it| it.expect("a certificate"));
    let key = PrivateKeyDer::from_pem_file(&issued.key).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain.collect(), key)
        .expect("a pair");
    let collector = FakeCollector::at(([127, 0, 0, 1], 0).into(), Answers::All, Some(Arc::new(config)));
    assert!(collector.url().starts_with("https://") && collector.address().port() > 0);
    let credentials = ClientFiles { ca: Some(authority.file()), ..ClientFiles::default() };
    let trusted = service(OtlpOptions { credentials, ..options(&collector, "0") });
    let untrusted = service(options(&collector, "0"));
    for service in [&untrusted, &trusted] {
        post(service, "/query", &[("traceparent", &sampled(TRACE))], &query(&[1]));
    }
    collector.wait_for_trace(TRACE);
    let failures = || untrusted.metrics().value("flash_indexer_span_export_failures_total", &[]);
    wait_for("a failed handshake", PATIENCE, || (failures() > 0.0).then_some(()));
    assert_eq!(counted(&untrusted)[0], 0.0);
}
