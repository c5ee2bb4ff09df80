//! Queries that match thousands of workers.

use super::Sample;
use super::ingest::filled;
use super::query::{QueryKind, query_all};
use crate::backend::Contender;
use crate::check;
use crate::clock::Clock;
use crate::workload::Workload;

/// Candidates that a router asks for.
const TOP: usize = 8;

pub(super) fn full_and_top(contender: &dyn Contender, workload: &Workload, clock: Clock) -> Sample {
    let (backend, _) = filled(contender, workload);
    let full = query_all(&*backend, &workload.first, clock, QueryKind::All);
    let top = query_all(&*backend, &workload.first, clock, QueryKind::Top(TOP));
    let mut answers = check::answers(&*backend, &workload.first);
    let mut finder = backend.finder();
    for query in check::queries(&workload.first) {
        finder.load(query);
        finder.find_top(TOP);
        answers += finder.totals();
    }
    let values = [full.mean_ns, full.p50_ns, full.p99_ns, top.mean_ns, top.p50_ns, top.p99_ns];
    Sample { values: values.map(Some).to_vec(), answers }
}
