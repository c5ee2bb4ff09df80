//! Each fault of a stream yields its own finding; a healthy stream yields none.

use std::collections::BTreeMap;
use std::time::Duration;

use flash_indexer_core::DpRank;
use flash_indexer_registry::described_sections;
use flash_indexer_telemetry::metrics::describe_metrics;
use flash_indexer_types::{ConnectionStatus, EngineKind, RemovalMeaning};

use super::super::finding::Verdict;
use super::super::follower::StreamSummary;
use super::super::hashes::HashCounts;
use super::super::probe::Stream;
use super::*;
use flash_indexer_api::BlocksByTier;

fn listener() -> Listener {
    Listener {
        endpoint: "tcp://gpu-1:5557".to_owned(),
        replay_endpoint: Some("tcp://gpu-1:5558".to_owned()),
        engine: Some(EngineKind::Vllm),
        lora_name: None,
        removal: RemovalMeaning::EachCopy,
        status: ConnectionStatus::Connected,
        last_seq: Some(9),
        last_event_ms_ago: Some(1),
        received_seq: Some(9),
        blocks: BlocksByTier::default(),
        events: 10,
        stored_blocks: 0,
        removed_blocks: 0,
        gaps: 0,
        trust: Trust::Exact,
        replay: None,
        extra_keys: false,
        cache_blocks: None,
        shared_caches: Vec::new(),
        partial: false,
        rejected: BTreeMap::new(),
        last_error: None,
        source: None,
    }
}

fn healthy() -> Observation {
    let stream = Stream {
        instance: "1".to_owned(),
        model_name: "m".to_owned(),
        tenant_id: "default".to_owned(),
        block_size: 16,
        ranks: vec![0],
        listener: listener(),
    };
    Observation {
        stream,
        endpoint: EndpointStatus::Publisher,
        received: StreamSummary {
            messages: 3,
            last: Some(9),
            stores_with_block_size: 3,
            hashes: HashCounts { equal: 3, ..HashCounts::default() },
            lag_s: Some(0.001),
            engine_of_fields: Some("vllm"),
            ..StreamSummary::default()
        },
        replay: ReplayStatus::Answered { first: Some(0), messages: 7, gaps: 0, has_end: true, has_topic: true },
        comparison: AnswerComparison::Equal { chains: 1, blocks: 2 },
        after: vec![listener()],
    }
}

/// Checks that fail after a change to a healthy stream.
fn faults(change: impl FnOnce(&mut Observation)) -> Vec<(&'static str, Verdict)> {
    let mut observation = healthy();
    change(&mut observation);
    let findings = check_stream(&observation);
    assert!(findings.iter().all(|Finding { outcome, .. }| (outcome.verdict == Verdict::Ok) == outcome.fix.is_none()));
    let faults = findings.iter().filter(|finding| finding.outcome.verdict != Verdict::Ok);
    faults.map(|finding| (finding.check, finding.outcome.verdict)).collect()
}

#[test]
fn healthy_and_idle_engines_have_no_fault() {
    assert_eq!(faults(|_| {}), []);
    assert_eq!(check_stream(&healthy()).len(), 10, "all checks run");
    let idle = |observation: &mut Observation| {
        observation.received = StreamSummary::default();
        observation.comparison = AnswerComparison::NothingToCompare;
        observation.replay =
            ReplayStatus::Answered { first: None, messages: 0, gaps: 0, has_end: true, has_topic: false };
        observation.after[0].trust = Trust::Cold;
        observation.after[0].last_seq = None;
    };
    assert_eq!(faults(idle), []);
}

