//! Process metrics, under the names of Prometheus' own client libraries.

use std::fmt;
use std::fs;
use std::time::{Duration, SystemTime};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use super::state::sentence;

/// Clock ticks per second in `/proc/self/stat`; Linux fixes this value for user space.
const TICKS_PER_SECOND: f64 = 100.0;

/// Process metrics; a metric that the operating system does not provide is left out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Process {
    started: SystemTime,
}

impl Process {
    pub(super) fn new() -> Self {
        Self { started: SystemTime::now() }
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut add = |name, help, unit: Option<Unit>, metric: &dyn EncodeMetric| {
            metric.encode(encoder.encode_descriptor(name, &sentence(help), unit.as_ref(), metric.metric_type())?)
        };
        let started = self.started.duration_since(SystemTime::UNIX_EPOCH).as_ref().map_or(0.0, Duration::as_secs_f64);
        let help = "Start time of the process since the Unix epoch";
        add("process_start_time", help, Some(Unit::Seconds), &ConstGauge::new(started))?;
        if let Some(seconds) = cpu_seconds() {
            add("process_cpu", "CPU time used", Some(Unit::Seconds), &ConstCounter::new(seconds))?;
        }
        if let Some(bytes) = resident_bytes() {
            add("process_resident_memory", "Resident memory", Some(Unit::Bytes), &ConstGauge::new(bytes))?;
        }
        if let Some(threads) = number_in("status", "Threads:") {
            add("process_threads", "Threads", None, &ConstGauge::new(threads))?;
        }
        if let Ok(files) = fs::read_dir("/proc/self/fd") {
            add("process_open_fds", "Open file descriptors", None, &ConstGauge::new(files.count()))?;
        }
        if let Some(files) = number_in("limits", "Max open files") {
            add("process_max_fds", "Limit of open file descriptors", None, &ConstGauge::new(files))?;
        }
        Ok(())
    }
}

fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The program's name may contain any character, and ends with the last parenthesis.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11).map(|ticks| ticks.parse::<f64>().ok());
    Some((times.next()?? + times.next()??) / TICKS_PER_SECOND)
}

fn resident_bytes() -> Option<u64> {
    number_in("status", "VmRSS:").map(|kibibytes| kibibytes << 10)
}

/// The first number after `name` in the line that starts with it, of a file in `/proc/self`.
fn number_in(file: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/self/{file}")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}
