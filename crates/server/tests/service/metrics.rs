//! Every metric is well formed, and changes when a counted event happens.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use flash_indexer_registry::described_sections;
use flash_indexer_server::{IndexerOptions, MetricNames, ServerOptions};
use flash_indexer_telemetry::metrics::describe_metrics;
use flash_indexer_test_support::wait_for;
use flash_indexer_wire::{BlockStored, Encoding, EngineEvent, TokenIds, encode_batch};
use serde_json::{Value, json};

use crate::support::{Engine, Exposition, PATIENCE, Service, removed, store, stored, tokens};

/// Counters and histograms that [`everything_that_is_counted_moves_its_metric`] does not change.
const UNMOVED: [&str; 33] = [
    "flash_indexer_reload_failures",
    "flash_indexer_token_file_failures",
    "flash_indexer_replays",
    "flash_indexer_unknown_fields",
    // `pulls.rs` has the tests of this and of `partial_blocks`.
    "flash_indexer_pulls",
    // `engine_streams.rs` has its test.
    "flash_indexer_streamed_batches",
    // Tests of `ingest` have it.
    "flash_indexer_curve_handshakes_failed",
    "flash_indexer_pods_unregistered",
    "flash_indexer_pods_left",
    "flash_indexer_replayed_messages",
    "flash_indexer_listener_restarts",
    "flash_indexer_pods_registered",
    "flash_indexer_inactive_blocks",
    "flash_indexer_unnumbered_streams",
    "flash_indexer_partial_blocks",
    "flash_indexer_recoveries",
    "flash_indexer_peer_checks",
    "flash_indexer_peer_repairs",
    "flash_indexer_snapshots",
    "flash_indexer_recovered_from",
    "flash_indexer_spans",
    "flash_indexer_span_export_failures",
    // The endpoint picker is off here: `endpoint_picker.rs` has its test.
    "flash_indexer_endpoint_picks",
    "flash_indexer_tokenized_tokens",
    "flash_indexer_tokenization_wait_seconds",
    "flash_indexer_tokenization_work_seconds",
    "flash_indexer_thread_panics",
    "flash_indexer_index_replacements",
    "flash_indexer_log_lines_dropped",
    "flash_indexer_twins_skipped",
    "flash_indexer_twins_passed_over",
    // `pick.rs` has their test.
    "flash_indexer_reported_prompt_tokens",
    "flash_indexer_reported_cached_tokens",
];

