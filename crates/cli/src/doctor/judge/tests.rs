//! Each fault is told apart from the others, and from nothing at all.

use std::time::Duration;

use flash_indexer_core::DpRank;

use super::super::finding::Verdict;
use super::super::heard::HeardSummary;
use super::super::names::NamesSeen;
use super::super::probe::Stream;
use super::*;

fn listener() -> Listener {
    Listener {
        endpoint: "tcp://gpu-1:5557".to_owned(),
        replay_endpoint: Some("tcp://gpu-1:5558".to_owned()),
        engine: Some("vllm".to_owned()),
        status: "connected".to_owned(),
        last_seq: Some(9),
        trust: "exact".to_owned(),
        ..Listener::default()
    }
}

fn healthy() -> Observed {
    let stream = Stream {
        instance: "1".to_owned(),
        model_name: "m".to_owned(),
        tenant_id: "default".to_owned(),
        block_size: 16,
        ranks: vec![0],
        listener: listener(),
    };
    Observed {
        stream,
        endpoint: EndpointSeen::Publisher,
        heard: HeardSummary {
            messages: 3,
            last: Some(9),
            sized_stores: 3,
            names: NamesSeen { equal: 3, ..NamesSeen::default() },
            lag_s: Some(0.001),
            looks_like: Some("vllm"),
            ..HeardSummary::default()
        },
        replay: ReplaySeen::Answered { first: Some(0), messages: 7, gaps: 0, has_end: true, has_topic: true },
        holdings: HoldingsSeen::Equal { chains: 1, blocks: 2 },
        after: vec![listener()],
    }
}

/// What is not well after a change to a healthy stream.
fn faults(change: impl FnOnce(&mut Observed)) -> Vec<(&'static str, Verdict)> {
    let mut observed = healthy();
    change(&mut observed);
    let findings = judge(&observed);
    assert!(findings.iter().all(|finding| (finding.verdict == Verdict::Ok) == finding.fix.is_none()));
    let faults = findings.iter().filter(|finding| finding.verdict != Verdict::Ok);
    faults.map(|finding| (finding.check, finding.verdict)).collect()
}

#[test]
fn a_healthy_engine_has_no_fault_and_an_idle_one_neither() {
    assert_eq!(faults(|_| {}), []);
    assert_eq!(judge(&healthy()).len(), 10, "everything is checked");
    let idle = |observed: &mut Observed| {
        observed.heard = HeardSummary::default();
        observed.holdings = HoldingsSeen::NothingToCompare;
        observed.replay = ReplaySeen::Answered { first: None, messages: 0, gaps: 0, has_end: true, has_topic: false };
        observed.after[0].trust = "cold".to_owned();
        observed.after[0].last_seq = None;
    };
    assert_eq!(faults(idle), []);
}

#[test]
fn an_engine_that_is_gone_is_one_problem_unless_only_doctor_cannot_reach_it() {
    let unreachable = |observed: &mut Observed| observed.endpoint = EndpointSeen::Unreachable(Unreached::Refused);
    assert_eq!(faults(unreachable), [("endpoint", Verdict::Warning)]);
    let gone = |observed: &mut Observed| {
        unreachable(observed);
        observed.replay = ReplaySeen::Unreachable(Unreached::Refused);
        observed.after[0].status = "disconnected".to_owned();
    };
    assert_eq!(faults(gone), [("endpoint", Verdict::Problem)]);
    assert_eq!(
        faults(|observed| observed.after[0].status = "connecting".to_owned()),
        [("connection", Verdict::Problem)]
    );
    assert_eq!(faults(|observed| observed.endpoint = EndpointSeen::Stranger), [("endpoint", Verdict::Problem)]);
    assert_eq!(faults(|observed| observed.after.clear()), [("connection", Verdict::Warning)]);
}

/// The fix of the only fault.
fn fix(change: impl FnOnce(&mut Observed)) -> String {
    let mut observed = healthy();
    change(&mut observed);
    let mut fixes = judge(&observed).into_iter().filter_map(|finding| finding.fix);
    let fix = fixes.next().expect("a fault");
    assert_eq!(fixes.next(), None, "one fault");
    fix
}

#[test]
fn frozen_dead_and_unreachable_engines_have_each_their_own_fix() {
    let gone = |endpoint: EndpointSeen, replay: ReplaySeen, status: &'static str| {
        move |observed: &mut Observed| {
            observed.endpoint = endpoint;
            observed.replay = replay;
            observed.after[0].status = status.to_owned();
        }
    };
    for status in ["connected", "connecting", "disconnected"] {
        let frozen = fix(gone(EndpointSeen::Silent, ReplaySeen::Silent, status));
        assert!(frozen.contains("SIGSTOP"), "{status}: {frozen}");
    }
    for status in ["connecting", "disconnected"] {
        let unreached = |why: Unreached| (EndpointSeen::Unreachable(why.clone()), ReplaySeen::Unreachable(why));
        let (endpoint, replay) = unreached(Unreached::Refused);
        let dead = fix(gone(endpoint, replay, status));
        assert!(dead.contains("start the engine"), "{status}: {dead}");
        let (endpoint, replay) = unreached(Unreached::TimedOut(Duration::from_secs(3)));
        let lost = fix(gone(endpoint, replay, status));
        assert!(lost.contains("network policies") && !lost.contains("start"), "{status}: {lost}");
    }
    let replay = ReplaySeen::Unreachable(Unreached::TimedOut(Duration::from_secs(3)));
    assert!(fix(|observed| observed.replay = replay).contains("firewalls"));
}

