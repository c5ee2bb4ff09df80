//! Memory of an index, measured in a separate process.

use std::io::{self, BufWriter, Write};

use crate::check;
use crate::child::{Child, Task};
use crate::fill::FillResult;
use crate::measure::Sample;
use crate::stream::{write_event, write_query};
use crate::workload::{HeldBlocks, Workload};

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
