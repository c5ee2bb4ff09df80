//! The class of a model's tokenizer in `transformers` 5, as engines choose it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use flash_indexer_engine_chats::ChatEngine;
use serde::Deserialize;
use serde_json::Value;

/// A class that builds its own pipeline and takes only the vocabulary, the merges and the post-processor of `tokenizer.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenizerClass {
    Llama,
    CodeLlama,
    Gpt2,
    CodeGen,
    GptNeoX,
    Qwen2,
    Qwen35,
    Gemma,
    Cohere,
}

/// The class that an engine on `transformers` 5 chooses.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ClassChoice {
    /// A class that takes `tokenizer.json` as it is.
    Generic,
    /// A class that is rebuilt here.
    Class(TokenizerClass),
    /// Another class with its own pipeline, by its name.
    Other(String),
}

/// Facts of `transformers` 5.19, which `tests/tokenize/classes.py` writes.
#[derive(Deserialize)]
struct Facts {
    /// Types of models whose class takes `tokenizer.json` as it is.
    generic_types: BTreeSet<String>,
    /// Types of models whose class is not the one in `tokenizer_config.json`.
    corrected_types: BTreeSet<String>,
    /// Classes by type of model, except classes that take `tokenizer.json` as it is.
    classes: BTreeMap<String, String>,
    /// Models on the hub whose `tokenizer.json` is taken as it is, in lower case. A star at the end matches any suffix.
    generic_models: Vec<String>,
    /// Further classes that do not take `tokenizer.json` as it is.
    other_classes: BTreeSet<String>,
}

static FACTS: LazyLock<Facts> = LazyLock::new(|| {
    serde_json::from_str(include_str!("tokenizer_classes.json")).expect("the generated file is valid")
});

/// Types of models for which vLLM 0.32 takes `tokenizer.json` as it is, in addition to the types of `transformers`.
const GENERIC_TYPES_OF_VLLM: [&str; 6] =
    ["deepseek_v41", "internlm2", "step3_vl", "step3p7", "unlimited-ocr", "unlimited_ocr"];

impl ClassChoice {
    /// The class that an engine chooses, by the model's name and the contents of `tokenizer_config.json` and `config.json`. SGLang takes
    /// the declared one where `transformers` would take `tokenizer.json` as it is.
    pub(super) fn of(engine: ChatEngine, model: &str, tokenizer_config: &Value, config: &Value) -> Self {
        let has_own_code = match &tokenizer_config["auto_map"] {
            Value::Object(map) => map.contains_key("AutoTokenizer"),
            other => other.is_array(),
        };
        if has_own_code || engine == ChatEngine::TensorRtLlm {
            return Self::Generic;
        }
        let declared = tokenizer_config["tokenizer_class"].as_str();
        let model_type = config["model_type"].as_str().unwrap_or_default();
        let registered = FACTS.classes.get(model_type).map(String::as_str);
        let name = declared.or(config["tokenizer_class"].as_str());
        let is_corrected = FACTS.corrected_types.contains(model_type);
        let is_generic = FACTS.generic_types.contains(model_type)
            || is_generic_model(model)
            || (engine == ChatEngine::Vllm && GENERIC_TYPES_OF_VLLM.contains(&model_type));
        let chosen = match name {
            _ if is_generic => None,
            None => registered,
            Some(_) if is_corrected && registered.is_some() => registered,
            Some(name) => Some(name),
        };
        let chosen = chosen.map_or(Self::Generic, Self::named);
        match (chosen, declared) {
            (Self::Generic, Some(declared)) if engine == ChatEngine::Sglang => Self::named(declared),
            (chosen, _) => chosen,
        }
    }

    fn named(name: &str) -> Self {
        match TokenizerClass::named(name) {
            Some(class) => Self::Class(class),
            None if FACTS.other_classes.contains(name.strip_suffix("Fast").unwrap_or(name)) => {
                Self::Other(name.to_owned())
            }
            None => Self::Generic,
        }
    }
}

fn is_generic_model(model: &str) -> bool {
    let model = model.to_lowercase();
    FACTS.generic_models.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(beginning) => model.starts_with(beginning),
        None => model == *pattern,
    })
}

impl TokenizerClass {
    /// The class by its name. `None` for classes that take `tokenizer.json` as it is, and for unknown ones.
    fn named(name: &str) -> Option<Self> {
        Some(match name.strip_suffix("Fast").unwrap_or(name) {
            "LlamaTokenizer" => Self::Llama,
            "CodeLlamaTokenizer" => Self::CodeLlama,
            "GPT2Tokenizer" => Self::Gpt2,
            "CodeGenTokenizer" => Self::CodeGen,
            "GPTNeoXTokenizer" => Self::GptNeoX,
            "Qwen2Tokenizer" => Self::Qwen2,
            "Qwen3_5Tokenizer" => Self::Qwen35,
            "GemmaTokenizer" => Self::Gemma,
            "CohereTokenizer" => Self::Cohere,
            _ => return None,
        })
    }

