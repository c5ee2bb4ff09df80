//! The engine that renders the prompts of a model's chats.

use flash_indexer_engine_chats::ChatEngine;
use flash_indexer_types::EngineKind;

/// The engine that a model's registrations name, or vLLM.
pub(crate) fn chat_engine(kind: Option<EngineKind>) -> ChatEngine {
    match kind {
        None | Some(EngineKind::Vllm) => ChatEngine::Vllm,
        Some(EngineKind::Sglang) => ChatEngine::Sglang,
        Some(EngineKind::Trtllm) => ChatEngine::TensorRtLlm,
    }
}

/// The engine's name, as registrations write it.
pub(crate) fn engine_name(engine: ChatEngine) -> &'static str {
    match engine {
        ChatEngine::Vllm => EngineKind::Vllm,
        ChatEngine::Sglang => EngineKind::Sglang,
        ChatEngine::TensorRtLlm => EngineKind::Trtllm,
    }
    .as_str()
}

/// Reason why a prompt is unknown from the first content part with media onwards.
pub(crate) fn media_reason(kind: &str) -> String {
    format!("the tokens of a part of type {kind:?} are known to the engine only; no block is scored from there on")
}
