//! Time of clearing a worker.

use std::time::Instant;

use flash_indexer_core::{BlockEvent, DpRank, WorkerId, WorkerRank};

use super::Sample;
use super::ingest::fill;
use crate::backend::{Contender, Setup, WorkerEvent};
use crate::check;
use crate::workload::Workload;

/// Workers that are cleared, one after the other.
const CLEARED_MAX: usize = 32;

pub(super) fn one_worker(contender: &dyn Contender, workload: &Workload) -> Sample {
    let backend = contender.build(Setup { workers: workload.workers, event_threads: 1 });
    fill(&*backend, &workload.first);
    let step = workload.workers.div_ceil(CLEARED_MAX).max(1);
    let rank = |worker: usize| WorkerRank { worker: WorkerId(worker as u64), dp_rank: DpRank(0) };
    let cleared = |worker| WorkerEvent { rank: rank(worker), event: BlockEvent::Cleared };
    let events: Vec<WorkerEvent> = (0..workload.workers).step_by(step).map(cleared).collect();
    let mut lane = backend.lane(events.iter().collect());
    let mut took_us: Vec<f64> = Vec::with_capacity(events.len());
    for _ in &events {
        let start = Instant::now();
        lane.apply(1);
        lane.settle();
        took_us.push(start.elapsed().as_secs_f64() * 1e6);
    }
    drop(lane);
    took_us.sort_unstable_by(f64::total_cmp);
    Sample { values: vec![Some(took_us[took_us.len() / 2])], answers: check::answers(&*backend, &workload.first) }
}
