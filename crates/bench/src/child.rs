//! Measuring in separate processes, so no index reuses memory that another index has freed.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use flash_indexer_sim::FleetOptions;
use flash_indexer_sim::workload::MooncakeTrace;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::backend::Contender;
use crate::clock::Clock;
use crate::fill::fill_from_file;
use crate::measure::{Measure, Sample};

/// Command of a measuring process, which must only call [`serve_child`].
#[derive(Debug, Clone)]
pub struct Child {
    /// The program, usually the current one.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

/// Task of a measuring process, read from its standard input.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Memory: fill an index from a file of events.
    Fill { contender: String, workers: usize, events: PathBuf },
    /// Measures with a common scenario, one after the other.
    Time { contender: String, measures: Vec<Measure>, play: TracePlay },
}

/// The trace and the fleet from which a measuring process generates its events.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct TracePlay {
    pub(crate) trace: PathBuf,
    pub(crate) requests: usize,
    pub(crate) fleet: FleetOptions,
}

impl Child {
    pub(crate) fn run<T: DeserializeOwned>(&self, task: &Task, environment: &[(&str, &str)]) -> io::Result<T> {
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(&serde_json::to_vec(task)?)?;
        }
        let output = child.wait_with_output()?;
        if !output.status.success() {
            return Err(io::Error::other(format!("the measuring process exited with {}", output.status)));
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

/// Runs the task on standard input, and prints its result.
///
/// # Errors
///
/// When the task cannot be read, its contender is not in `contenders`, or its files cannot be read.
pub fn serve_child(contenders: &[&dyn Contender]) -> io::Result<()> {
    let task: Task = serde_json::from_reader(io::stdin().lock())?;
    let find = |name: &str| {
        let found = contenders.iter().find(|contender| contender.name() == name);
        found.ok_or_else(|| io::Error::other(format!("unknown contender {name:?}")))
    };
    let output = io::stdout().lock();
    match task {
        Task::Fill { contender, workers, events } => {
            serde_json::to_writer(output, &fill_from_file(*find(&contender)?, workers, &events)?)?;
        }
        Task::Time { contender, measures, play } => {
            serde_json::to_writer(output, &time(*find(&contender)?, &measures, &play)?)?;
        }
    }
    Ok(())
}

/// A sample of each measure that the contender supports.
fn time(contender: &dyn Contender, measures: &[Measure], play: &TracePlay) -> io::Result<Vec<Option<Sample>>> {
    let Some(first) = measures.first() else { return Ok(Vec::new()) };
    let trace = MooncakeTrace::open(&play.trace).map_err(io::Error::other)?;
    let workload = first.scenario().play(&trace, play.requests, &play.fleet);
    let clock = Clock::calibrated();
    Ok(measures.iter().map(|measure| measure.sample(contender, &workload, clock)).collect())
}
