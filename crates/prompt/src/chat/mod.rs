//! Chats to prompts, with the model's own Jinja template, byte for byte as `transformers` renders them.

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