#[test]
fn everything_that_is_counted_moves_its_metric() {
    let indexer = IndexerOptions { models_max: 1, listeners_max: 2, ..IndexerOptions::default() };
    let service = Service::start_with(ServerOptions { indexer, body_bytes_max: 1_000, ..ServerOptions::default() });
    let before = service.metrics();
    let model = [("model_name", "m"), ("tenant_id", "default")];
    assert_eq!(before.value("flash_indexer_models", &[]), 0.0);
    assert_eq!(before.value("flash_indexer_replays_total", &[("outcome", "complete")]), 0.0);

    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    let silent = Engine::registered(&service, json!(2), 0, &json!({}));
    let to_host = BlockStored { token_ids: TokenIds::default(), medium: Some("CPU"), ..store(None, &[2]) };
    let events = [
        stored(None, &[1, 2, 3]),
        stored(None, &[1]),
        stored(Some(77), &[8, 9]),
        stored(None, &[2]),
        EngineEvent::Stored(to_host),
        removed(&[3, 99]),
        EngineEvent::Stored(BlockStored { medium: Some("TAPE"), ..store(None, &[1]) }),
    ];
    engine.say(&service, 0, &events);
    let held = service.metrics();
    for (name, expected) in [("instances", 2.0), ("ranks", 1.0), ("held_blocks", 4.0), ("waiting_blocks", 2.0)] {
        assert_eq!(held.value(&format!("flash_indexer_{name}"), &model), expected, "{name}");
    }
    let tier = |tier| held.value("flash_indexer_tier_blocks", &[model[0], model[1], ("tier", tier)]);
    assert_eq!(["device", "host_pinned", "disk", "external"].map(tier), [4.0, 1.0, 0.0, 0.0]);
    assert!(held.value("flash_indexer_index_bytes", &model) > 0.0, "the run index knows its size");
    assert_eq!(held.value("flash_indexer_models", &[]), 1.0);
    assert_eq!(held.value("flash_indexer_workers", &[]), 2.0);
    silent.wait(&service, "a connection", |listener| listener["status"] == json!("connected"));
    let listeners = |trust| {
        let labels = [("status", "connected"), ("trust", trust)];
        service.metrics().value("flash_indexer_listeners", &labels)
    };
    // Two blocks follow a parent that was never stored.
    assert_eq!([listeners("exact"), listeners("cold"), listeners("degraded")], [0.0, 1.0, 1.0]);

    // A gap, a batch from the future, a message that is not a batch, a clear, a restart.
    engine.say(&service, 3, &[stored(None, &[5])]);
    let future = SystemTime::now() + Duration::from_secs(1_000);
    let future = future.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs_f64();
    engine
        .publisher
        .publish(4, &encode_batch(future, &[EngineEvent::Cleared], None, Encoding::Map))
        .expect("published");
    engine.publisher.publish(5, b"no batch").expect("published");
    engine.say(&service, 5, &[]);
    engine.say(&service, 0, &[stored(None, &[1, 2])]);

    service.query(&json!({ "token_ids": tokens(&[1, 2, 3, 4]), "model_name": "m" }));
    let predicted = json!({ "token_ids": tokens(&[1, 2, 3]), "model_name": "m", "pod": 2, "ttl_ms": 600_000 });
    assert_eq!(service.post("/predict", &predicted).0, 200);
    assert_eq!(service.post("/score_completions", &json!({ "token_ids": tokens(&[1, 2]), "model": "m" })).0, 200);
    assert_eq!(service.post("/query", &json!({ "token_ids": [], "model_name": "unknown" })).0, 404);
    let request = |instance: u64, model: &str| json!({ "instance_id": instance, "endpoint": "tcp://127.0.0.1:9", "model_name": model, "block_size": 4 });
    assert_eq!(service.post("/register", &request(3, "other")).0, 503);
    assert_eq!(service.post("/register", &request(3, "m")).0, 503);
    assert_eq!(service.post("/query", &json!({ "token_ids": vec![1; 1_000], "model_name": "m" })).0, 413);

    let after = service.metrics();
    let moved = |name: &str, labels: &[(&str, &str)]| {
        let name = format!("flash_indexer_{name}");
        after.value(&name, labels) - before.value(&name, labels)
    };
    let kinds = ["stored", "copied", "removed", "cleared"].map(|kind| moved("events_total", &[("kind", kind)]));
    assert_eq!(kinds, [6.0, 1.0, 1.0, 1.0]);
    let results = ["stored", "duplicate", "waiting", "moved", "refused", "removed", "unknown"];
    let results = results.map(|result| moved("blocks_total", &[("result", result)]));
    assert!(results.iter().enumerate().all(|(at, &blocks)| (blocks > 0.0) == (at != 4)), "{results:?}");
    for (name, labels, expected) in [
        ("messages_total", vec![], 6.0),
        ("missed_messages_total", vec![], 2.0),
        ("gaps_total", vec![], 1.0),
        ("engine_restarts_total", vec![], 1.0),
        ("rejected_total", vec![("reason", "unknown_medium")], 1.0),
        ("event_lag_seconds_count", vec![], 5.0),
        ("event_lag_seconds_bucket", vec![("le", "0.0005")], 1.0),
        ("batches_from_the_future_total", vec![], 1.0),
        ("requests_total", vec![("endpoint", "/query"), ("status", "200")], 1.0),
        ("requests_total", vec![("endpoint", "/query"), ("method", "POST")], 3.0),
        ("errors_total", vec![("endpoint", "/query"), ("status_class", "4xx")], 2.0),
        ("errors_total", vec![("endpoint", "/register"), ("status_class", "5xx")], 2.0),
        ("request_duration_seconds_count", vec![("endpoint", "/query")], 3.0),
        ("bounds_reached_total", vec![("bound", "models")], 1.0),
        ("bounds_reached_total", vec![("bound", "listeners")], 1.0),
        ("bounds_reached_total", vec![("bound", "body_bytes")], 1.0),
        ("queries_total", vec![model[0]], 2.0),
        ("queried_blocks_total", vec![model[0]], 6.0),
        ("found_blocks_total", vec![model[0]], 4.0),
        ("query_hit_ratio_sum", vec![model[0]], 1.5),
        ("predictions_total", vec![], 1.0),
        ("predicted_blocks", vec![], 3.0),
        ("scores_total", vec![], 1.0),
        ("scored_instances_total", vec![], 2.0),
        ("scored_pods_total", vec![], 2.0),
        ("scored_predicted_blocks_total", vec![], 2.0),
    ] {
        assert_eq!(moved(name, &labels), expected, "{name} {labels:?}");
    }
    let unreadable = ["malformed_batch", "not_a_batch"].map(|reason| moved("rejected_total", &[("reason", reason)]));
    assert_eq!(unreadable.iter().sum::<f64>(), 1.0, "{unreadable:?}");
    let lead = after.value("flash_indexer_engine_clock_lead_seconds", &[]);
    assert!((0.0..1_000.0).contains(&lead) && lead > 0.0, "{lead}");
    let unmoved = after.families.iter().filter(|family| ["counter", "histogram"].contains(&family.kind.as_str()));
    let unmoved = unmoved.filter(|family| family.samples.iter().all(|sample| sample.value == 0.0));
    let unmoved: Vec<&str> = unmoved.map(|family| family.name.as_str()).collect();
    assert_eq!(unmoved, UNMOVED, "a new metric belongs into this test");
}

