//! All measures of all contenders, in turns.

use std::io;

use flash_indexer_sim::FleetOptions;
use flash_indexer_sim::workload::MooncakeTrace;

use crate::backend::Contender;
use crate::clock::Clock;
use crate::measure::{Measure, Sample, Scenario};
use crate::memory::{MemoryChild, MemoryInput};
use crate::report::{Difference, MeasureReport, Report, Row};
use crate::workload::Workload;

/// What is measured, and how often.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// The measures; each fleet is played once for those that follow each other and share it.
    pub measures: Vec<Measure>,
    /// Rounds, at least one; figures are medians over them.
    pub repeats: usize,
    /// Requests of the trace that are played.
    pub requests: usize,
    /// The ordinary fleet; measures that are about another one change what they are about.
    pub fleet: FleetOptions,
    /// The contender that others are compared with.
    pub baseline: String,
    /// How memory is measured.
    pub memory_child: MemoryChild,
}

/// Is told how far a run is.
pub trait Observer {
    /// The whole run has so many steps.
    fn steps(&mut self, count: usize);
    /// The next step begins.
    fn step(&mut self, what: &str);
}

/// A run failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// There is nobody of that name to compare with.
    #[error("the baseline {0:?} does not take part: choose one of {1}")]
    Baseline(String, String),
    /// Memory cannot be measured.
    #[error("failed to measure the memory of {contender}: {source}")]
    Memory {
        /// Whose memory.
        contender: String,
        /// Why.
        source: io::Error,
    },
}

/// Measures all contenders: in each round of a measure one after the other, so that what disturbs the machine
/// disturbs all of them.
///
/// # Errors
///
/// When the baseline does not take part or a process that measures memory fails.
pub fn run(
    contenders: &[&dyn Contender],
    trace: &MooncakeTrace,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<Report, BenchError> {
    let Some(baseline) = contenders.iter().position(|contender| contender.name() == options.baseline) else {
        let names: Vec<_> = contenders.iter().map(|contender| contender.name()).collect();
        return Err(BenchError::Baseline(options.baseline.clone(), names.join(", ")));
    };
    observer.steps(options.measures.len() * options.repeats * contenders.len());
    let clock = Clock::calibrated();
    let mut played: Option<(Scenario, Workload)> = None;
    let mut measures = Vec::new();
    for &measure in &options.measures {
        let scenario = measure.scenario();
        let workload = match played.take() {
            Some((of, workload)) if of == scenario => workload,
            _ => {
                let prompts = trace.prompts().take(options.requests);
                Workload::play(prompts, &scenario.options(&options.fleet), scenario.passes())
            }
        };
        let samples = rounds(measure, contenders, &workload, options, clock, observer)?;
        measures.push(summary(measure, contenders, baseline, &samples));
        played = Some((scenario, workload));
    }
    Ok(Report { setting: setting(options, trace, clock), baseline: options.baseline.clone(), measures })
}

/// For each contender what each round gave.
fn rounds(
    measure: Measure,
    contenders: &[&dyn Contender],
    workload: &Workload,
    options: &RunOptions,
    clock: Clock,
    observer: &mut dyn Observer,
) -> Result<Vec<Vec<Sample>>, BenchError> {
    let failed = |contender: &str| {
        let contender = contender.to_owned();
        move |source| BenchError::Memory { contender, source }
    };
    let input = measure.is_memory().then(|| MemoryInput::write(workload)).transpose().map_err(failed("all"))?;
    let mut samples = vec![Vec::new(); contenders.len()];
    for _ in 0..options.repeats.max(1) {
        for (contender, samples) in contenders.iter().zip(&mut samples) {
            observer.step(&format!("{measure}: {}", contender.name()));
            samples.extend(match &input {
                None => measure.sample(*contender, workload, clock),
                Some(input) => {
                    let measured = input.measure(&options.memory_child, contender.name(), workload.workers);
                    Some(measured.map_err(failed(contender.name()))?)
                }
            });
        }
    }
    Ok(samples)
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
        method: measure.method().to_owned(),
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

/// What a reader must know of a run to judge it.
fn setting(options: &RunOptions, trace: &MooncakeTrace, clock: Clock) -> Vec<(String, String)> {
    let fleet = &options.fleet;
    let processor = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    let cores = std::thread::available_parallelism().map_or_else(|_| "unknown".to_owned(), |cores| cores.to_string());
    let pairs = [
        ("processor", processor.unwrap_or_else(|| "unknown".to_owned())),
        ("cores", cores),
        ("requests", options.requests.min(trace.len()).to_string()),
        ("workers", fleet.workers.to_string()),
        ("blocks of a worker's cache", fleet.blocks.to_string()),
        ("blocks of a hash id (512 tokens)", fleet.blocks_per_hash_id.to_string()),
        ("rounds (figures are medians)", options.repeats.to_string()),
        ("taken off each timed query", format!("{} ns, what reading the clock costs", clock.overhead_ns())),
    ];
    pairs.map(|(name, value)| (name.to_owned(), value)).to_vec()
}