#[test]
fn sequences_that_do_not_fit_are_found() {
    assert_eq!(faults(|observed| observed.heard.last = Some(10)), [("sequence", Verdict::Problem)]);
    assert_eq!(faults(|observed| observed.after[0].gaps = 1), [("sequence", Verdict::Warning)]);
    assert_eq!(faults(|observed| observed.heard.restarts = 1), [("sequence", Verdict::Warning)]);
    assert_eq!(faults(|observed| observed.heard.gaps = 1), [], "the service was not concerned");
}

#[test]
fn events_that_mean_something_else_than_registered_are_found() {
    assert_eq!(faults(|observed| observed.heard.other_block_size = Some(32)), [("block size", Verdict::Problem)]);
    let refused_before = |observed: &mut Observed| {
        observed.heard.sized_stores = 0;
        observed.after[0].rejected.insert("block_size_mismatch".to_owned(), 4);
    };
    assert_eq!(faults(refused_before), [("block size", Verdict::Problem)]);
    let unknown = |observed: &mut Observed| {
        observed.after[0].rejected.insert("unknown_medium".to_owned(), 1);
    };
    assert_eq!(faults(unknown), [("events", Verdict::Warning)]);
    let unusable = |observed: &mut Observed| observed.heard.last_unusable = Some("not an event".to_owned());
    assert_eq!(faults(unusable), [("events", Verdict::Warning)]);
    assert_eq!(faults(|observed| observed.heard.looks_like = Some("sglang")), [("engine", Verdict::Warning)]);
    let names = |equal, foreign, broken| faults(|observed| observed.heard.names = NamesSeen { equal, foreign, broken });
    assert_eq!(names(0, 5, 0), [], "names are only compared");
    assert_eq!(names(5, 0, 1), [("hashes", Verdict::Warning)]);
}

#[test]
fn answers_below_what_the_engine_holds_are_a_problem() {
    let less = HoldingsSeen::Less { dp_rank: DpRank(0), expected: 32, answered: 16 };
    assert_eq!(faults(|observed| observed.holdings = less), [("answers", Verdict::Problem)]);
    let failed = HoldingsSeen::Failed("no indexer".to_owned());
    assert_eq!(faults(|observed| observed.holdings = failed), [("answers", Verdict::Problem)]);
}

#[test]
fn a_missing_replay_weighs_more_when_something_was_missed() {
    let degraded = |observed: &mut Observed| observed.after[0].trust = "degraded".to_owned();
    assert_eq!(faults(degraded), [("trust", Verdict::Warning)]);
    assert_eq!(faults(|observed| observed.replay = ReplaySeen::NotRegistered), [("replay", Verdict::Warning)]);
    let both = |observed: &mut Observed| {
        degraded(observed);
        observed.replay = ReplaySeen::NotRegistered;
    };
    assert_eq!(faults(both), [("replay", Verdict::Problem), ("trust", Verdict::Warning)]);
    for replay in [ReplaySeen::Silent, ReplaySeen::Unreachable(Unreached::Refused)] {
        assert_eq!(faults(|observed| observed.replay = replay), [("replay", Verdict::Problem)]);
    }
    for (gaps, has_end) in [(1, true), (0, false)] {
        let replay = ReplaySeen::Answered { first: Some(0), messages: 7, gaps, has_end, has_topic: true };
        assert_eq!(faults(|observed| observed.replay = replay), [("replay", Verdict::Warning)]);
    }
}

#[test]
fn clocks_that_differ_are_found_either_way() {
    for (lag_s, is_fault) in [(-3.0, true), (-0.5, false), (2.0, false), (60.0, true)] {
        let faults = faults(|observed| observed.heard.lag_s = Some(lag_s));
        assert_eq!(faults, if is_fault { vec![("clock", Verdict::Warning)] } else { Vec::new() }, "{lag_s}");
    }
}

#[test]
fn one_rank_that_cannot_be_believed_is_enough() {
    let second = |observed: &mut Observed| {
        let trust = "degraded".to_owned();
        observed.after.push(Listener { trust, last_error: Some("lost".to_owned()), ..listener() });
    };
    assert_eq!(faults(second), [("trust", Verdict::Warning)]);
    let cold = |observed: &mut Observed| {
        observed.after[0].trust = "cold".to_owned();
        observed.after[0].last_seq = None;
    };
    assert_eq!(faults(cold), [("sequence", Verdict::Problem), ("trust", Verdict::Problem)]);
}
