//! Runs all measures of all contenders, in turn.

use std::io;
use std::path::Path;

use flash_indexer_sim::FleetOptions;
use flash_indexer_sim::workload::{MooncakeTrace, TraceError};

use crate::backend::Contender;
use crate::child::{Child, Task, TracePlay};
use crate::clock::Clock;
use crate::measure::{Measure, Sample};
use crate::memory::MemoryInput;
use crate::report::{Difference, MeasureReport, Report, Row};
use crate::workload::Workload;

/// Options of a run.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// The measures. Consecutive measures with a common scenario share one simulated fleet.
    pub measures: Vec<Measure>,
    /// Rounds, at least one; results are medians over them.
    pub repeats: usize,
    /// Requests of the trace that are played.
    pub requests: usize,
    /// The default fleet; scenarios derive their own from it.
    pub fleet: FleetOptions,
    /// The contender that others are compared with.
    pub baseline: String,
    /// Measuring processes.
    pub processes: Processes,
}

/// Measuring processes.
#[derive(Debug, Clone)]
pub enum Processes {
    /// The current process. Indexes reuse memory of earlier ones, and memory cannot be measured.
    This,
    /// A new process for each contender in each round.
    Own(Child),
}

/// Receives the progress of a run.
pub trait Observer {
    /// The run has `count` steps.
    fn steps(&mut self, count: usize);
    /// The next step begins.
    fn step(&mut self, name: &str);
}

/// Failure of a run.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The baseline is not a contender.
    #[error("the baseline {0:?} does not take part; choose one of {1}")]
    Baseline(String, String),
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The trace is empty.
    #[error("the trace has no request; give a trace with at least one")]
    Empty,
    /// A measuring process failed.
    #[error("failed to measure {} of {contender}: {source}", .measure.as_str())]
    Process {
        /// The measure.
        measure: Measure,
        /// The contender.
        contender: String,
        /// Why.
        source: io::Error,
    },
}

