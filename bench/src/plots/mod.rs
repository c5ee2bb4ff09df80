//! Plots, as SVG.

mod density;
mod sweep;

pub(crate) use density::density;
pub(crate) use sweep::sweep;
