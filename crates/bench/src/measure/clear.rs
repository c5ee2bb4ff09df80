//! Time of clearing a worker.

use std::time::Instant;

use flash_indexer_core::BlockEvent;
use flash_indexer_sim::rank_of;

use super::Sample;
use super::ingest::filled;
use crate::backend::{Contender, WorkerEvent};
use crate::check;
use crate::workload::Workload;

/// Workers that are cleared, one after the other.
const CLEARED_MAX: usize = 32;

pub(super) fn one_worker(contender: &dyn Contender, workload: &Workload) -> Sample {
    let (backend, _) = filled(contender, workload);
    let step = workload.workers.div_ceil(CLEARED_MAX).max(1);
    let cleared = |worker| WorkerEvent { rank: rank_of(worker), event: BlockEvent::Cleared };
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
