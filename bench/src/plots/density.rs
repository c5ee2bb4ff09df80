//! Heat map of stores and removals over time.

use std::path::Path;

use anyhow::{Result, anyhow};
use flash_indexer_bench::{DensityBin, EventDensity};
use plotters::prelude::*;

const SIZE: (u32, u32) = (1_000, 560);
/// Blocks of a worker and bin at which a colour is full.
const FULL_BLOCKS: f64 = 400.0;
const STORED: RGBColor = RGBColor(46, 139, 87);
const REMOVED: RGBColor = RGBColor(230, 145, 20);
/// Height of the row for all workers, in rows of one.
const TOTAL_HEIGHT: f64 = 3.0;

/// Draws two stripes for each worker, stored blocks above removed ones, and two high ones for all workers together.
pub(crate) fn density(density: &EventDensity, to: &Path) -> Result<()> {
    draw(density, to).map_err(|error| anyhow!("failed to draw {}: {error}", to.display()))
}

fn draw(density: &EventDensity, to: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let workers = density.workers.len();
    let total = total(density);
    let area = SVGBackend::new(to, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let bin_s = density.bin_ms as f64 / 1e3;
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .caption("Blocks stored (green) and removed (amber)", ("sans-serif", 22))
        .x_label_area_size(44)
        .y_label_area_size(80)
        .build_cartesian_2d(0.0..bin_s * total.len() as f64, 0.0..workers as f64 + TOTAL_HEIGHT)?;
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
    let all = Stripe { row: workers as f64, height: TOTAL_HEIGHT, full: FULL_BLOCKS * workers as f64 };
    let rows = (0..).map(|row| Stripe { row: f64::from(row), height: 1.0, full: FULL_BLOCKS }).zip(&density.workers);
    for (stripe, bins) in rows.chain([(all, &total)]) {
        chart.draw_series((0..).zip(bins).flat_map(|(at, bin)| stripe.cells(f64::from(at) * bin_s, bin_s, *bin)))?;
    }
    area.present()?;
    Ok(())
}

/// The bins of all workers together.
fn total(density: &EventDensity) -> Vec<DensityBin> {
    let mut total = vec![DensityBin::default(); density.workers.first().map_or(0, Vec::len)];
    for bins in &density.workers {
        for (sum, bin) in total.iter_mut().zip(bins) {
            sum.stored += bin.stored;
            sum.removed += bin.removed;
        }
    }
    total
}

/// Area of a worker's bins.
struct Stripe {
    row: f64,
    height: f64,
    /// Blocks at which its colours are full.
    full: f64,
}

impl Stripe {
    /// Cells of a bin, one for stores and one for removals; none for a count of zero.
    fn cells(&self, left: f64, width: f64, bin: DensityBin) -> impl Iterator<Item = Rectangle<(f64, f64)>> {
        let half = self.height / 2.0;
        let (row, full) = (self.row, self.full);
        let cells = [(row + half, bin.stored, STORED), (row, bin.removed, REMOVED)];
        cells.into_iter().filter(|&(_, blocks, _)| blocks > 0).map(move |(bottom, blocks, colour)| {
            let corners = [(left, bottom), (left + width, bottom + half)];
            Rectangle::new(corners, shade(colour, blocks as f64 / full).filled())
        })
    }
}

/// Interpolates from white at 0 to the full colour at 1.
fn shade(full: RGBColor, strength: f64) -> RGBColor {
    let mix = |channel: u8| (255.0 + (f64::from(channel) - 255.0) * strength.min(1.0)) as u8;
    RGBColor(mix(full.0), mix(full.1), mix(full.2))
}
