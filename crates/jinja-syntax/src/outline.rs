//! The outline of a template: its loops, assignments, macros and calls, and which variables they read.

/// Variable or key that an expression reads, through filters, tests and slices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// A variable and nothing else.
    Variable(String),
    /// A variable with filters, tests or slices.
    Elements(String),
    /// One key of a variable, as `message.content` or `message["content"]`.
    Key {
        /// The variable.
        variable: String,
        /// The key.
        key: String,
    },
}

/// The loops, assignments, macros and calls of a template, in its order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outline {
    /// `{% for … in … %}`.
    pub loops: Vec<Loop>,
    /// `{% set … = … %}`, where the value reads a variable.
    pub assignments: Vec<Assignment>,
    /// `{% macro … %}`.
    pub macros: Vec<Macro>,
    /// Calls of functions and macros, not of methods.
    pub calls: Vec<Call>,
}

/// A loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loop {
    /// The name of an item; `None` if an item is taken apart.
    pub target: Option<String>,
    /// Sequence that the loop iterates over.
    pub items: Option<Read>,
    /// The macros around the loop, outermost first, as positions in [`Outline::macros`].
    pub macros: Vec<usize>,
}

/// An assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// The assigned variable; `None` for several, and for an attribute of a namespace.
    pub target: Option<String>,
    /// Variable that the value reads.
    pub value: Read,
}

/// A macro.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Macro {
    /// Its name.
    pub name: String,
    /// The names of its parameters.
    pub parameters: Vec<String>,
}

/// A call of a function or a macro.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The name of the callee.
    pub name: String,
    /// Variable that each positional argument reads.
    pub positional: Vec<Option<Read>>,
    /// Variables that the named arguments read.
    pub named: Vec<(String, Option<Read>)>,
}

impl Read {
    /// The same after a filter, a test or a slice.
    pub(crate) fn filtered(self) -> Self {
        match self {
            Self::Variable(name) => Self::Elements(name),
            read => read,
        }
    }

    /// A key of the variable. `None` if this is not a plain variable.
    pub(crate) fn key(self, key: &str) -> Option<Self> {
        match self {
            Self::Variable(variable) => Some(Self::Key { variable, key: key.to_owned() }),
            Self::Elements(_) | Self::Key { .. } => None,
        }
    }

    /// Whether this is a variable, with or without filters, tests and slices.
    #[must_use]
    pub fn is_of(&self, variable: &str) -> bool {
        matches!(self, Self::Variable(name) | Self::Elements(name) if name == variable)
    }

    /// Whether this is a key of a variable.
    #[must_use]
    pub fn is_key_of(&self, variable: &str, key: &str) -> bool {
        matches!(self, Self::Key { variable: of, key: read } if of == variable && read == key)
    }
}
