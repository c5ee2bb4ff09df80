//! The brute-force model of an engine's cache groups gives what every recorded engine reported.

use flash_indexer_sim::{CacheGroups, RecordedLine, Recording};
use flash_indexer_test_support::shared_dir;

#[test]
fn the_rule_of_cache_groups_gives_every_reported_hit() {
    let Some(shared) = shared_dir() else { return };
    for stream in ["vllm-0.32.0-gemma3-hybrid", "vllm-0.32.0-llama-lora", "sglang-0.5.23-salt"] {
        let recording = Recording::open(&shared.join(format!("data/engines/{stream}.jsonl"))).expect("a recording");
        let mut groups = CacheGroups::new(recording.block_size);
        let (mut own_messages, mut checked) = (Vec::new(), 0);
        for line in &recording.lines {
            if let RecordedLine::Message(message) = line {
                own_messages.push(message);
                continue;
            }
            if let RecordedLine::Request(request) = line
                && !request.concurrent
            {
                assert_eq!(
                    groups.usable_tokens(request, recording.dp_ranks[0]),
                    request.cached_tokens,
                    "{}",
                    request.id
                );
                checked += 1;
            }
            own_messages.drain(..).for_each(|message| groups.learn(message));
        }
        assert_eq!(groups.is_hybrid(), stream.contains("hybrid"));
        assert!(checked >= 100, "{stream}: {checked}");
    }
}

#[test]
fn a_broken_recording_is_refused_with_its_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("recording.jsonl");
    let meta = "{\"kind\":\"meta\",\"engine\":\"none\"}";
    let refused = |text: &str| {
        std::fs::write(&path, text).expect("a file");
        Recording::open(&path).expect_err("a broken recording").to_string()
    };
    let message = |frames: &str| refused(&format!("{meta}\n{{\"kind\":\"msg\",\"t\":1.0,\"frames\":{frames}}}\n"));
    for error in
        [message("[\"6b\"]"), message("[\"6b\",\"00\",\"x\"]"), message("[\"6b\",\"0000000000000001\",\"c1\"]")]
    {
        assert!(error.starts_with("line 2 of "), "{error}");
    }
    assert!(refused(meta).contains("stores no block"));
    assert!(refused("{").starts_with("line 1 of "));
    assert!(Recording::open(&folder.path().join("absent")).is_err());
}
