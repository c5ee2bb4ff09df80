//! Translation of Jinja2 templates into minijinja templates.
//!
//! The translator parses a template with Jinja2's rules for whitespace, strings and precedence. Its output has no
//! whitespace control, and every operation that means something else in minijinja is a call of a function of
//! [`python`](super::python).

mod expression;
mod lexer;
mod operand;
mod parser;
mod statement;

use thiserror::Error;

pub(super) use statement::translate;

/// A syntax error in a template.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {message}")]
pub(super) struct SyntaxError {
    /// Line of the template, from 1.
    pub(super) line: usize,
    /// The cause and, where possible, the remedy.
    pub(super) message: String,
}