/// Measures all contenders, in each round one after the other: a disturbance of the machine affects all of them.
///
/// # Errors
///
/// When the baseline is not a contender, the trace cannot be read or is empty, or a measuring process fails.
pub fn run(
    contenders: &[&dyn Contender],
    trace: &Path,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<Report, BenchError> {
    let Some(baseline) = contenders.iter().position(|contender| contender.name() == options.baseline) else {
        let names: Vec<_> = contenders.iter().map(|contender| contender.name()).collect();
        return Err(BenchError::Baseline(options.baseline.clone(), names.join(", ")));
    };
    let opened = MooncakeTrace::open(trace)?;
    if opened.is_empty() {
        return Err(BenchError::Empty);
    }
    let (requests, fleet) = (options.requests.min(opened.len()), options.fleet.clone());
    let play = TracePlay { trace: trace.to_owned(), requests, fleet };
    let groups = options.measures.chunk_by(|one, other| one.scenario() == other.scenario());
    let groups = groups.flat_map(|group| group.chunk_by(|one, other| one.is_memory() == other.is_memory()));
    observer.steps(groups.clone().count() * options.repeats.max(1) * contenders.len());
    let clock = Clock::calibrated();
    let mut measures = Vec::new();
    for group in groups {
        let runner = GroupRunner::of(group, &play, &opened, &options.processes, clock)?;
        let mut samples = vec![vec![Vec::new(); contenders.len()]; group.len()];
        for _ in 0..options.repeats.max(1) {
            for (number, contender) in contenders.iter().enumerate() {
                let names: Vec<_> = group.iter().map(|measure| measure.as_str()).collect();
                observer.step(&format!("{}: {}", names.join(", "), contender.name()));
                let taken = runner.measure(*contender, group).map_err(|source| failed(group, *contender, source))?;
                for (samples, sample) in samples.iter_mut().zip(taken) {
                    samples[number].extend(sample);
                }
            }
        }
        let summaries = group.iter().zip(&samples);
        measures.extend(summaries.map(|(&measure, samples)| summary(measure, contenders, baseline, samples)));
    }
    let setting = setting(options, play.requests, clock);
    Ok(Report { setting, baseline: options.baseline.clone(), measures })
}

fn failed(group: &[Measure], contender: &dyn Contender, source: io::Error) -> BenchError {
    BenchError::Process { measure: group[0], contender: contender.name().to_owned(), source }
}

/// Runs a group of measures with a common scenario.
enum GroupRunner<'a> {
    InProcess { workload: Workload, clock: Clock },
    Child { child: &'a Child, play: &'a TracePlay },
    MemoryChild { child: &'a Child, input: MemoryInput, workers: usize },
}

impl<'a> GroupRunner<'a> {
    fn of(
        group: &[Measure],
        play: &'a TracePlay,
        trace: &MooncakeTrace,
        processes: &'a Processes,
        clock: Clock,
    ) -> Result<Self, BenchError> {
        let measure = group[0];
        let workload = || measure.scenario().play(trace, play.requests, &play.fleet);
        let problem = |source| BenchError::Process { measure, contender: "all contenders".to_owned(), source };
        match processes {
            Processes::This if measure.is_memory() => {
                Err(problem(io::Error::other("memory needs a separate process for each contender")))
            }
            Processes::This => Ok(Self::InProcess { workload: workload(), clock }),
            Processes::Own(child) if measure.is_memory() => {
                let workload = workload();
                let input = MemoryInput::write(&workload).map_err(problem)?;
                Ok(Self::MemoryChild { child, input, workers: workload.workers })
            }
            Processes::Own(child) => Ok(Self::Child { child, play }),
        }
    }

    /// A sample of each measure that the contender supports.
    fn measure(&self, contender: &dyn Contender, group: &[Measure]) -> io::Result<Vec<Option<Sample>>> {
        match self {
            Self::InProcess { workload, clock } => {
                Ok(group.iter().map(|measure| measure.sample(contender, workload, *clock)).collect())
            }
            Self::Child { child, play } => {
                let contender = contender.name().to_owned();
                child.run(&Task::Time { contender, measures: group.to_vec(), play: (*play).clone() }, &[])
            }
            Self::MemoryChild { child, input, workers } => {
                let is_supported =
                    |measure: &Measure| measure.holders_of_a_block() <= contender.holders_of_a_block_max();
                let one = || input.measure(child, contender.name(), *workers);
                group.iter().map(|measure| is_supported(measure).then(one).transpose()).collect()
            }
        }
    }
}

fn summary(measure: Measure, contenders: &[&dyn Contender], baseline: usize, samples: &[Vec<Sample>]) -> MeasureReport {
    let columns = measure.columns();
    let expected = samples[baseline].first().map(|sample| sample.answers);
    let row = |(contender, samples): (&&dyn Contender, &Vec<Sample>)| {
        let differs = |sample: &Sample| {
            let (found, expected) = (sample.answers, expected?);
            (found != expected).then_some(Difference { found, expected })
        };
        Row {
            contender: contender.name().to_owned(),
            values: (0..columns.len()).map(|column| median(samples, column)).collect(),
            difference: samples.iter().find_map(differs),
        }
    };
    MeasureReport {
        measure: measure.as_str().to_owned(),
        method: format!("{} Figures are medians; rounds: {}.", measure.method(), samples[baseline].len()),
        columns: columns.iter().map(|&name| name.to_owned()).collect(),
        rows: contenders.iter().zip(samples).map(row).collect(),
    }
}

fn median(samples: &[Sample], column: usize) -> Option<f64> {
    let mut values: Vec<f64> = samples.iter().filter_map(|sample| sample.values[column]).collect();
    values.sort_unstable_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    Some(if values.len().is_multiple_of(2) { f64::midpoint(values[values.len() / 2 - 1], upper) } else { upper })
}

/// Machine and options of a run, for the report.
fn setting(options: &RunOptions, requests: usize, clock: Clock) -> Vec<(String, String)> {
    let fleet = &options.fleet;
    let processor = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    let cores = std::thread::available_parallelism().map_or_else(|_| "unknown".to_owned(), |cores| cores.to_string());
    let processes = match options.processes {
        Processes::This => "one for all",
        Processes::Own(_) => "one for each index in each round",
    };
    let pairs = [
        ("processor", processor.unwrap_or_else(|| "unknown".to_owned())),
        ("cores", cores),
        ("requests", requests.to_string()),
        ("workers", fleet.workers.to_string()),
        ("blocks of a worker's cache", fleet.blocks.to_string()),
        ("blocks of a hash id (512 tokens)", fleet.blocks_per_hash_id.to_string()),
        ("processes", processes.to_owned()),
        ("taken off each timed query", format!("{} ns, what reading the clock costs", clock.overhead_ns)),
    ];
    pairs.map(|(name, value)| (name.to_owned(), value)).to_vec()
}
