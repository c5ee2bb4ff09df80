//! Python's meaning of what templates do: values, operators, methods, filters and tests.

mod arguments;
pub(super) mod attributes;
mod calendar;
mod compare;
mod filters;
mod format;
mod functions;
pub(super) mod json;
mod limits;
mod methods;
mod number;
mod operators;
mod sequences;
mod tests;
pub(super) mod text;
mod text_methods;
pub(super) mod values;

pub(super) use calendar::Clock;
pub(super) use functions::{Raised, environment};
pub(super) use limits::Budget;
