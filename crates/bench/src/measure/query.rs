//! How long queries take.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flash_indexer_core::LocalHash;

use super::Sample;
use super::ingest::{fill, per_block_ns};
use crate::backend::{Backend, Contender, Finder, Setup};
use crate::check;
use crate::clock::Clock;
use crate::latencies::{Latencies, LatencyFigures};
use crate::workload::{Play, Workload};

/// Queries before the first timed one.
const WARM_UP_QUERIES: usize = 500;
/// A contender that is slower than this lets the rest of its queries go.
const BUDGET: Duration = Duration::from_secs(3);

/// For whom a query is answered.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ask {
    /// Every worker.
    All,
    /// So many workers with the deepest matches.
    Top(usize),
}

pub(super) fn quiet(contender: &dyn Contender, workload: &Workload, clock: Clock) -> Sample {
    let backend = contender.build(Setup { workers: workload.workers, event_threads: 1 });
    fill(&*backend, &workload.first);
    let figures = ask_all(&*backend, &workload.first, clock, Ask::All);
    Sample {
        values: [figures.mean_ns, figures.p50_ns, figures.p99_ns, figures.max_ns].map(Some).to_vec(),
        answers: check::answers(&*backend, &workload.first),
    }
}

pub(super) fn with_ingest(contender: &dyn Contender, workload: &Workload, clock: Clock) -> Sample {
    let backend = contender.build(Setup { workers: workload.workers, event_threads: 1 });
    let took = fill(&*backend, &workload.first);
    let figures = ask_all(&*backend, &workload.first, clock, Ask::All);
    let ingest = per_block_ns(took, workload.first.stored_blocks());
    Sample {
        values: [ingest, figures.p50_ns, figures.p99_ns].map(Some).to_vec(),
        answers: check::answers(&*backend, &workload.first),
    }
}

pub(super) fn under_writer(contender: &dyn Contender, workload: &Workload, clock: Clock) -> Sample {
    let backend = contender.build(Setup { workers: workload.workers, event_threads: 1 });
    fill(&*backend, &workload.first);
    let (busy, wrote_in) = ask_while_writing(&*backend, &workload.first, &workload.again, clock);
    // As many queries again, of the index as the writer has left it.
    let quiet = ask_round_and_round(&*backend, &workload.first, clock, |asked| asked < busy.count);
    let p99_ratio = busy.p99_ns / quiet.p99_ns.max(1.0);
    let writer_ns = per_block_ns(wrote_in, workload.again.stored_blocks());
    let values = [busy.mean_ns, busy.p50_ns, busy.p99_ns, busy.max_ns, p99_ratio, writer_ns];
    Sample { values: values.map(Some).to_vec(), answers: check::answers(&*backend, &workload.first) }
}

/// Asks the queries of `asked` until all events of `written` are applied, and says how long that took.
fn ask_while_writing(backend: &dyn Backend, asked: &Play, written: &Play, clock: Clock) -> (LatencyFigures, Duration) {
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
        let figures = ask_round_and_round(backend, asked, clock, |_| !done.load(Ordering::Acquire));
        (figures, writer.join().expect("events are applied without panic"))
    })
}

/// Asks the queries of a play again and again, while `goes_on` agrees to the number of queries so far.
fn ask_round_and_round(
    backend: &dyn Backend,
    play: &Play,
    clock: Clock,
    goes_on: impl Fn(u64) -> bool,
) -> LatencyFigures {
    let mut finder = backend.finder();
    let mut latencies = Latencies::default();
    for (asked, request) in (0..).zip(play.requests.iter().cycle()) {
        if !goes_on(asked) {
            break;
        }
        latencies.record(timed(&mut *finder, &request.query, clock, Ask::All));
    }
    latencies.figures()
}

/// Asks all queries of a play, one after the other.
pub(super) fn ask_all(backend: &dyn Backend, play: &Play, clock: Clock, ask: Ask) -> LatencyFigures {
    let mut finder = backend.finder();
    let mut latencies = Latencies::default();
    let start = Instant::now();
    for request in play.requests.iter().take(WARM_UP_QUERIES) {
        timed(&mut *finder, &request.query, clock, ask);
        if start.elapsed() > BUDGET {
            break;
        }
    }
    for request in &play.requests {
        latencies.record(timed(&mut *finder, &request.query, clock, ask));
        if start.elapsed() > BUDGET {
            break;
        }
    }
    latencies.figures()
}

fn timed(finder: &mut dyn Finder, query: &[LocalHash], clock: Clock, ask: Ask) -> u64 {
    finder.load(query);
    clock.time(|| match ask {
        Ask::All => finder.find(),
        Ask::Top(count) => finder.find_top(count),
    })
}
