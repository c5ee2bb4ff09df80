//! Memory of an index, measured in a process that has nothing else.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::backend::{Contender, Found, Setup, WorkerEvent};
use crate::check;
use crate::child::{Child, Task};
use crate::measure::Sample;
use crate::resident::resident_bytes;
use crate::stream::{Record, read_record, write_event, write_query};
use crate::workload::{HeldBlocks, Workload};

/// What an index holds after a file of events.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Filled {
    /// By how much the resident size grew, in bytes; none where the system does not say.
    grown_by: Option<u64>,
    answers: Found,
}

/// Events that are in memory at a time.
const EVENTS_AT_A_TIME: usize = 64;

/// Fills an empty index from a file of events, and asks the queries that follow them.
pub(crate) fn fill_from_file(contender: &dyn Contender, workers: usize, events: &Path) -> io::Result<Filled> {
    let mut file = BufReader::new(File::open(events)?);
    let mut record = read_record(&mut file)?;
    let backend = contender.build(Setup { workers, event_threads: 1 });
    let before = resident_bytes();
    let mut batch: Vec<WorkerEvent> = Vec::with_capacity(EVENTS_AT_A_TIME);
    while let Some(Record::Event(event)) = record {
        batch.push(event);
        record = read_record(&mut file)?;
        if batch.len() == EVENTS_AT_A_TIME || !matches!(record, Some(Record::Event(_))) {
            let mut lane = backend.lane(batch.iter().collect());
            lane.apply(batch.len());
            lane.settle();
            drop(lane);
            batch.clear();
        }
    }
    let grown_by = before.zip(resident_bytes()).map(|(before, after)| after.saturating_sub(before));
    let mut answers = Found::default();
    while let Some(Record::Query(query)) = record {
        answers += check::answers_to(&*backend, std::iter::once(query.as_slice()));
        record = read_record(&mut file)?;
    }
    Ok(Filled { grown_by, answers })
}

/// A file of events for children, and what they hold at the end.
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
        // Otherwise the first byte of a region makes two MiB of it resident, whoever asked for it.
        let filled: Filled = child.run(&task, &[("MIMALLOC_ALLOW_THP", "0")])?;
        let per = |blocks: u64| filled.grown_by.map(|bytes| bytes as f64 / blocks.max(1) as f64);
        let mebibytes = filled.grown_by.map(|bytes| bytes as f64 / f64::from(1 << 20));
        Ok(Sample { values: vec![per(self.held.distinct), per(self.held.held), mebibytes], answers: filled.answers })
    }
}
