//! Renders Hugging Face chat templates as `transformers` does, byte for byte.
//!
//! [`ChatTemplates::render`] equals `apply_chat_template(…, tokenize=False)` of `transformers` 5.23.0 with Jinja2 3.1.6. It
//! chooses a template, passes the messages, tools, documents, special tokens and further variables to it, and cuts the text
//! at the end of a continued message. [`Messages::AsGiven`] passes messages as they are, as `transformers` 5.19 does.
//! The tables in `tests/rendering/` are the output of 5.23.0:
//!
//! | table | cases |
//! |---|---|
//! | `chats.json` | 27 conversations, most with three sets of flags, with the 19 templates of `templates/` |
//! | `models.json` | model directories: which template and which special tokens are chosen |
//! | `snippets.json` | expressions and statements of `snippets.txt` |
//!
//! `scripts/fuzz-chat-templates` compares random templates and chats with `transformers`.
//!
//! # Example
//!
//! ```
//! use chat_template::{ChatRequest, ChatTemplates};
//!
//! # let dir = tempfile::tempdir()?;
//! # let dir = dir.path();
//! // A model's directory: `tokenizer_config.json`, and the template in it or in `chat_template.jinja`.
//! std::fs::write(dir.join("tokenizer_config.json"), r#"{"bos_token": "<s>"}"#)?;
//! std::fs::write(
//!     dir.join("chat_template.jinja"),
//!     "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}\
//!      {% if add_generation_prompt %}[assistant]{% endif %}",
//! )?;
//! let templates = ChatTemplates::read(dir)?.expect("the directory has a template");
//!
//! let request: ChatRequest = serde_json::from_str(r#"{"messages": [{"role": "user", "content": "Hi"}]}"#)?;
//! assert_eq!(templates.render(&request)?, "<s>[user] Hi\n[assistant]");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How it works
//!
//! The translator parses a template with Jinja2's grammar and writes it for minijinja. The result has no whitespace control,
//! and operations that minijinja defines differently are function calls. These functions, and all filters, tests and methods,
//! have Python's semantics. A model's own templates are compiled once. A template in a request is compiled for each
//! request, which costs about as much as rendering fifty short messages.
//!
//! # Limits
//!
//! A template or a message from an untrusted client cannot block, exhaust or crash the process:
//!
//! | what | limit | error beyond it |
//! |---|---|---|
//! | length of a template | 1 MiB | [`ChatError::Syntax`] |
//! | nesting of expressions, nesting of blocks, operations in one tag, `elif`s of one `if` | 60, 100, 300, 100 | [`ChatError::Syntax`] |
//! | instructions of one rendering | 10 million | [`ChatError::TooExpensive`] |
//! | bytes read, created or printed; an item of a list counts as 16 | 256 MiB | [`ChatError::TooExpensive`] |
//! | depth of calls between macros and recursive loops; a macro counts four times | 400 | [`ChatError::Failed`] |
//! | nesting of lists and dicts | 200 | [`ChatError::Failed`] |
//! | the same of a brief rendering ([`Effort::Brief`]) | 100,000 instructions, 8 MiB | [`ChatError::TooExpensive`] |
//! | numbers in a `range` | 100,000, as in Jinja2's sandbox | [`ChatError::Failed`] |
//!
//! # Known differences from Python
//!
//! * Rejected as unsupported: `include`, `import`, `extends`, `autoescape`, `self` and `super`; `varargs` and `kwargs` of
//!   macros; `break` and `continue` inside `with`, `set` and `filter` blocks; the filters `random`, `urlize` and `wordwrap`;
//!   the functions `lipsum`, `cycler` and `joiner`; nested formats; integers of more than 127 bits; complex numbers; a
//!   namespace in a namespace; names that are not ASCII.
//! * `strftime_now` prints UTC with the names of the C locale.
//! * JSON integers of more than 64 bits become floats if serde reads them. [`Json::loads`] keeps their digits, which are printed, and
//!   cannot be calculated with beyond 127 bits.
//! * A parameter whose argument is undefined gets its default.
//! * `map`, `select` and similar filters, and the `if` of a loop, process all items at once, not lazily.
//! * An unknown filter or test fails when it is evaluated, not when the template is compiled.
//! * Methods of strings marked as `safe` return plain strings. `title` of letters with a third case, and `isdigit` of
//!   characters that are digits in some respects only, follow Rust's tables.
//! * Constant expressions for which Jinja2's compiler has other rules, such as `{{ 1[0:1] }}`.
//! * Special tokens come from the model's files. The defaults of a tokenizer's class are added by
//!   [`ChatTemplates::add_special_tokens`].
//!
//! # Modules
//!
//! | file | role |
//! |---|---|
//! | `templates.rs` | [`ChatTemplates`]: chooses a template and its variables, and renders |
//! | `request.rs`, `json.rs` | [`ChatRequest`] and [`Json`]: the input |
//! | `json_reader.rs` | JSON as Python reads it: arguments of tool calls, requests |
//! | `stand_ins.rs` | texts that stand for values that no prompt can have |
//! | `conversation.rs` | messages as templates read them, and the mark of a continued message |
//! | `model_files.rs` | reads templates and special tokens from a model's directory |
//! | `error.rs` | [`ChatError`] |
//! | `engine.rs`, `effort.rs` | compiles and runs templates on minijinja, within limits; the work of one rendering |
//! | `python/` | Python's semantics: see its table |
//!
//! | file in `python/` | role |
//! |---|---|
//! | `values.rs`, `limits.rs` | lists, tuples, dicts and iterators; the work limit of a rendering |
//! | `functions.rs`, `arguments.rs` | the minijinja environment; binding of arguments to parameters |
//! | `operators.rs`, `compare.rs`, `sequences.rs` | arithmetic; equality and order; slices and lengths |
//! | `attributes.rs`, `methods.rs`, `text_methods.rs` | lookups; methods of strings, dicts, lists and tuples; those of strings alone |
//! | `text.rs`, `number.rs`, `format.rs`, `json.rs`, `strftime.rs` | `str` and `repr`; numbers; `%` and `format`; `tojson`; dates |
//! | `filters/`, `tests.rs` | Jinja's filters; Jinja's tests |

mod conversation;
mod effort;
mod engine;
mod error;
mod json;
mod json_reader;
mod model_files;
mod python;
mod request;
mod stand_ins;
mod templates;

pub use effort::Effort;
pub use error::ChatError;
pub use jinja_syntax::{Macro, Outline, Read};
pub use json::Json;
pub use json_reader::{JsonParser, without_constants};
pub use python::utc_date;
pub use request::{ChatRequest, Continuation};
pub use stand_ins::check_rendered;
pub use templates::{ChatTemplates, Messages};
