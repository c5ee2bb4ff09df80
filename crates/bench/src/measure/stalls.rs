//! Longest waits of events and queries under churn.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::time::{ClockId, clock_gettime};

use super::Sample;
use crate::backend::{Backend, Contender, Finder, Lane, Setup};
use crate::check;
use crate::clock::Clock;
use crate::latencies::Latencies;
use crate::workload::{Play, Workload};

/// An idle writer does deferred work after this many events, until no work is left, or until one of the events has
/// waited for this number of parts.
const EVENTS_WHILE_BUSY: usize = 256;
const PARTS_WHILE_IDLE: usize = 32;

/// Timings of one kind of call: elapsed time, and the thread's own share of it. Other processes lengthen the elapsed
/// time, not the thread's own.
#[derive(Default)]
struct Stalls {
    elapsed: Latencies,
    own: Latencies,
}

impl Stalls {
    fn time(&mut self, clock: Clock, work: impl FnOnce()) {
        let before = thread_ns();
        self.elapsed.record(clock.time(work));
        self.own.record(thread_ns() - before);
    }

    /// 99.99th percentile and maximum, in microseconds, and the maximum of the thread's own time.
    fn values(&self) -> [Option<f64>; 3] {
        let (elapsed, own) = (self.elapsed.figures(), self.own.figures());
        [elapsed.p9999_ns, elapsed.max_ns, own.max_ns].map(|ns| Some(ns / 1_000.0))
    }
}

/// Processor time of this thread, in nanoseconds.
fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// One thread applies all events one by one, as a service's writer does, while another one queries.
pub(super) fn under_churn(contender: &dyn Contender, workload: &Workload, clock: Clock) -> Sample {
    let play = &workload.first;
    let backend = contender.build(Setup { workers: workload.workers, event_threads: 1 });
    let done = AtomicBool::new(false);
    let (events, queries) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let events = apply_one_by_one(&mut *backend.lane(play.events.iter().collect()), play, clock);
            done.store(true, Ordering::Release);
            events
        });
        let queries = query_until(&mut *backend.finder(), play, clock, &done);
        (writer.join().expect("events are applied without panic"), queries)
    });
    Sample {
        values: [events.values(), queries.values()].concat(),
        answers: check::answers(&*backend as &dyn Backend, play),
    }
}

fn apply_one_by_one(lane: &mut dyn Lane, play: &Play, clock: Clock) -> Stalls {
    let mut stalls = Stalls::default();
    for number in 0..play.events.len() {
        stalls.time(clock, || lane.apply(1));
        if number % EVENTS_WHILE_BUSY == 0 {
            for _ in 0..PARTS_WHILE_IDLE {
                let mut more = false;
                stalls.time(clock, || more = lane.maintain());
                if !more {
                    break;
                }
            }
        }
    }
    lane.settle();
    stalls
}

fn query_until(finder: &mut dyn Finder, play: &Play, clock: Clock, done: &AtomicBool) -> Stalls {
    let mut stalls = Stalls::default();
    for request in play.requests.iter().cycle() {
        if done.load(Ordering::Acquire) {
            break;
        }
        finder.load(&request.query);
        stalls.time(clock, || finder.find());
    }
    stalls
}
