//! Memory of an index, measured in a separate process.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::backend::{Contender, MatchTotals, Setup, WorkerEvent};
use crate::check;
use crate::child::{Child, Task};
use crate::measure::Sample;
use crate::resident::resident_bytes;
use crate::stream::{Record, read_record, write_event, write_query};
use crate::workload::{HeldBlocks, Workload};

/// Result of filling an index from a file of events.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FillResult {
    /// Growth of the resident size, in bytes; none where the system does not report it.
    grown_by: Option<u64>,
    answers: MatchTotals,
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

/// A file of events for measuring processes, and the blocks that are held after them.
pub(crate) struct MemoryInput {
    file: tempfile::NamedTempFile,
    held: HeldBlocks,
}

impl MemoryInput {
    pub(crate) fn write(workload: &Workload) -> io::Result<Self> {
        let mut file = tempfile::NamedTempFile::new()?;
        let mut to = BufWriter::new(file.as_file_mut());
        workload.first.events.iter().try_for_each(|event| write_event(&mut to, event))?;
        check::queries(&workload.first).try_for_each(|query| write_query(&mut to, query))?;
        to.flush()?;
        drop(to);
        Ok(Self { file, held: workload.first.held_blocks() })
    }

    /// Measures a contender in a fresh process.
    pub(crate) fn measure(&self, child: &Child, contender: &str, workers: usize) -> io::Result<Sample> {
        let task = Task::Fill { contender: contender.to_owned(), workers, events: self.file.path().to_owned() };
        // With huge pages, the first byte of a region makes 2 MiB of it resident, for any allocation.
        let filled: FillResult = child.run(&task, &[("MIMALLOC_ALLOW_THP", "0")])?;
        let per = |blocks: u64| filled.grown_by.map(|bytes| bytes as f64 / blocks.max(1) as f64);
        let mebibytes = filled.grown_by.map(|bytes| bytes as f64 / f64::from(1 << 20));
        Ok(Sample { values: vec![per(self.held.distinct), per(self.held.held), mebibytes], answers: filled.answers })
    }
}