#[test]
fn a_model_takes_its_series_with_it_and_may_be_called_anything() {
    let service = Service::start();
    let name = "org/\"model\"\\7b\\nx";
    let engine = Engine::registered(&service, json!(1), 0, &json!({ "model_name": name, "tenant_id": "ü" }));
    let model = [("model_name", name), ("tenant_id", "ü")];
    wait_for("the model", PATIENCE, || {
        (service.metrics().value("flash_indexer_instances", &model) == 1.0).then_some(())
    });
    let (status, answer) =
        service.post("/unregister", &json!({ "instance_id": engine.instance, "model_name": name, "tenant_id": "ü" }));
    assert_eq!(status, 200, "{answer}");
    assert!(service.metrics().family("flash_indexer_instances").is_none(), "nothing is left to tell");
}

#[test]
fn the_names_of_an_earlier_indexer_are_offered_when_asked_for() {
    let known = |metrics: &Exposition| {
        let families = metrics.families.iter().filter(|family| family.name.starts_with("dynamo_kvindexer_"));
        families.map(|family| family.name.clone()).collect::<Vec<_>>()
    };
    let service = Service::start();
    assert_eq!(known(&service.metrics()), Vec::<String>::new());

    let indexer = IndexerOptions { metric_names: MetricNames::OwnAndCompat, ..IndexerOptions::default() };
    let service = Service::start_with(ServerOptions { indexer, ..ServerOptions::default() });
    let _engine = Engine::registered(&service, json!(1), 0, &json!({}));
    service.query(&json!({ "token_ids": [], "model_name": "m" }));
    assert_eq!(service.post("/query", &Value::Null).0, 422);
    let metrics = service.metrics();
    let mut names = known(&metrics);
    names.sort();
    let expected = ["errors", "models", "request_duration_seconds", "requests", "workers"];
    assert_eq!(names, expected.map(|name| format!("dynamo_kvindexer_{name}")));
    for (name, labels, expected) in [
        ("request_duration_seconds_count", vec![("endpoint", "/query")], 2.0),
        ("requests_total", vec![("endpoint", "/query"), ("method", "POST")], 2.0),
        ("errors_total", vec![("endpoint", "/query"), ("status_class", "4xx")], 1.0),
        ("models", vec![], 1.0),
        ("workers", vec![], 1.0),
    ] {
        assert_eq!(metrics.value(&format!("dynamo_kvindexer_{name}"), &labels), expected, "{name}");
    }
}

#[test]
fn the_process_tells_what_it_uses() {
    let metrics = Service::start().metrics();
    let value = |name: &str| metrics.value(name, &[]);
    assert!(value("process_start_time_seconds") > 1.7e9);
    assert_eq!(metrics.value("flash_indexer_build_info", &[("version", env!("CARGO_PKG_VERSION"))]), 1.0);
    if cfg!(target_os = "linux") {
        for name in ["resident_memory_bytes", "threads", "open_fds", "max_fds", "cpu_seconds_total"] {
            assert!(value(&format!("process_{name}")) >= 0.0);
            assert!(name == "cpu_seconds_total" || value(&format!("process_{name}")) > 0.0, "{name}");
        }
    }
}

#[test]
fn every_metric_is_in_the_reference() {
    let indexer = IndexerOptions { memory_max: Some(64 << 20), ..IndexerOptions::default() };
    let service = Service::start_with(ServerOptions { indexer, ..ServerOptions::default() });
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1])]);
    service.query(&json!({ "token_ids": tokens(&[1]), "model_name": "m" }));
    let described = describe_metrics(described_sections());
    let names: BTreeSet<_> = described.iter().flat_map(|metric| metric.aliases.iter().chain([&metric.name])).collect();
    let is_described =
        |name: &str| ["", "_total", "_info"].iter().any(|ending| names.contains(&format!("{name}{ending}")));
    let metrics = service.metrics();
    let own = metrics.families.iter().map(|family| family.name.trim_start_matches("flash_indexer_"));
    let missing: Vec<&str> = own.filter(|name| !is_described(name)).collect();
    assert_eq!(missing, Vec::<&str>::new());
}
