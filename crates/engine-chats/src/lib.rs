//! Chats as engines read and render them.
//!
//! An engine changes an OpenAI request before it renders the model's template: arguments of tool calls become objects, parts are joined,
//! tools are written out by the engine's own models. [`Chat::render`] makes the same changes, and its prompt equals the engine's.
//! `tests/engines/` of the crate `prompt` compares it with the prompts of the real engines for the same requests and templates.
//!
//! | file | role |
//! |---|---|
//! | `chat.rs`, `fields.rs` | [`Chat`]: a request with the engine whose prompt is wanted |
//! | `render.rs` | reading and rendering of a chat, by the rules of its engine |
//! | `body.rs` | the body of a request, whose values are read as Python reads them |
//! | `completion.rs` | the `prompt` of a text completion |
//! | `lax.rs` | numbers and truth values, as the engines' request models read them |
//! | `message.rs` | reading and building messages |
//! | `vllm.rs`, `sglang.rs`, `trtllm.rs` | the rules of each engine |
//! | `sglang_schema.rs` | types in schemas of tools, as SGLang rewrites them |
//! | `content_format.rs` | whether a template takes texts or parts, as the engines detect it |
//! | `vllm_message.rs` | which fields of a message vLLM takes |
//! | `media.rs` | stand-ins for media, and which text precedes them |
//! | `error.rs` | errors of preparing a chat |
//! | `families/` | families of models whose prompts engines make by code |

mod body;
mod chat;
mod completion;
mod content_format;
mod error;
mod families;
mod fields;
mod lax;
mod media;
mod message;
mod render;
mod sglang;
mod sglang_schema;
mod trtllm;
mod vllm;
mod vllm_message;

pub use chat::{Chat, ChatEngine, PreparedChat, Rendering};
pub use completion::CompletionPrompt;
pub use content_format::ContentFormat;
pub use error::PrepareError;
pub use families::mistral_files;
pub use families::{CodedFamily, CodedPrompts};
pub use fields::{EngineFields, TruncationSide};
pub use lax::{LaxBool, LaxInteger};
pub use media::MediaCut;
