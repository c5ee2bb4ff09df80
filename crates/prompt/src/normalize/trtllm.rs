//! TensorRT-LLM's rules, of its server's reading of chat messages.

use chat_template::{ChatRequest, ChatTemplates};

use super::chat::PreparedChat;
use super::error::PrepareError;
use super::fields::EngineFields;
use super::vllm;

/// Changes a request as TensorRT-LLM does.
pub(super) fn prepare(
    request: &ChatRequest,
    fields: &EngineFields,
    templates: &ChatTemplates,
) -> Result<PreparedChat, PrepareError> {
    vllm::prepare(request, fields, templates)
}
