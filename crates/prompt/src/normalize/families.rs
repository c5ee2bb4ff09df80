//! Families of models whose prompts the engines' code makes, without a template.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::chat::ChatEngine;

/// Architectures for which vLLM has a renderer of its own, and the names of their families.
const VLLM: [(&str, &str); 9] = [
    ("GptOssForCausalLM", "gpt-oss (harmony)"),
    ("DeepseekV32ForCausalLM", "DeepSeek-V3.2"),
    ("DeepseekV4ForCausalLM", "DeepSeek-V4"),
    ("DeepseekV4ForConditionalGeneration", "DeepSeek-V4"),
    ("DeepseekV41ForCausalLM", "DeepSeek-V4.1"),
    ("KimiK3ForConditionalGeneration", "Kimi-K3"),
    ("MoonshotKimiaForCausalLM", "Kimi-Audio"),
    ("InklingForCausalLM", "Inkling"),
    ("InklingForConditionalGeneration", "Inkling"),
];

/// Parts of architectures for which SGLang has an encoder of its own, and the names of their families.
const SGLANG: [(&str, &str); 4] = [
    ("DeepseekV41", "DeepSeek-V4.1"),
    ("DeepseekV4", "DeepSeek-V4"),
    ("KimiK3", "Kimi-K3"),
    ("InklingForConditionalGeneration", "Inkling"),
];

/// Architectures whose processors put media at the beginning of the prompt, whatever the template prints.
const MEDIA_FIRST: [&str; 4] = [
    "Blip2ForConditionalGeneration",
    "MolmoForCausalLM",
    "OpenVLAForActionPrediction",
    "PaliGemmaForConditionalGeneration",
];

/// The families of a model by engine, read from its folder.
#[derive(Debug, Clone, Copy, Default)]
pub struct CodedPrompts {
    vllm: Option<&'static str>,
    sglang: Option<&'static str>,
    puts_media_first: bool,
}

impl CodedPrompts {
    /// Reads `config.json` and the names of the files in a model's folder. `has_template` is whether the model has a chat
    /// template. A folder without these files has a template's prompts.
    #[must_use]
    pub fn read(folder: &Path, has_template: bool) -> Self {
        let config: Value = fs::read(folder.join("config.json"))
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default();
        let architecture = config["architectures"][0].as_str().unwrap_or_default();
        let mut vllm = VLLM.iter().find(|(name, _)| *name == architecture).map(|(_, family)| *family);
        if config["model_type"] == "gpt_oss" {
            vllm = Some("gpt-oss (harmony)");
        }
        if has_mistral_files(folder) {
            vllm = Some("Mistral (tekken)");
        }
        let mut sglang = SGLANG.iter().find(|(part, _)| architecture.contains(part)).map(|(_, family)| *family);
        if architecture.contains("DeepseekV3") && !has_template {
            sglang = Some("DeepSeek-V3.2");
        }
        Self { vllm, sglang, puts_media_first: MEDIA_FIRST.contains(&architecture) }
    }

    /// Whether the tokens of media precede all others, wherever the template prints them.
    #[must_use]
    pub const fn puts_media_first(self) -> bool {
        self.puts_media_first
    }

    /// The family, if this engine makes the model's prompts by code.
    #[must_use]
    pub fn of(self, engine: ChatEngine) -> Option<&'static str> {
        match engine {
            ChatEngine::Vllm => self.vllm,
            ChatEngine::Sglang => self.sglang,
            ChatEngine::TensorRtLlm => None,
        }
    }
}

/// Whether vLLM takes Mistral's own tokenizer: a folder with its vocabulary and with weights in Mistral's format.
fn has_mistral_files(folder: &Path) -> bool {
    let names: Vec<String> = fs::read_dir(folder)
        .map(|entries| entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
        .unwrap_or_default();
    let has = |is: &dyn Fn(&str) -> bool| names.iter().any(|name| is(name));
    has(&|name| name == "tekken.json" || name.starts_with("tokenizer.model.v"))
        && has(&|name| name.starts_with("consolidated") && name.ends_with(".safetensors"))
}
