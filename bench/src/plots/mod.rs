//! Plots, as SVG.

mod density;
mod memory;
mod sweep;

pub(crate) use density::density;
pub(crate) use memory::memory;
pub(crate) use sweep::sweep;
