//! Python's semantics for templates: values, operators, methods, filters and tests.
//!
//! minijinja calls these functions. Each counts its work, so one rendering stays within its limits.

mod arguments;
pub(super) mod attributes;

mod compare;
mod filters;
mod format;
mod functions;
pub(super) mod json;
pub(super) mod limits;
mod methods;
mod number;
mod objects;
mod operators;
mod sequences;
mod strftime;
mod tests;
pub(super) mod text;
mod text_methods;
pub(super) mod values;

pub(super) use functions::{TemplateException, environment};
pub(super) use limits::WorkLimitExceeded;
pub(super) use strftime::Clock;
pub use strftime::utc_date;
