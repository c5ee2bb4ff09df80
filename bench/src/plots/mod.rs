//! Plots, as SVG.

mod density;
mod memory;
mod sweep;

use std::error::Error;

use plotters::coord::ranged1d::Ranged;
use plotters::prelude::*;

pub(crate) use density::density;
pub(crate) use memory::memory;
pub(crate) use sweep::sweep;

/// Draws the points of one index as a line with its own colour and label.
fn series<'a, X, Y>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>,
    number: usize,
    name: &str,
    points: Vec<(f64, f64)>,
) -> Result<(), Box<dyn Error>>
where
    X: Ranged<ValueType = f64> + 'a,
    Y: Ranged<ValueType = f64> + 'a,
{
    let colour = Palette99::pick(number).to_rgba();
    chart
        .draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?
        .label(name)
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    chart.draw_series(PointSeries::of_element(points, 3, colour.filled(), &|at, size, style| {
        Circle::new(at, size, style)
    }))?;
    Ok(())
}

/// Draws the legend.
fn legend<'a, X, Y>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>,
    position: SeriesLabelPosition,
) -> Result<(), Box<dyn Error>>
where
    X: Ranged<ValueType = f64> + 'a,
    Y: Ranged<ValueType = f64> + 'a,
{
    let mut labels = chart.configure_series_labels();
    labels.position(position).background_style(WHITE.mix(0.85)).border_style(BLACK.mix(0.3)).draw()?;
    Ok(())
}
