//! Files of Mistral's models, and the format of the prompt that they name.

use std::fs;
use std::path::Path;

use serde::Deserialize;

use super::{CodedFamily, Encoder};
use crate::vllm::EFFORTS;

/// The file with the vocabulary, the version of the prompt's format and the settings.
pub const TEKKEN_FILE: &str = "tekken.json";
/// A file of models in Mistral's format. It stands for the weights in a folder without any.
pub const PARAMETERS_FILE: &str = "params.json";
/// Beginning of the names of families with a SentencePiece vocabulary.
pub(super) const SENTENCE_PIECE_FAMILY: &str = "Mistral (SentencePiece";
/// Beginning of the names of SentencePiece vocabularies, before the version's number.
const SENTENCE_PIECE_FILE: &str = "tokenizer.model.v";

/// The version of the prompt's format.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(super) enum Version {
    V3,
    V7,
    V11,
    V13,
    V15,
}

/// The prompt's format.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Format {
    pub(super) version: Version,
    pub(super) settings: Option<Settings>,
}

/// The settings of a model, from version 15 on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Settings {
    pub(super) efforts: Option<Efforts>,
}

/// The efforts of reasoning that a model supports.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Efforts {
    pub(super) are_known: [bool; EFFORTS.len()],
    pub(super) default: &'static str,
}

/// The vocabulary in Mistral's format among the names of a model's files.
#[must_use]
pub fn vocabulary<'n>(names: &[&'n str]) -> Option<&'n str> {
    let find = |is: &dyn Fn(&str) -> bool| names.iter().copied().find(|name| is(name));
    find(&|name| name == TEKKEN_FILE)
        .or_else(|| find(&|name| name.starts_with(SENTENCE_PIECE_FILE) && !name.contains('/')))
}

/// Whether a model has weights in Mistral's format, by the names of its files.
#[must_use]
pub fn has_weights(names: &[&str]) -> bool {
    names.iter().any(|name| name.starts_with("consolidated") && name.ends_with(".safetensors"))
}

/// The names of the files in a folder; none if it cannot be read.
#[must_use]
pub fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

/// The family of a folder with a vocabulary and weights in Mistral's format. vLLM prefers this format to others.
pub(super) fn family(folder: &Path) -> Option<CodedFamily> {
    let names = names_in(folder);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let has_no_weights = !names.iter().any(|name| name.ends_with(".safetensors"));
    let is_mistrals = has_weights(&names) || (has_no_weights && names.contains(&PARAMETERS_FILE));
    let vocabulary = vocabulary(&names).filter(|_| is_mistrals)?;
    Some(match vocabulary.strip_prefix(SENTENCE_PIECE_FILE) {
        None => family_of_tekken(&folder.join(vocabulary)),
        Some("1") => CodedFamily::unknown("Mistral (SentencePiece v1)"),
        Some("2") => CodedFamily::unknown("Mistral (SentencePiece v2)"),
        Some("3") => CodedFamily::unknown("Mistral (SentencePiece v3)"),
        Some(version) if version.starts_with('7') => CodedFamily::unknown("Mistral (SentencePiece v7)"),
        Some(_) => CodedFamily::unknown("Mistral (SentencePiece of an unknown version)"),
    })
}

fn family_of_tekken(path: &Path) -> CodedFamily {
    #[derive(Deserialize)]
    struct Tekken {
        config: Config,
        model_settings_builder: Option<Builder>,
    }
    #[derive(Deserialize)]
    struct Config {
        version: String,
    }
    #[derive(Deserialize)]
    struct Builder {
        reasoning_effort: Option<EffortsBuilder>,
    }
    #[derive(Deserialize)]
    struct EffortsBuilder {
        values: Vec<String>,
        default: Option<String>,
    }
    let tekken = fs::read(path).ok().and_then(|text| serde_json::from_slice::<Tekken>(&text).ok());
    let Some(Tekken { config, model_settings_builder }) = tekken else {
        return CodedFamily::unknown("Mistral (tekken of an unknown version)");
    };
    let settings = model_settings_builder.map(|builder| Settings {
        efforts: builder.reasoning_effort.map(|EffortsBuilder { values, default }| Efforts {
            are_known: EFFORTS.map(|effort| values.iter().any(|value| value == effort)),
            default: EFFORTS.into_iter().find(|effort| default.as_deref() == Some(*effort)).unwrap_or(EFFORTS[0]),
        }),
    });
    let known = |name, version| CodedFamily { name, encoder: Some(Encoder::Mistral(Format { version, settings })) };
    match config.version.as_str() {
        "v3" => known("Mistral (tekken v3)", Version::V3),
        "v7" => known("Mistral (tekken v7)", Version::V7),
        "v11" => known("Mistral (tekken v11)", Version::V11),
        "v13" => known("Mistral (tekken v13)", Version::V13),
        "v15" => known("Mistral (tekken v15)", Version::V15),
        _ => CodedFamily::unknown("Mistral (tekken of an unknown version)"),
    }
}
