//! Concurrent queries and events, on two threads.

use std::sync::Barrier;
use std::time::Duration;

use super::Sample;
use super::span::{Span, took};
use crate::backend::{Backend, Contender, Setup, Writers};
use crate::check;
use crate::workload::Workload;

pub(super) fn replay(contender: &dyn Contender, workload: &Workload) -> Sample {
    let operations = workload.first.block_operations() as f64;
    let rate = |took: Duration| operations / took.as_secs_f64() / 1e6;
    let setup = |event_threads| Setup { workers: workload.workers, event_threads };
    let backend = contender.build(setup(1));
    let apart = rate(one_reads_one_writes(&*backend, workload));
    let answers = check::answers(&*backend, &workload.first);
    drop(backend);
    let together = (contender.writers() == Writers::Many).then(|| {
        let backend = contender.build(setup(2));
        rate(both_read_and_write(&*backend, workload))
    });
    let better = together.map_or(apart, |together| together.max(apart));
    Sample { values: vec![Some(apart), together, Some(better)], answers }
}

/// One thread applies all events, the other one runs all queries; the slower one ends the run.
fn one_reads_one_writes(backend: &dyn Backend, workload: &Workload) -> Duration {
    let play = &workload.first;
    let ready = Barrier::new(2);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut lane = backend.lane(play.events.iter().collect());
            ready.wait();
            Span::of(|| {
                lane.apply(play.events.len());
                lane.settle();
            })
        });
        let mut finder = backend.finder();
        ready.wait();
        let queried = Span::of(|| {
            for request in &play.requests {
                finder.load(&request.query);
                finder.find();
            }
        });
        took([queried, writer.join().expect("events are applied without panic")])
    })
}

/// Each of two threads queries and then applies the requests of half of the workers.
fn both_read_and_write(backend: &dyn Backend, workload: &Workload) -> Duration {
    let play = &workload.first;
    let ready = Barrier::new(2);
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|half| {
            let ready = &ready;
            scope.spawn(move || {
                let mut lane = backend.lane(play.events_of(|worker| worker % 2 == half));
                let mut finder = backend.finder();
                ready.wait();
                Span::of(|| {
                    for request in play.requests.iter().filter(|request| request.rank.worker.0 % 2 == half) {
                        finder.load(&request.query);
                        finder.find();
                        lane.apply(request.events.len());
                    }
                    lane.settle();
                })
            })
        });
        took(threads.map(|thread| thread.join().expect("a replay does not panic")))
    })
}