#[test]
fn an_unreachable_engine_is_one_problem_and_a_warning_if_only_doctor_cannot_reach_it() {
    let unreachable =
        |observation: &mut Observation| observation.endpoint = EndpointStatus::Unreachable(ConnectError::Refused);
    assert_eq!(faults(unreachable), [("endpoint", Verdict::Warning)]);
    let gone = |observation: &mut Observation| {
        unreachable(observation);
        observation.replay = ReplayStatus::Unreachable(ConnectError::Refused);
        observation.after[0].status = ConnectionStatus::Disconnected;
    };
    assert_eq!(faults(gone), [("endpoint", Verdict::Problem)]);
    assert_eq!(
        faults(|observation| observation.after[0].status = ConnectionStatus::Connecting),
        [("connection", Verdict::Problem)]
    );
    assert_eq!(
        faults(|observation| observation.endpoint = EndpointStatus::NotPublisher),
        [("endpoint", Verdict::Problem)]
    );
    assert_eq!(faults(|observation| observation.after.clear()), [("connection", Verdict::Warning)]);
    assert_eq!(faults(|observation| observation.endpoint = EndpointStatus::Pulled), []);
    let unread = |observation: &mut Observation| {
        observation.endpoint = EndpointStatus::Pulled;
        observation.after[0].status = ConnectionStatus::Connecting;
    };
    assert_eq!(faults(unread), [("connection", Verdict::Problem)]);
    assert_eq!(faults(|observation| observation.endpoint = EndpointStatus::Streamed), []);
    let unread = |observation: &mut Observation| {
        observation.endpoint = EndpointStatus::Streamed;
        observation.after[0].status = ConnectionStatus::Connecting;
    };
    assert_eq!(faults(unread), [("connection", Verdict::Problem)]);
}

/// The fix of a stream's only fault.
fn fix(change: impl FnOnce(&mut Observation)) -> String {
    let mut observation = healthy();
    change(&mut observation);
    let mut fixes = check_stream(&observation).into_iter().filter_map(|finding| finding.outcome.fix);
    let fix = fixes.next().expect("a fault");
    assert_eq!(fixes.next(), None, "one fault");
    fix
}

#[test]
fn stopped_dead_and_unreachable_engines_have_different_fixes() {
    let gone = |endpoint: EndpointStatus, replay: ReplayStatus, status: ConnectionStatus| {
        move |observation: &mut Observation| {
            observation.endpoint = endpoint;
            observation.replay = replay;
            observation.after[0].status = status;
        }
    };
    for status in [ConnectionStatus::Connected, ConnectionStatus::Connecting, ConnectionStatus::Disconnected] {
        let stopped = fix(gone(EndpointStatus::Unresponsive, ReplayStatus::Unresponsive, status));
        assert!(stopped.contains("SIGSTOP"), "{status:?}: {stopped}");
    }
    for status in [ConnectionStatus::Connecting, ConnectionStatus::Disconnected] {
        let unreachable =
            |why: ConnectError| (EndpointStatus::Unreachable(why.clone()), ReplayStatus::Unreachable(why));
        let (endpoint, replay) = unreachable(ConnectError::Refused);
        let dead = fix(gone(endpoint, replay, status));
        assert!(dead.contains("start the engine"), "{status:?}: {dead}");
        let (endpoint, replay) = unreachable(ConnectError::TimedOut(Duration::from_secs(3)));
        let lost = fix(gone(endpoint, replay, status));
        assert!(lost.contains("network policies") && !lost.contains("start"), "{status:?}: {lost}");
    }
    let replay = ReplayStatus::Unreachable(ConnectError::TimedOut(Duration::from_secs(3)));
    assert!(fix(|observation| observation.replay = replay).contains("firewalls"));
}

#[test]
fn a_discovered_engine_is_corrected_at_its_source() {
    let wrong = |source: Option<&str>| {
        fix(|observation| {
            observation.after[0].source = source.map(str::to_owned);
            observation.endpoint = EndpointStatus::NotPublisher;
        })
    };
    for by_request in [None, Some("peer")] {
        let fix = wrong(by_request);
        assert!(fix.contains("POST /unregister") && fix.contains("POST /register"), "{by_request:?}: {fix}");
    }
    let fix = wrong(Some("file:engines.json"));
    assert!(fix.contains("source file:engines.json") && !fix.contains("POST"), "{fix}");
}

#[test]
fn metrics_that_a_fix_names_exist() {
    let described = describe_metrics(described_sections());
    for fix in
        [fix(|observation| observation.received.last = Some(10)), fix(|observation| observation.after[0].gaps = 1)]
    {
        let words = fix.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let names: Vec<&str> = words.filter_map(|word| word.strip_prefix("flash_indexer_")).collect();
        assert!(!names.is_empty(), "{fix}");
        for name in names {
            assert!(described.iter().any(|metric| metric.name == name), "{name}: {fix}");
        }
    }
}

