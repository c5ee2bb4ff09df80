use flash_indexer_core::RemovedCopies;
use flash_indexer_types::{ListenerOptions, ModelKey, Registration};

use super::*;

fn template() -> EngineTemplate {
    EngineTemplate { block_size: BlockSize::new(16), model_name: Some("m".to_owned()), ..EngineTemplate::default() }
}

fn ranks_of(text: &str) -> Vec<(String, u32, String, Option<String>)> {
    let targets = parse(text, &template()).expect("a valid file").into_values();
    let named = targets.map(|registration| {
        let Registration { instance, dp_rank, options, .. } = registration;
        (instance.to_string(), dp_rank.0, options.endpoint, options.replay_endpoint)
    });
    named.collect()
}

#[test]
fn an_entry_has_the_fields_of_a_registration() {
    let text = r#"[{"instance_id": "a", "endpoint": "tcp://h:1", "replay_endpoint": "tcp://h:2", "model": "x",
        "routing_group": "t", "block_size": 32, "dp_rank": 3, "lora_name": "l", "engine": "vllm", "removal": "last_copy"},
        {"instance_id": 7, "endpoint": "ipc:///tmp/e"}]"#;
    let targets: Vec<Registration> = parse(text, &template()).expect("a valid file").into_values().collect();
    let whole = targets.iter().find(|target| target.instance.as_key() == "a").expect("in the file");
    assert_eq!(whole.model, ModelKey::new("x", Some("t".to_owned())));
    assert_eq!((whole.block_size.tokens(), whole.dp_rank), (32, DpRank(3)));
    let expected = ListenerOptions {
        replay_endpoint: Some("tcp://h:2".to_owned()),
        lora_name: Some("l".to_owned()),
        engine: Some(EngineKind::Vllm),
        removed_copies: RemovedCopies::All,
        ..ListenerOptions::new("tcp://h:1")
    };
    assert_eq!(whole.options, expected);
    let short = targets.iter().find(|target| target.instance.as_key() == "7").expect("in the file");
    assert_eq!((short.model.clone(), short.block_size.tokens()), (ModelKey::new("m", None), 16));
    assert_eq!(parse("[]", &template()), Ok(Targets::new()));
}

#[test]
fn an_entry_attaches_all_of_its_ranks_to_shared_caches() {
    let text = r#"[{"instance_id": 1, "endpoint": "tcp://h:5557", "data_parallel_size": 2, "shared_caches": ["pool:p", "node:n"]},
        {"instance_id": "node:n", "endpoint": "tcp://n:5557"}]"#;
    let targets = parse(text, &template()).expect("a valid file");
    let attached: Vec<Vec<&str>> = targets
        .values()
        .map(|target| target.options.shared_caches.ids().iter().map(InstanceId::as_key).collect())
        .collect();
    assert_eq!(attached, [vec!["node:n", "pool:p"], vec!["node:n", "pool:p"], vec![]]);
    let wrong = text.replace("pool:p", "pod-1");
    let error = parse(&wrong, &template()).expect_err("an instance").to_string();
    assert!(error.contains("invalid id pod-1 in shared_caches"), "{error}");
}

#[test]
fn one_entry_can_name_all_ranks_of_an_engine() {
    let text = r#"[{"instance_id": 1, "endpoint": "tcp://[::1]:5557", "replay_endpoint": "tcp://[::1]:6557",
        "data_parallel_size": 2}]"#;
    let rank = |rank: u32| {
        let endpoint = |port: u32| format!("tcp://[::1]:{}", port + rank);
        ("1".to_owned(), rank, endpoint(5557), Some(endpoint(6557)))
    };
    assert_eq!(ranks_of(text), [rank(0), rank(1)]);
}

#[test]
fn an_error_names_its_line_and_what_to_do() {
    for (text, line, problem) in [
        ("", 1, "the file is truncated"),
        ("[\n{\"instance_id\": 1,", 2, "the file is truncated"),
        ("[\n]\n]", 3, "trailing characters"),
        ("{}", 1, "expected a sequence; expected a JSON list"),
        ("[\n\n{\"instance_id\": 1}]", 3, "missing field `endpoint`"),
        (
            "[{\"instance_id\": 1, \"endpoint\": \"tcp://h:1\"},\n{\"instance_id\": 2,\n\"endpont\": 1}]",
            3,
            "unknown field `endpont`",
        ),
        ("[\n{\"instance_id\": 1, \"endpoint\": \"h:1\"}]", 2, "give an address such as tcp://host:5557"),
        (
            "[\n{\"instance_id\": 1, \"endpoint\": \"tcp://h:1\", \"replay_endpoint\": \"tcp://h\"}]",
            2,
            "there is no port",
        ),
        (
            "[\n{\"instance_id\": 1, \"endpoint\": \"tcp://h:1\", \"block_size\": 0}]",
            2,
            "block_size must be at least 1",
        ),
        ("[\n{\"instance_id\": 1, \"endpoint\": \"ipc:///x\", \"data_parallel_size\": 2}]", 2, "has no port to count"),
        (
            "[{\"instance_id\": 1, \"endpoint\": \"tcp://h:65535\", \"data_parallel_size\": 2}]",
            1,
            "more than there are ports",
        ),
        (
            "[{\"instance_id\": 1, \"endpoint\": \"tcp://h:1\", \"replay_endpoint\": \"tcp://h:2\", \"data_parallel_size\": 2}]",
            1,
            "overlap",
        ),
        (
            "[{\"instance_id\": 1, \"endpoint\": \"tcp://h:1\", \"data_parallel_size\": 2, \"dp_rank\": 1}]",
            1,
            "are both given",
        ),
        (
            "[{\"instance_id\": 1, \"endpoint\": \"tcp://h:1\"},\n {\"instance_id\": 1, \"endpoint\": \"tcp://h:2\"}]",
            2,
            "is named twice",
        ),
    ] {
        let error = parse(text, &template()).expect_err(text);
        assert!(error.line == line && error.problem.contains(problem), "{text}\n{error}");
    }
    let nameless = EngineTemplate { block_size: None, ..template() };
    let error = parse("[{\"instance_id\": 1, \"endpoint\": \"tcp://h:1\"}]", &nameless).expect_err("no block size");
    assert!(error.to_string().contains("--block-size"), "{error}");
}