    /// The class that an engine on `transformers` 4 takes for BPE models, if it changes the pipeline of `tokenizer.json`: the
    /// declared one, else that of the model's type.
    pub(super) fn declared(tokenizer_config: &Value, config: &Value) -> Option<Self> {
        declared_name(tokenizer_config, config).and_then(Self::named)
    }

    /// Whether the class of `transformers` 4 adds the token that begins a sequence if `add_bos_token` is not set. `Some` if the
    /// class adds begin and end tokens by `add_bos_token` and `add_eos_token`; `None` if the post-processor is the file's.
    pub(super) fn begins_by_default(self) -> Option<bool> {
        match self {
            Self::Llama | Self::CodeLlama | Self::Gemma | Self::Cohere => Some(true),
            Self::GptNeoX => Some(false),
            Self::Gpt2 | Self::CodeGen | Self::Qwen2 | Self::Qwen35 => None,
        }
    }

    /// Whether the class of `transformers` 4 has the [default](Self::default_tokens) for a special token.
    pub(super) fn has_default_in_4(self, name: &str) -> bool {
        match name {
            "bos_token" | "eos_token" | "unk_token" => true,
            "pad_token" => !matches!(self, Self::GptNeoX | Self::Cohere),
            _ => false,
        }
    }

    /// The special tokens with names specific to the class. They are defaults for names that the configuration lacks.
    pub(super) const fn own_tokens(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::CodeLlama => &[
                ("prefix_token", "▁<PRE>"),
                ("middle_token", "▁<MID>"),
                ("suffix_token", "▁<SUF>"),
                ("eot_token", "▁<EOT>"),
                ("fill_token", "<FILL_ME>"),
            ],
            _ => &[],
        }
    }

    /// The special tokens that the class has if `tokenizer_config.json` has none of that name.
    pub(super) const fn default_tokens(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Llama | Self::CodeLlama => &[("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>")],
            Self::Gpt2 | Self::CodeGen => {
                &[("bos_token", END_OF_TEXT), ("eos_token", END_OF_TEXT), ("unk_token", END_OF_TEXT)]
            }
            Self::GptNeoX => &[
                ("bos_token", END_OF_TEXT),
                ("eos_token", END_OF_TEXT),
                ("unk_token", END_OF_TEXT),
                ("pad_token", "<|padding|>"),
            ],
            Self::Qwen2 | Self::Qwen35 => {
                &[("eos_token", END_OF_TEXT), ("unk_token", END_OF_TEXT), ("pad_token", END_OF_TEXT)]
            }
            Self::Gemma => &[
                ("bos_token", "<bos>"),
                ("eos_token", "<eos>"),
                ("unk_token", "<unk>"),
                ("pad_token", "<pad>"),
                ("mask_token", "<mask>"),
            ],
            Self::Cohere => &[
                ("bos_token", "<BOS_TOKEN>"),
                ("eos_token", "<|END_OF_TURN_TOKEN|>"),
                ("unk_token", "<UNK>"),
                ("sep_token", "<SEP>"),
                ("pad_token", "<PAD>"),
                ("cls_token", "<CLS>"),
                ("mask_token", "<MASK_TOKEN>"),
            ],
        }
    }
}

fn declared_name<'c>(tokenizer_config: &'c Value, config: &'c Value) -> Option<&'c str> {
    let name = tokenizer_config["tokenizer_class"].as_str().or(config["tokenizer_class"].as_str());
    name.or_else(|| FACTS.classes.get(config["model_type"].as_str()?).map(String::as_str))
}

/// Whether an engine on `transformers` 4 takes a class that sets the normalizer of BERT by `do_lower_case` and the like.
pub(super) fn is_bert_in_4(tokenizer_config: &Value, config: &Value) -> bool {
    let name = declared_name(tokenizer_config, config);
    name.is_some_and(|name| BERT_CLASSES_IN_4.contains(&name.strip_suffix("Fast").unwrap_or(name)))
}

const BERT_CLASSES_IN_4: [&str; 9] = [
    "BertTokenizer",
    "ConvBertTokenizer",
    "DistilBertTokenizer",
    "ElectraTokenizer",
    "FunnelTokenizer",
    "LayoutLMTokenizer",
    "LxmertTokenizer",
    "MobileBertTokenizer",
    "SqueezeBertTokenizer",
];
const END_OF_TEXT: &str = "<|endoftext|>";
