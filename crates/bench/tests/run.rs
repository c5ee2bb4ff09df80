//! A run compares answers, and says where they differ.

use std::fmt::Write;

use flash_indexer_bench::{
    Backend, Contender, DesignContender, EventDensity, Finder, Found, Lane, Measure, Observer, Processes, RunOptions,
    Setup, WorkerEvent, Workload, keep_deepest, run, sweep,
};
use flash_indexer_core::{BlockEvent, LocalHash};
use flash_indexer_designs::Design;
use flash_indexer_sim::FleetOptions;
use flash_indexer_sim::workload::MooncakeTrace;

fn trace_file() -> tempfile::NamedTempFile {
    let mut text = String::new();
    for request in 0..60u64 {
        let hash_ids = [0, 1 + request % 7, 100 + request % 11, 200 + request];
        writeln!(
            text,
            r#"{{"timestamp": {request}, "input_length": 2048, "output_length": 1, "hash_ids": {hash_ids:?}}}"#
        )
        .expect("a string takes text");
    }
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), text).expect("a file");
    file
}

fn trace() -> MooncakeTrace {
    MooncakeTrace::open(trace_file().path()).expect("a trace")
}

fn fleet() -> FleetOptions {
    FleetOptions { workers: 4, blocks: 80, ..FleetOptions::default() }
}

/// Does everything that `Design::DEFAULT` does, but for removals.
struct Forgetful;

struct ForgetfulIndex(Box<dyn Backend>);

struct ForgetfulLane<'a> {
    inner: Box<dyn Lane + 'a>,
    /// For each event whether it is kept.
    kept: std::vec::IntoIter<bool>,
}

impl Contender for Forgetful {
    fn name(&self) -> &str {
        "forgetful"
    }

    fn build(&self, setup: Setup) -> Box<dyn Backend> {
        Box::new(ForgetfulIndex(DesignContender(Design::DEFAULT).build(setup)))
    }
}

impl Backend for ForgetfulIndex {
    fn lane<'a>(&'a self, events: Vec<&'a WorkerEvent>) -> Box<dyn Lane + 'a> {
        let keeps = |event: &&WorkerEvent| !matches!(event.event, BlockEvent::Removed { .. });
        let kept: Vec<bool> = events.iter().map(keeps).collect();
        let inner = self.0.lane(events.into_iter().filter(keeps).collect());
        Box::new(ForgetfulLane { inner, kept: kept.into_iter() })
    }

    fn finder(&self) -> Box<dyn Finder + '_> {
        self.0.finder()
    }
}

impl Lane for ForgetfulLane<'_> {
    fn apply(&mut self, events: usize) {
        let kept = self.kept.by_ref().take(events).filter(|&kept| kept).count();
        self.inner.apply(kept);
    }
}

#[derive(Default)]
struct Steps {
    announced: usize,
    taken: usize,
}

impl Observer for Steps {
    fn steps(&mut self, count: usize) {
        self.announced = count;
    }

    fn step(&mut self, _what: &str) {
        self.taken += 1;
    }
}

fn options() -> RunOptions {
    RunOptions {
        measures: vec![Measure::Ingest, Measure::IngestTwoThreads, Measure::Query, Measure::Mixed, Measure::Holes],
        repeats: 2,
        requests: usize::MAX,
        fleet: fleet(),
        baseline: Design::DEFAULT.as_str().to_owned(),
        processes: Processes::This,
    }
}

#[test]
fn answers_that_differ_are_told() {
    let designs = DesignContender::all();
    let mut contenders: Vec<&dyn Contender> = designs.iter().map(|design| design as &dyn Contender).collect();
    contenders.push(&Forgetful);
    let mut steps = Steps::default();
    let report = run(&contenders, trace_file().path(), &options(), &mut steps).expect("a run");
    assert_eq!(report.measures.len(), options().measures.len());
    // Two fleets, two rounds.
    assert_eq!((steps.announced, steps.taken), (contenders.len() * 4, contenders.len() * 4));
    for measure in &report.measures {
        let differing: Vec<_> = measure.rows.iter().filter(|row| row.difference.is_some()).collect();
        // Some designs claim too much where content repeats, and say so.
        let inexact = [Design::NestedMap, Design::Actor, Design::Inverted].map(Design::as_str);
        let unexpected = differing.iter().filter(|row| !inexact.contains(&row.contender.as_str()));
        let unexpected: Vec<&str> = unexpected.map(|row| row.contender.as_str()).collect();
        assert_eq!(unexpected, ["forgetful"], "{}: {:?}", measure.measure, measure.differences());
        assert!(measure.differences().iter().all(|line| line.contains("answers differ")));
        let cells = measure.cells(&report.baseline);
        assert!(cells.iter().all(|row| row.len() == measure.columns.len() + 1));
        // Of so small an index most figures may be nothing beside the clock; a stored block takes its time.
        let has_ratio = |row: &Vec<String>| row[1].ends_with("x)") || measure.measure != "ingest";
        assert!(cells.last().is_some_and(has_ratio), "figures stand beside the difference: {cells:?}");
    }
}

#[test]
fn a_baseline_must_take_part() {
    let options = RunOptions { baseline: "nobody".to_owned(), ..options() };
    let error = run(&[&Forgetful], trace_file().path(), &options, &mut Steps::default()).expect_err("nobody is there");
    assert!(error.to_string().contains("nobody") && error.to_string().contains("forgetful"), "{error}");
}

#[test]
fn a_sweep_does_all_that_is_offered() {
    let workload = Workload::play(trace().prompts(), &fleet(), 1);
    let point = sweep(&DesignContender(Design::DEFAULT), &workload, 1e9);
    assert!(point.achieved > 0.0 && point.offered >= point.achieved);
}

#[test]
fn density_has_every_block() {
    let workload = Workload::play(trace().prompts(), &fleet(), 1);
    let density = EventDensity::of(&workload.first, 4, 10);
    let bins = || density.workers.iter().flatten();
    assert_eq!(bins().map(|bin| bin.stored).sum::<u64>(), workload.first.stored_blocks());
    assert_eq!(bins().map(|bin| bin.removed).sum::<u64>(), workload.first.removed_blocks());
    let held = workload.first.held_blocks();
    assert_eq!(held.held, workload.first.stored_blocks() - workload.first.removed_blocks());
    assert!(held.distinct < held.held, "workers share a prefix");
}

#[test]
fn the_deepest_are_kept() {
    for (count, kept) in [(0, vec![]), (2, vec![7, 9]), (9, vec![1, 3, 7, 9])] {
        let mut answer = vec![3, 9, 1, 7];
        keep_deepest(&mut answer, count, |&depth| depth);
        answer.sort_unstable();
        assert_eq!(answer, kept);
    }
    assert_eq!(Found::of([0, 3, 4].into_iter()), Found { workers: 2, blocks: 7 });
}

#[test]
fn the_deepest_few_are_the_deepest_of_a_full_answer() {
    let workload = Workload::play(trace().prompts(), &fleet(), 1);
    let backend = DesignContender(Design::DEFAULT).build(Setup { workers: 4, event_threads: 1 });
    let mut lane = backend.lane(workload.first.events.iter().collect());
    lane.apply(workload.first.events.len());
    lane.settle();
    let mut finder = backend.finder();
    let query: &[LocalHash] = &workload.first.requests[50].query;
    finder.load(query);
    finder.find();
    let full = finder.found();
    finder.load(query);
    finder.find_top(2);
    let top = finder.found();
    assert_eq!(top.workers, 2);
    assert!(full.workers == 4 && top.blocks * 2 >= full.blocks, "{top:?} of {full:?}");
}
