//! Plot of achieved against offered load.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::{legend, series};
use crate::results::SweepLine;

const SIZE: (u32, u32) = (900, 640);

/// Draws one line for each contender on logarithmic axes, and the diagonal where achieved equals offered load.
pub(crate) fn sweep(lines: &[SweepLine], to: &Path) -> Result<()> {
    if let Some(folder) = to.parent() {
        std::fs::create_dir_all(folder)?;
    }
    draw(lines, to).map_err(|error| anyhow!("failed to draw {}: {error}", to.display()))
}

fn draw(lines: &[SweepLine], to: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let least = points().map(|point| point.achieved.min(point.offered)).fold(f64::INFINITY, f64::min) / 1e6;
    let most = points().map(|point| point.offered).fold(0.0, f64::max) / 1e6;
    let area = SVGBackend::new(to, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .caption("Achieved against offered load", ("sans-serif", 22))
        .x_label_area_size(48)
        .y_label_area_size(64)
        .build_cartesian_2d((least..most).log_scale(), (least..most).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("offered, million block operations per second")
        .y_desc("achieved, million block operations per second")
        .draw()?;
    chart.draw_series(LineSeries::new([(least, least), (most, most)], BLACK.mix(0.3)))?;
    for (number, line) in lines.iter().enumerate() {
        let points = line.points.iter().map(|point| (point.offered / 1e6, point.achieved / 1e6));
        series(&mut chart, number, &line.contender, points.collect())?;
    }
    legend(&mut chart, SeriesLabelPosition::UpperLeft)?;
    area.present()?;
    Ok(())
}
