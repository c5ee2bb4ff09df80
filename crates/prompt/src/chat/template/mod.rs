//! Jinja2's template language on minijinja's engine.
//!
//! A template is read with Jinja2's own rules for whitespace, strings and precedence and written anew for minijinja, with
//! whitespace settled and every operation whose meaning differs between the two spelled as a call of a function of
//! [`python`](super::python).

mod expression;
mod lexer;
mod operand;
mod parser;
mod statement;

use thiserror::Error;

pub(super) use statement::translate;

/// A template that is not one.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {message}")]
pub(super) struct SyntaxError {
    /// Where, from 1.
    pub(super) line: usize,
    /// What and, where it can be said, what to do.
    pub(super) message: String,
}
