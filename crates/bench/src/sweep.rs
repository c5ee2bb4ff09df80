//! Achieved throughput of an index under rising offered load.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use crate::backend::{Contender, Setup};
use crate::workload::{Play, PlayedRequest, Workload};

/// Throughput at one offered load.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SweepPoint {
    /// Offered block operations per second.
    pub offered: f64,
    /// Achieved block operations per second.
    pub achieved: f64,
}

/// Replays a workload's first play, compressed in time to `offered` block operations a second. One thread queries and one
/// writes, each at the trace's times, or at once if it is late. Returns when both are done.
#[must_use]
pub fn sweep(contender: &dyn Contender, workload: &Workload, offered: f64) -> SweepPoint {
    let play = &workload.first;
    let operations = play.block_operations() as f64;
    let pace = Pace::of(play, Duration::from_secs_f64(operations / offered));
    let backend = contender.build(Setup { workers: workload.workers, event_threads: 1 });
    let ready = Barrier::new(2);
    let took = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut lane = backend.lane(play.events.iter().collect());
            ready.wait();
            let start = Instant::now();
            for request in &play.requests {
                pace.wait_for(request, start);
                lane.apply(request.events.len());
            }
            lane.settle();
            start.elapsed()
        });
        let mut finder = backend.finder();
        ready.wait();
        let start = Instant::now();
        for request in &play.requests {
            pace.wait_for(request, start);
            finder.load(&request.query);
            finder.find();
        }
        let queried = start.elapsed();
        writer.join().expect("events are applied without panic").max(queried)
    });
    SweepPoint { offered, achieved: operations / took.as_secs_f64() }
}

/// Schedule of the requests.
struct Pace {
    first_ms: u64,
    /// Seconds of the replay for each millisecond of the trace.
    scale: f64,
}

impl Pace {
    fn of(play: &Play, whole: Duration) -> Self {
        let first_ms = play.requests.first().map_or(0, |request| request.at_ms);
        let last_ms = play.requests.last().map_or(0, |request| request.at_ms);
        Self { first_ms, scale: whole.as_secs_f64() / last_ms.saturating_sub(first_ms).max(1) as f64 }
    }

    /// Waits for a request's time: sleeps in long pauses, and yields in short ones to the index's own threads.
    fn wait_for(&self, request: &PlayedRequest, start: Instant) {
        let due = Duration::from_secs_f64(request.at_ms.saturating_sub(self.first_ms) as f64 * self.scale);
        loop {
            match due.saturating_sub(start.elapsed()) {
                Duration::ZERO => return,
                left if left > SHORT_PAUSE => std::thread::sleep(left - SHORT_PAUSE),
                _ => std::thread::yield_now(),
            }
        }
    }
}

/// Tolerance for sleeps that take longer than requested.
const SHORT_PAUSE: Duration = Duration::from_micros(200);