#[test]
fn a_lagging_service_gaps_and_restarts_are_found() {
    assert_eq!(faults(|observation| observation.received.last = Some(10)), [("sequence", Verdict::Problem)]);
    assert_eq!(faults(|observation| observation.after[0].gaps = 1), [("sequence", Verdict::Warning)]);
    assert_eq!(faults(|observation| observation.received.restarts = 1), [("sequence", Verdict::Warning)]);
    assert_eq!(faults(|observation| observation.received.gaps = 1), [], "the service has no gap");
}

#[test]
fn events_that_contradict_the_registration_are_found() {
    assert_eq!(
        faults(|observation| observation.received.mismatched_block_size = Some(32)),
        [("block size", Verdict::Problem)]
    );
    let rejected_before = |observation: &mut Observation| {
        observation.received.stores_with_block_size = 0;
        observation.after[0].rejected.insert("block_size_mismatch".to_owned(), 4);
    };
    assert_eq!(faults(rejected_before), [("block size", Verdict::Problem)]);
    let unknown = |observation: &mut Observation| {
        observation.after[0].rejected.insert("unknown_medium".to_owned(), 1);
    };
    assert_eq!(faults(unknown), [("events", Verdict::Warning)]);
    let unusable = |observation: &mut Observation| observation.received.last_unusable = Some("not an event".to_owned());
    assert_eq!(faults(unusable), [("events", Verdict::Warning)]);
    assert_eq!(
        faults(|observation| observation.received.engine_of_fields = Some("sglang")),
        [("engine", Verdict::Warning)]
    );
    let hashes = |equal, unrelated, broken| {
        faults(|observation| observation.received.hashes = HashCounts { equal, unrelated, broken })
    };
    assert_eq!(hashes(0, 5, 0), [], "another algorithm is no fault");
    assert_eq!(hashes(5, 0, 1), [("hashes", Verdict::Warning)]);
}

#[test]
fn answers_shorter_than_the_engines_prefix_are_a_problem() {
    let less = AnswerComparison::Shorter { dp_rank: DpRank(0), expected: 32, answered: 16 };
    assert_eq!(faults(|observation| observation.comparison = less), [("answers", Verdict::Problem)]);
    let failed = AnswerComparison::Failed("no indexer".to_owned());
    assert_eq!(faults(|observation| observation.comparison = failed), [("answers", Verdict::Problem)]);
}

#[test]
fn a_missing_replay_endpoint_is_a_problem_for_a_degraded_rank() {
    let degraded = |observation: &mut Observation| observation.after[0].trust = Trust::Degraded;
    assert_eq!(faults(degraded), [("trust", Verdict::Warning)]);
    assert_eq!(faults(|observation| observation.replay = ReplayStatus::NotRegistered), [("replay", Verdict::Warning)]);
    let both = |observation: &mut Observation| {
        degraded(observation);
        observation.replay = ReplayStatus::NotRegistered;
    };
    assert_eq!(faults(both), [("replay", Verdict::Problem), ("trust", Verdict::Warning)]);
    for replay in [ReplayStatus::Unresponsive, ReplayStatus::Unreachable(ConnectError::Refused)] {
        assert_eq!(faults(|observation| observation.replay = replay), [("replay", Verdict::Problem)]);
    }
    for (gaps, has_end) in [(1, true), (0, false)] {
        let replay = ReplayStatus::Answered { first: Some(0), messages: 7, gaps, has_end, has_topic: true };
        assert_eq!(faults(|observation| observation.replay = replay), [("replay", Verdict::Warning)]);
    }
}

#[test]
fn a_leading_and_a_lagging_clock_are_found() {
    for (lag_s, is_fault) in [(-3.0, true), (-0.5, false), (2.0, false), (60.0, true)] {
        let faults = faults(|observation| observation.received.lag_s = Some(lag_s));
        assert_eq!(faults, if is_fault { vec![("clock", Verdict::Warning)] } else { Vec::new() }, "{lag_s}");
    }
}

#[test]
fn one_degraded_rank_makes_the_stream_degraded() {
    let second = |observation: &mut Observation| {
        let trust = Trust::Degraded;
        observation.after.push(Listener { trust, last_error: Some("lost".to_owned()), ..listener() });
    };
    assert_eq!(faults(second), [("trust", Verdict::Warning)]);
    let cold = |observation: &mut Observation| {
        observation.after[0].trust = Trust::Cold;
        observation.after[0].last_seq = None;
    };
    assert_eq!(faults(cold), [("sequence", Verdict::Problem), ("trust", Verdict::Problem)]);
}
