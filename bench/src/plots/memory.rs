//! The hit rate that a bound of memory costs.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use crate::memory::MemoryReport;

const SIZE: (u32, u32) = (900, 560);

/// Draws one line for each index: the hit rate lost, from none to all of it, against the bound, logarithmic.
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
        let colour = Palette99::pick(number).to_rgba();
        let points: Vec<(f64, f64)> =
            line.points.iter().map(|point| (mebibytes(point.bytes_max), point.lost_percent)).collect();
        chart
            .draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?
            .label(line.name.as_str())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        chart.draw_series(PointSeries::of_element(points, 3, colour.filled(), &|at, size, style| {
            Circle::new(at, size, style)
        }))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    area.present()?;
    Ok(())
}
