//! Time of events.

use std::sync::Barrier;
use std::time::Duration;

use super::Sample;
use super::span::{Span, took};
use crate::backend::{Backend, Contender, Setup, WorkerEvent, Writers};
use crate::check;
use crate::workload::Workload;

pub(super) fn one_thread(contender: &dyn Contender, workload: &Workload) -> Sample {
    let (backend, took) = filled(contender, workload);
    sample(&*backend, workload, took)
}

pub(super) fn two_threads(contender: &dyn Contender, workload: &Workload) -> Option<Sample> {
    if contender.writers() == Writers::One {
        return None;
    }
    let backend = contender.build(Setup { workers: workload.workers, event_threads: 2 });
    let halves = [0, 1].map(|half| workload.first.events_of(|worker| worker % 2 == half));
    let took = apply_concurrently(&*backend, halves.into());
    Some(sample(&*backend, workload, took))
}

fn sample(backend: &dyn Backend, workload: &Workload, took: Duration) -> Sample {
    let (stored, removed) = (workload.first.stored_blocks(), workload.first.removed_blocks());
    let rate = (stored + removed) as f64 / took.as_secs_f64() / 1e6;
    Sample {
        values: vec![Some(per_block_ns(took, stored)), Some(rate)],
        answers: check::answers(backend, &workload.first),
    }
}

/// An index to which one thread has applied all events of the first play, and the time taken.
pub(super) fn filled(contender: &dyn Contender, workload: &Workload) -> (Box<dyn Backend>, Duration) {
    let backend = contender.build(Setup { workers: workload.workers, event_threads: 1 });
    let took = apply_concurrently(&*backend, vec![workload.first.events.iter().collect()]);
    (backend, took)
}

pub(super) fn per_block_ns(took: Duration, blocks: u64) -> f64 {
    took.as_nanos() as f64 / blocks.max(1) as f64
}

/// Applies each list of events on its own thread. Returns the time from the common start until all events are visible to queries.
fn apply_concurrently(backend: &dyn Backend, lists: Vec<Vec<&WorkerEvent>>) -> Duration {
    let ready = Barrier::new(lists.len());
    let apply = |events: Vec<&WorkerEvent>| {
        let count = events.len();
        let mut lane = backend.lane(events);
        ready.wait();
        Span::of(|| {
            lane.apply(count);
            lane.settle();
        })
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = lists.into_iter().map(|events| scope.spawn(|| apply(events))).collect();
        took(threads.into_iter().map(|thread| thread.join().expect("events are applied without panic")))
    })
}
