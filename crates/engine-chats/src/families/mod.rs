//! Families of models whose prompts the engines' code makes, without a template.
//!
//! | file | role |
//! |---|---|
//! | `variables.rs` | variables of a chat's template that encoders read |
//! | `deepseek.rs` | what the prompts of all DeepSeek families share |
//! | `deepseek_v32.rs`, `deepseek_v32_tools.txt` | prompts of DeepSeek-V3.2, as vLLM and SGLang make them |
//! | `deepseek_turns.rs` | what the prompts of DeepSeek-V4 and V4.1 share |
//! | `deepseek_v4.rs`, `deepseek_v4_*.txt` | prompts of DeepSeek-V4, as vLLM makes them |
//! | `deepseek_v41.rs`, `deepseek_v41_tools.txt` | prompts of DeepSeek-V4.1, as vLLM makes them |
//! | `harmony.rs`, `typescript.rs` | prompts of gpt-oss, as vLLM makes them; schemas of tools in them |
//! | `inkling.rs` | prompts of Inkling, as vLLM makes them |
//! | `mistral.rs`, `mistral_messages.rs` | prompts of Mistral's models, as vLLM makes them; their messages |
//! | `mistral_files.rs` | files of Mistral's models, and the format of the prompt that they name |

mod deepseek;
mod deepseek_turns;
mod deepseek_v32;
mod deepseek_v4;
mod deepseek_v41;
mod harmony;
mod inkling;
mod mistral;
pub mod mistral_files;
mod mistral_messages;
mod typescript;
mod variables;

use std::fs;
use std::path::Path;

use chat_template::utc_date;
use serde_json::Value;

use super::chat::{Chat, ChatEngine, PreparedChat, Rendering};
use super::content_format::ContentFormat;
use super::error::{PrepareError, read_each};
use super::media::Media;
use super::vllm_message::validate_but_parts;
use super::{sglang, vllm};

/// A family of models whose prompts an engine makes by code.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CodedFamily {
    name: &'static str,
    /// `None` if this service does not make the prompts.
    encoder: Option<Encoder>,
}

/// Code that makes prompts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Encoder {
    /// vLLM's encoder of DeepSeek-V3.2.
    DeepSeekV32,
    /// SGLang's encoder of DeepSeek-V3.2.
    DeepSeekV32OfSglang,
    /// vLLM's encoder of DeepSeek-V4, with or without images.
    DeepSeekV4 { takes_images: bool },
    /// vLLM's encoder of DeepSeek-V4.1.
    DeepSeekV41,
    /// vLLM's encoder of Inkling.
    Inkling,
    /// vLLM's encoder of Mistral's models with a tekken tokenizer.
    Mistral(mistral_files::Format),
    /// vLLM's encoder of gpt-oss.
    Harmony,
}

impl CodedFamily {
    const fn unknown(name: &'static str) -> Self {
        Self { name, encoder: None }
    }

    /// The code that makes the family's prompts.
    pub(super) fn encoder(self) -> Result<Encoder, PrepareError> {
        self.encoder.ok_or_else(|| {
            PrepareError::Unsupported(format!(
                "the engine makes prompts of the model's family, {}, by code and not by a chat template; send token_ids",
                self.name
            ))
        })
    }
}

