//! Result files of a run.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flash_indexer_bench::{Measure, MeasureReport, Report, SweepPoint};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::memory::MemoryReport;
use crate::prompt::PromptReport;
use crate::redis::RedisReport;
use crate::service::{Comparison, Scaling, ServiceReport};

/// The folder of results.
pub(crate) struct Results {
    folder: PathBuf,
}

/// One contender's part of the sweep.
#[derive(Serialize, Deserialize)]
pub(crate) struct SweepLine {
    pub(crate) contender: String,
    pub(crate) points: Vec<SweepPoint>,
}

impl Results {
    pub(crate) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// Creates the folder, if it does not exist.
    pub(crate) fn create(&self) -> Result<()> {
        std::fs::create_dir_all(&self.folder).with_context(|| format!("failed to create {}", self.folder.display()))
    }

    pub(crate) fn sweep_plot(&self) -> PathBuf {
        self.folder.join("sweep.svg")
    }

    pub(crate) fn density_plot(&self) -> PathBuf {
        self.folder.join("density.svg")
    }

    /// Writes a report. Its measures replace earlier results of the same measures; others stay.
    pub(crate) fn write_report(&self, report: &Report) -> Result<()> {
        let mut whole = report.clone();
        if let Some(earlier) = self.report()? {
            let kept = |measure: &&MeasureReport| !report.measures.iter().any(|taken| taken.measure == measure.measure);
            whole.measures.extend(earlier.measures.iter().filter(kept).cloned());
            let position = |name: &str| Measure::ALL.iter().position(|measure| measure.as_str() == name);
            whole.measures.sort_by_key(|measure| position(&measure.measure));
        }
        self.write("measures.json", &whole)
    }

    pub(crate) fn report(&self) -> Result<Option<Report>> {
        self.read("measures.json")
    }

    pub(crate) fn write_sweep(&self, lines: &[SweepLine]) -> Result<()> {
        self.write("sweep.json", &lines)
    }

    pub(crate) fn sweep(&self) -> Result<Option<Vec<SweepLine>>> {
        self.read("sweep.json")
    }

    pub(crate) fn write_service(&self, report: &ServiceReport) -> Result<()> {
        self.write("service.json", report)
    }

    pub(crate) fn service(&self) -> Result<Option<ServiceReport>> {
        self.read("service.json")
    }

    /// Writes the tables of all parts.
    pub(crate) fn write_details(&self, text: &str) -> Result<()> {
        let path = self.folder.join("details.md");
        std::fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))
    }

    pub(crate) fn write_comparison(&self, comparison: &Comparison) -> Result<()> {
        self.write("comparison.json", comparison)
    }

    pub(crate) fn comparison(&self) -> Result<Option<Comparison>> {
        self.read("comparison.json")
    }

    pub(crate) fn write_scaling(&self, scaling: &Scaling) -> Result<()> {
        self.write("scaling.json", scaling)
    }

    pub(crate) fn scaling(&self) -> Result<Option<Scaling>> {
        self.read("scaling.json")
    }

    pub(crate) fn memory_plot(&self) -> PathBuf {
        self.folder.join("memory.svg")
    }

    pub(crate) fn write_memory(&self, report: &MemoryReport) -> Result<()> {
        self.write("memory.json", report)
    }

    pub(crate) fn memory(&self) -> Result<Option<MemoryReport>> {
        self.read("memory.json")
    }

    pub(crate) fn write_prompt(&self, report: &PromptReport) -> Result<()> {
        self.write("prompt.json", report)
    }

    pub(crate) fn prompt(&self) -> Result<Option<PromptReport>> {
        self.read("prompt.json")
    }

    pub(crate) fn write_redis(&self, report: &RedisReport) -> Result<()> {
        self.write("redis.json", report)
    }

    pub(crate) fn redis(&self) -> Result<Option<RedisReport>> {
        self.read("redis.json")
    }

    fn write(&self, name: &str, value: &impl Serialize) -> Result<()> {
        self.create()?;
        let path = self.folder.join(name);
        let text = serde_json::to_string_pretty(value)? + "\n";
        std::fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let path = self.folder.join(name);
        if !path.is_file() {
            return Ok(None);
        }
        let text = std::fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
        let value = serde_json::from_str(&text);
        Ok(Some(value.with_context(|| format!("{} has another format; remove it and measure again", path.display()))?))
    }
}
