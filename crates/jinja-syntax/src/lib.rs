//! Parses Jinja2 templates: translates them into minijinja templates, and outlines the variables that they read.
//!
//! The parser has Jinja2's rules for whitespace, strings and precedence. The translation has no whitespace control, and every
//! operation that differs in minijinja is a call of a function that the crate `chat-template` defines.
//!
//! | file | role |
//! |---|---|
//! | `statement.rs` | [`translate`]: a template, tag by tag |
//! | `expression.rs`, `operand.rs` | expressions; operands with their lookups, calls, filters and tests |
//! | `lexer.rs`, `parser.rs` | tokens, with Jinja2's rules for whitespace; a cursor over them, with limits |
//! | `outline.rs` | [`Outline`]: loops, assignments, macros and calls, and which variables they read |
//! | `method_names.rs` | names of the methods of Python's types |

mod expression;
mod lexer;
pub mod method_names;
mod operand;
mod outline;
mod parser;
mod statement;

use thiserror::Error;

pub use outline::{Assignment, Call, Loop, Macro, Outline, Read};
pub use statement::{Template, translate};

/// A syntax error in a template.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {message}")]
pub struct SyntaxError {
    /// Line of the template, from 1.
    pub line: usize,
    /// The cause and, where possible, the remedy.
    pub message: String,
}

/// Whitespace as Python's `str.isspace` and `\s` define it.
#[must_use]
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}