impl Encoder {
    /// Renders a chat. `has_token` is whether the model's vocabulary has a token.
    pub(super) fn render(self, chat: &Chat, has_token: &dyn Fn(&str) -> bool) -> Result<Rendering, PrepareError> {
        let Chat { request, fields, .. } = chat;
        let as_given = |format| vllm::prepare_for_code(request, fields, request.messages.clone(), format);
        match self {
            Self::DeepSeekV32 => {
                let (prepared, _) = prepare(chat, ContentFormat::Text, false)?;
                Ok(Rendering { text: deepseek_v32::render_of_vllm(&prepared)?, prepared, ..Rendering::default() })
            }
            Self::DeepSeekV32OfSglang => {
                let mut prepared = sglang::prepare_for_code(request, fields)?;
                prepared.adds_special_tokens = true;
                Ok(Rendering { text: deepseek_v32::render_of_sglang(&prepared)?, prepared, ..Rendering::default() })
            }
            Self::DeepSeekV4 { takes_images } => {
                let (prepared, media) = prepare(chat, ContentFormat::Parts, takes_images)?;
                let text = deepseek_v4::render(&prepared)?;
                let media = media.map(|kind| deepseek_turns::cut_before_image(&text, kind));
                Ok(Rendering { prepared, text, media, ..Rendering::default() })
            }
            Self::DeepSeekV41 => {
                let prepared = as_given(Some(ContentFormat::Parts))?;
                let (text, media) = deepseek_v41::render(&request.messages, &prepared)?;
                Ok(Rendering { prepared, text, media, ..Rendering::default() })
            }
            Self::Inkling => {
                let prepared = made_of_tokens(as_given(Some(ContentFormat::Text))?);
                let (text, media) = inkling::render(&request.messages, &prepared, has_token)?;
                Ok(Rendering { prepared, text, media, ..Rendering::default() })
            }
            Self::Mistral(format) => {
                mistral::render(chat, made_of_tokens(as_given(Some(ContentFormat::Text))?), format)
            }
            Self::Harmony => {
                let mut prepared = made_of_tokens(as_given(None)?);
                // vLLM does not truncate these prompts.
                prepared.is_whole = true;
                let messages = read_each("messages", &request.messages, validate_but_parts)?;
                let date = chat.gpt_oss_date.as_deref().map(str::to_owned).or_else(|| chat.now.map(utc_date));
                let date = date.ok_or_else(|| PrepareError::Unsupported("the current date is unknown".to_owned()))?;
                let tools = prepared.request.tools.as_deref().unwrap_or_default();
                let reasoning_effort = fields.reasoning_effort.as_ref();
                let harmony::Harmony { text, cuts } = harmony::render(&messages, tools, reasoning_effort, &date)?;
                Ok(Rendering { prepared, text, cuts, ..Rendering::default() })
            }
        }
    }
}

/// A chat that vLLM converts to tokens itself. No special tokens are added.
fn made_of_tokens(prepared: PreparedChat) -> PreparedChat {
    PreparedChat { adds_special_tokens: false, ..prepared }
}

/// Changes a chat as vLLM does, and returns the kind of its first part with media.
fn prepare(
    chat: &Chat,
    format: ContentFormat,
    takes_images: bool,
) -> Result<(PreparedChat, Option<&'static str>), PrepareError> {
    let media = Media::as_engine();
    let messages = vllm::conversation(&chat.request, format, &media)?;
    let kind = media.first().map(|first| first.kind);
    if let Some(kind) = kind.filter(|_| !takes_images) {
        return Err(PrepareError::rejected(format!("the model takes no content part of type {kind:?}")));
    }
    Ok((vllm::prepare_for_code(&chat.request, &chat.fields, messages, Some(format))?, kind))
}

const DEEPSEEK_V4: CodedFamily =
    CodedFamily { name: "DeepSeek-V4", encoder: Some(Encoder::DeepSeekV4 { takes_images: false }) };
const DEEPSEEK_V4_IMAGES: CodedFamily =
    CodedFamily { name: "DeepSeek-V4", encoder: Some(Encoder::DeepSeekV4 { takes_images: true }) };
const DEEPSEEK_V41: CodedFamily = CodedFamily { name: "DeepSeek-V4.1", encoder: Some(Encoder::DeepSeekV41) };
const DEEPSEEK_V32: CodedFamily = CodedFamily { name: "DeepSeek-V3.2", encoder: Some(Encoder::DeepSeekV32) };
const INKLING: CodedFamily = CodedFamily { name: "Inkling", encoder: Some(Encoder::Inkling) };
const GPT_OSS: CodedFamily = CodedFamily { name: "gpt-oss (harmony)", encoder: Some(Encoder::Harmony) };

