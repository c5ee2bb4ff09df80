//! When workers store and when they remove.

use std::path::Path;

use anyhow::{Result, anyhow};
use flash_indexer_bench::EventDensity;
use plotters::prelude::*;

const SIZE: (u32, u32) = (1_000, 460);
/// Blocks of a worker and bin at which a colour is full.
const FULL_BLOCKS: f64 = 200.0;
const STORED: RGBColor = RGBColor(46, 139, 87);
const REMOVED: RGBColor = RGBColor(230, 145, 20);

/// Draws a row of cells for each worker and one, thrice as high and as many times fainter as there are workers, for all.
pub(crate) fn density(density: &EventDensity, to: &Path) -> Result<()> {
    draw(density, to).map_err(|error| anyhow!("failed to draw {}: {error}", to.display()))
}

fn draw(density: &EventDensity, to: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let workers = density.net.len();
    let bins = density.net.first().map_or(0, Vec::len);
    let area = SVGBackend::new(to, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let end_s = density.bin_ms as f64 * bins as f64 / 1e3;
    let rows = workers as f64 + TOTAL_HEIGHT;
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .caption("Blocks stored (green) and removed (amber)", ("sans-serif", 22))
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..end_s, 0.0..rows)?;
    let label = |row: &f64| match *row {
        row if row < workers as f64 => format!("worker {row:.0}"),
        _ => "all".to_owned(),
    };
    chart
        .configure_mesh()
        .disable_mesh()
        .x_desc("seconds of the trace")
        .y_labels(workers)
        .y_label_formatter(&label)
        .draw()?;
    let bin_s = density.bin_ms as f64 / 1e3;
    let cell = |bin: usize, row: f64, height: f64, net: i64, full: f64| {
        let left = bin as f64 * bin_s;
        Rectangle::new([(left, row), (left + bin_s, row + height)], colour(net as f64 / full).filled())
    };
    for (worker, net) in density.net.iter().enumerate() {
        chart.draw_series(net.iter().enumerate().map(|(bin, &net)| cell(bin, worker as f64, 1.0, net, FULL_BLOCKS)))?;
    }
    let total = (0..bins).map(|bin| (bin, density.net.iter().map(|net| net[bin]).sum::<i64>()));
    let full = FULL_BLOCKS * workers as f64;
    chart.draw_series(total.map(|(bin, net)| cell(bin, workers as f64, TOTAL_HEIGHT, net, full)))?;
    area.present()?;
    Ok(())
}

/// Height of the row for all workers, in rows of one.
const TOTAL_HEIGHT: f64 = 3.0;

/// White for nothing, full colour from one on.
fn colour(strength: f64) -> RGBColor {
    let full = if strength < 0.0 { REMOVED } else { STORED };
    let share = strength.abs().min(1.0);
    let mix = |channel: u8| (255.0 + (f64::from(channel) - 255.0) * share) as u8;
    RGBColor(mix(full.0), mix(full.1), mix(full.2))
}
