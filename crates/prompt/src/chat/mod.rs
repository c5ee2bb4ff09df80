//! Chats to prompts, with the model's own Jinja template, byte for byte as `transformers` renders them.
//!
//! [`ChatTemplates::read`] reads a model's directory, [`ChatTemplates::render`] does what `apply_chat_template(…, tokenize=False)`
//! does: it chooses a template, gives it the messages, tools, documents, special tokens and further variables, and cuts a
//! continued message off where it ends. The files of `tests/chat/` were made with Python and are compared byte for byte.
//!
//! # How
//!
//! A template is read with Jinja2's rules and written anew for minijinja, with whitespace settled and operations spelled as
//! calls (`template`); what these calls, filters, tests and methods do is Python's meaning on minijinja's values (`python`).
//! A model's own templates are compiled once; one that a request brings is compiled each time, which costs about as much
//! as rendering fifty short messages.
//!
//! # Bounds
//!
//! | what | bound | beyond |
//! |---|---|---|
//! | a template's length | 1 MiB | [`ChatError::Syntax`] |
//! | nested expressions, nested blocks, operations in one tag, `elif`s of one `if` | 60, 100, 300, 100 | [`ChatError::Syntax`] |
//! | instructions of one rendering | 10 million | [`ChatError::TooExpensive`] |
//! | bytes looked at, made or printed; an item of a list counts for 16 | 256 MiB | [`ChatError::TooExpensive`] |
//! | macros and loops that call each other | 400, a macro counts for four | [`ChatError::Failed`] |
//! | lists and dicts in each other | 200 | [`ChatError::Failed`] |
//! | numbers in a `range` | 100,000, as in Jinja2's sandbox | [`ChatError::Failed`] |
//!
//! So neither a request's template nor its messages can hang, exhaust or crash the process.
//!
//! # Limits
//!
//! What differs from Python, as far as it is known:
//!
//! * not supported, and refused: `include`, `import`, `extends`, `autoescape`, `self` and `super`; `varargs` and `kwargs` of
//!   macros; `break` and `continue` from within `with`, `set` and `filter` blocks; the filters `random`, `urlize` and `wordwrap`
//!   and the functions `lipsum`, `cycler` and `joiner`; formats within formats; integers of more than 127 bits, complex numbers;
//!   a namespace kept in a namespace; names that are not ASCII;
//! * `strftime_now` tells UTC and has the C locale's names;
//! * integers of JSON that need more than 64 bits are read as floats;
//! * a parameter that is given an undefined value gets its default;
//! * `map`, `select` and their like work on all items at once, not one by one as they are asked for; so does a loop's `if`;
//! * an unknown filter or test fails when it is reached, not before;
//! * methods of strings marked as `safe` answer plain strings; `title` of letters that have a third case, and `isdigit` of
//!   digits that are none in every respect, follow Rust's tables;
//! * constant expressions that Python works out while it compiles, and by other rules then, such as `{{ 1[0:1] }}`;
//! * special tokens come from the model's files, not from what a tokenizer's class has for a default.

mod conversation;
mod engine;
mod error;
mod json;
mod model_files;
mod python;
mod request;
mod template;
mod templates;

pub use error::ChatError;
pub use json::Json;
pub use request::{ChatRequest, Continuation};
pub use templates::ChatTemplates;
