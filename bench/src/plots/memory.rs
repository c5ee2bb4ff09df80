//! Plot of the hit rate lost to a memory limit.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::{legend, series};
use crate::memory::MemoryReport;

const SIZE: (u32, u32) = (900, 560);

/// Draws one line for each index: the share of the hit rate that is lost, against the limit on a logarithmic axis.
pub(crate) fn memory(report: &MemoryReport, to: &Path) -> Result<()> {
    draw(report, to).map_err(|error| anyhow!("failed to draw {}: {error}", to.display()))
}

fn draw(report: &MemoryReport, to: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let mebibytes = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    let points = || report.lines.iter().flat_map(|line| &line.points);
    let least = points().map(|point| mebibytes(point.bytes_max)).fold(f64::INFINITY, f64::min);
    let most = points().map(|point| mebibytes(point.bytes_max)).fold(0.0, f64::max);
    let area = SVGBackend::new(to, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .caption("Hit rate lost to a bound of memory", ("sans-serif", 22))
        .x_label_area_size(48)
        .y_label_area_size(64)
        .build_cartesian_2d((least * 0.9..most * 1.1).log_scale(), 0.0..report.hit_percent)?;
    chart.configure_mesh().x_desc("bound, MiB").y_desc("hit rate lost, percentage points").draw()?;
    let needed = mebibytes(report.bytes_needed);
    chart.draw_series(LineSeries::new([(needed, 0.0), (needed, report.hit_percent)], BLACK.mix(0.3)))?;
    for (number, line) in report.lines.iter().enumerate() {
        let points = line.points.iter().map(|point| (mebibytes(point.bytes_max), point.lost_percent));
        series(&mut chart, number, &line.name, points.collect())?;
    }
    legend(&mut chart, SeriesLabelPosition::UpperRight)?;
    area.present()?;
    Ok(())
}
