//! Time of queries.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flash_indexer_core::LocalHash;

use super::Sample;
use super::ingest::{filled, per_block_ns};
use crate::backend::{Backend, Contender, Finder};
use crate::check;
use crate::clock::Clock;
use crate::latencies::{Latencies, LatencyFigures};
use crate::workload::{Play, Workload};

/// Queries before the first timed one.
const WARM_UP_QUERIES: usize = 500;
/// Time limit of a contender's queries; the remaining ones are skipped.
const BUDGET: Duration = Duration::from_secs(3);

/// Workers that a query is answered for.
#[derive(Debug, Clone, Copy)]
pub(super) enum QueryKind {
    /// All workers.
    All,
    /// The given number of workers with the longest matches.
    Top(usize),
}

pub(super) fn quiet(contender: &dyn Contender, workload: &Workload, clock: Clock) -> Sample {
    let (backend, _) = filled(contender, workload);
    let figures = query_all(&*backend, &workload.first, clock, QueryKind::All);
    Sample {
        values: [figures.mean_ns, figures.p50_ns, figures.p99_ns, figures.max_ns].map(Some).to_vec(),
        answers: check::answers(&*backend, &workload.first),
    }
}

pub(super) fn with_ingest(contender: &dyn Contender, workload: &Workload, clock: Clock) -> Sample {
    let (backend, took) = filled(contender, workload);
    let figures = query_all(&*backend, &workload.first, clock, QueryKind::All);
    let ingest = per_block_ns(took, workload.first.stored_blocks());
    Sample {
        values: [ingest, figures.p50_ns, figures.p99_ns].map(Some).to_vec(),
        answers: check::answers(&*backend, &workload.first),
    }
}

pub(super) fn under_writer(contender: &dyn Contender, workload: &Workload, clock: Clock) -> Sample {
    let (backend, _) = filled(contender, workload);
    let (busy, wrote_in) = query_while_writing(&*backend, &workload.first, &workload.again, clock);
    // The same number of queries on the index after the writer has finished.
    let quiet = query_in_a_loop(&*backend, &workload.first, clock, |queries| queries < busy.count);
    let p99_ratio = busy.p99_ns / quiet.p99_ns.max(1.0);
    let writer_ns = per_block_ns(wrote_in, workload.again.stored_blocks());
    let values = [busy.mean_ns, busy.p50_ns, busy.p99_ns, busy.max_ns, p99_ratio, writer_ns];
    Sample { values: values.map(Some).to_vec(), answers: check::answers(&*backend, &workload.first) }
}

/// Runs the queries of `queried` until all events of `written` are applied, and returns the time of writing.
fn query_while_writing(
    backend: &dyn Backend,
    queried: &Play,
    written: &Play,
    clock: Clock,
) -> (LatencyFigures, Duration) {
    let done = AtomicBool::new(false);
    let ready = Barrier::new(2);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut lane = backend.lane(written.events.iter().collect());
            ready.wait();
            let start = Instant::now();
            lane.apply(written.events.len());
            lane.settle();
            done.store(true, Ordering::Release);
            start.elapsed()
        });
        ready.wait();
        let figures = query_in_a_loop(backend, queried, clock, |_| !done.load(Ordering::Acquire));
        (figures, writer.join().expect("events are applied without panic"))
    })
}

/// Runs the queries of a play in a loop, while `continues` is true for the number of queries so far.
fn query_in_a_loop(
    backend: &dyn Backend,
    play: &Play,
    clock: Clock,
    continues: impl Fn(u64) -> bool,
) -> LatencyFigures {
    let mut finder = backend.finder();
    let mut latencies = Latencies::default();
    for (asked, request) in (0..).zip(play.requests.iter().cycle()) {
        if !continues(asked) {
            break;
        }
        latencies.record(timed(&mut *finder, &request.query, clock, QueryKind::All));
    }
    latencies.figures()
}

/// Runs all queries of a play, one after the other.
pub(super) fn query_all(backend: &dyn Backend, play: &Play, clock: Clock, kind: QueryKind) -> LatencyFigures {
    let mut finder = backend.finder();
    let mut latencies = Latencies::default();
    let start = Instant::now();
    for request in play.requests.iter().take(WARM_UP_QUERIES) {
        timed(&mut *finder, &request.query, clock, kind);
        if start.elapsed() > BUDGET {
            break;
        }
    }
    for request in &play.requests {
        latencies.record(timed(&mut *finder, &request.query, clock, kind));
        if start.elapsed() > BUDGET {
            break;
        }
    }
    latencies.figures()
}

fn timed(finder: &mut dyn Finder, query: &[LocalHash], clock: Clock, kind: QueryKind) -> u64 {
    finder.load(query);
    clock.time(|| match kind {
        QueryKind::All => finder.find(),
        QueryKind::Top(count) => finder.find_top(count),
    })
}
