//! Filling of an empty index from a file of events, in a measuring process.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::backend::{Contender, MatchTotals, Setup, WorkerEvent};
use crate::check;
use crate::resident::resident_bytes;
use crate::stream::{Record, read_record};

/// Result of filling an index from a file of events.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FillResult {
    /// Growth of the resident size, in bytes; none where the system does not report it.
    pub(crate) grown_by: Option<u64>,
    pub(crate) answers: MatchTotals,
}

/// Events that are in memory at a time.
const EVENTS_PER_BATCH: usize = 64;

/// Fills an empty index from a file of events, and then runs the file's queries.
pub(crate) fn fill_from_file(contender: &dyn Contender, workers: usize, events: &Path) -> io::Result<FillResult> {
    let mut file = BufReader::new(File::open(events)?);
    let mut record = read_record(&mut file)?;
    let backend = contender.build(Setup { workers, event_threads: 1 });
    let before = resident_bytes();
    let mut batch: Vec<WorkerEvent> = Vec::with_capacity(EVENTS_PER_BATCH);
    while let Some(Record::Event(event)) = record {
        batch.push(event);
        record = read_record(&mut file)?;
        if batch.len() == EVENTS_PER_BATCH || !matches!(record, Some(Record::Event(_))) {
            let mut lane = backend.lane(batch.iter().collect());
            lane.apply(batch.len());
            lane.settle();
            drop(lane);
            batch.clear();
        }
    }
    let grown_by = before.zip(resident_bytes()).map(|(before, after)| after.saturating_sub(before));
    let mut answers = MatchTotals::default();
    while let Some(Record::Query(query)) = record {
        answers += check::answers_to(&*backend, std::iter::once(query.as_slice()));
        record = read_record(&mut file)?;
    }
    Ok(FillResult { grown_by, answers })
}