/// Architectures for which vLLM has its own renderer, and their families.
const VLLM: [(&str, CodedFamily); 9] = [
    ("GptOssForCausalLM", GPT_OSS),
    ("DeepseekV32ForCausalLM", DEEPSEEK_V32),
    ("DeepseekV4ForCausalLM", DEEPSEEK_V4),
    ("DeepseekV4ForConditionalGeneration", DEEPSEEK_V4_IMAGES),
    ("DeepseekV41ForCausalLM", DEEPSEEK_V41),
    ("KimiK3ForConditionalGeneration", CodedFamily::unknown("Kimi-K3")),
    ("MoonshotKimiaForCausalLM", CodedFamily::unknown("Kimi-Audio")),
    ("InklingForCausalLM", INKLING),
    ("InklingForConditionalGeneration", INKLING),
];

/// Parts of architectures for which SGLang has its own encoder, and their families.
const SGLANG: [(&str, CodedFamily); 4] = [
    ("DeepseekV41", CodedFamily::unknown("DeepSeek-V4.1")),
    ("DeepseekV4", CodedFamily::unknown("DeepSeek-V4")),
    ("KimiK3", CodedFamily::unknown("Kimi-K3")),
    ("InklingForConditionalGeneration", CodedFamily::unknown("Inkling")),
];

/// Architectures whose processors put media at the beginning of the prompt, regardless of the template.
const MEDIA_FIRST: [&str; 4] = [
    "Blip2ForConditionalGeneration",
    "MolmoForCausalLM",
    "OpenVLAForActionPrediction",
    "PaliGemmaForConditionalGeneration",
];

/// The families of a model by engine, read from its folder.
#[derive(Debug, Clone, Copy, Default)]
pub struct CodedPrompts {
    vllm: Option<CodedFamily>,
    sglang: Option<CodedFamily>,
    /// No family's format in TensorRT-LLM's code is implemented.
    trtllm: Option<CodedFamily>,
    puts_media_first: bool,
}

impl CodedPrompts {
    /// Reads `config.json` and the names of the files in a model's folder. `has_template` is whether the model has a chat
    /// template. The prompts of a folder without these files come from a template.
    #[must_use]
    pub fn read(folder: &Path, has_template: bool) -> Self {
        let config: Value = fs::read(folder.join("config.json"))
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default();
        let architecture = config["architectures"][0].as_str().unwrap_or_default();
        let mut vllm = VLLM.iter().find(|(name, _)| *name == architecture).map(|(_, family)| *family);
        if config["model_type"] == "gpt_oss" {
            vllm = Some(GPT_OSS);
        }
        let by_architecture = vllm;
        if let Some(family) = mistral_files::family(folder) {
            vllm = Some(family);
        }
        let mut sglang = SGLANG.iter().find(|(part, _)| architecture.contains(part)).map(|(_, family)| *family);
        if architecture.contains("DeepseekV3") && !has_template {
            sglang = Some(CodedFamily { name: "DeepSeek-V3.2", encoder: Some(Encoder::DeepSeekV32OfSglang) });
        }
        let trtllm = by_architecture.or(sglang).map(|family| CodedFamily::unknown(family.name));
        Self { vllm, sglang, trtllm, puts_media_first: MEDIA_FIRST.contains(&architecture) }
    }

    /// Whether the tokens of media precede all others, wherever the template prints them.
    #[must_use]
    pub const fn puts_media_first(self) -> bool {
        self.puts_media_first
    }

    /// Whether the engine reads the vocabulary of `tekken.json`, even with a `tokenizer.json`, and finds no special tokens in texts.
    #[must_use]
    pub fn has_tekken_of(self, engine: ChatEngine) -> bool {
        self.of(engine).is_some_and(|family| matches!(family.encoder, Some(Encoder::Mistral(_))))
    }

    /// Whether the engine reads a vocabulary other than `tokenizer.json` that this service does not read, and finds no special
    /// tokens in texts.
    #[must_use]
    pub fn has_sentence_pieces_of(self, engine: ChatEngine) -> bool {
        self.of(engine).is_some_and(|family| family.name.starts_with(mistral_files::SENTENCE_PIECE_FAMILY))
    }

    /// The family, if this engine makes the model's prompts by code.
    #[must_use]
    pub fn of(self, engine: ChatEngine) -> Option<CodedFamily> {
        match engine {
            ChatEngine::Vllm => self.vllm,
            ChatEngine::Sglang => self.sglang,
            ChatEngine::TensorRtLlm => self.trtllm,
        }
    }
}
