//! Prompts that engines make by code, compared with what the real engines make.

use std::collections::BTreeMap;
use std::fs;
use std::time::SystemTime;

use chat_template::Json;
use flash_indexer_engine_chats::{Chat, ChatEngine, CodedFamily, CodedPrompts, PrepareError};
use serde::Deserialize;

use crate::{chat, read, shorten};

/// The outcomes of an engine for each request and family.
#[derive(Deserialize)]
struct Recording {
    requests: BTreeMap<String, Json>,
    texts: Vec<String>,
    /// Outcomes by family and request.
    cases: BTreeMap<String, BTreeMap<String, Outcome>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Outcome {
    /// Position of the text.
    Rendered(usize),
    Failed {
        error: String,
    },
}

/// Requests that the engine rejects, and this service accepts or rejects later.
const LENIENT: [&str; 4] = [
    // Null counts as missing.
    "null_generation_prompt",
    // Rejected when the tokens are cut.
    "truncated_negative",
    // Ignored. The engine rejects templates of requests unless it is started to trust them.
    "of_code.template",
    "of_code.kwargs_template",
];

/// A recording and its engine.
#[derive(Clone, Copy)]
struct Recorded {
    file: &'static str,
    engine: ChatEngine,
}

const VLLM: Recorded = Recorded { file: "vllm-0.32.0-coded.json", engine: ChatEngine::Vllm };
const SGLANG: Recorded = Recorded { file: "sglang-0.5.23-coded.json", engine: ChatEngine::Sglang };

/// The family of a model with these files.
fn family_of(files: &[(&str, &str)], engine: ChatEngine) -> CodedFamily {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, text) in files {
        fs::write(folder.path().join(name), text).expect("written");
    }
    CodedPrompts::read(folder.path(), false).of(engine).expect("a family with prompts by code")
}

/// The family of an architecture for an engine.
fn family_for(architecture: &str, engine: ChatEngine) -> CodedFamily {
    family_of(&[("config.json", &format!("{{\"architectures\": [{architecture:?}]}}"))], engine)
}

/// The family of an architecture for vLLM.
fn family(architecture: &str) -> CodedFamily {
    family_for(architecture, ChatEngine::Vllm)
}

/// The parts of two texts after their common beginning.
fn from_difference<'t>(a: &'t str, b: &'t str) -> (&'t str, &'t str) {
    let common = a.char_indices().zip(b.chars()).find(|((_, a), b)| a != b).map(|((at, _), _)| at);
    let common = common.unwrap_or_else(|| a.len().min(b.len()));
    (&a[common..], &b[common..])
}

/// Compares every case of a family, and returns the number of cases, and the number of cases that the engine rejects.
fn compare(recorded: Recorded, family: &str, coded: CodedFamily, exceptions: &[&str]) -> (usize, usize) {
    let recording: Recording = read(recorded.file);
    let (mut cases, mut rejected) = (0, 0);
    let mut wrong = Vec::new();
    for (request, outcome) in &recording.cases[family] {
        let base = request.trim_end_matches("+thinking");
        if LENIENT.contains(&base) || exceptions.contains(&base) {
            continue;
        }
        cases += 1;
        let rendered = chat(&recording.requests[request].to_text(), recorded.engine);
        let rendered = rendered.map_err(|error| error.to_string());
        let rendered =
            rendered.and_then(|chat| chat.render_by_code(coded, &|_| true).map_err(|error| error.to_string()));
        let rendered = rendered.map(|it| it.text + &it.prepared.continuation.unwrap_or_default());
        match (outcome, rendered) {
            (Outcome::Failed { .. }, Err(_)) => rejected += 1,
            (Outcome::Failed { error }, Ok(ours)) => {
                wrong.push(format!("{request}\n  rejected {error:?}\n  rendered {ours:?}"));
            }
            (Outcome::Rendered(text), Err(error)) => {
                wrong.push(format!("{request}\n  expected {:?}\n  rejected {error:?}", recording.texts[*text]));
            }
            (Outcome::Rendered(text), Ok(ours)) if ours != recording.texts[*text] => {
                let (expected, ours) = from_difference(&recording.texts[*text], &ours);
                wrong.push(format!("{request}\n  expected {expected:?}\n  rendered {ours:?}"));
            }
            (Outcome::Rendered(_), Ok(_)) => {}
        }
    }
    assert!(wrong.is_empty(), "{} of {cases} differ:\n{}", wrong.len(), shorten(&wrong));
    (cases, rejected)
}

#[test]
fn prompts_of_deepseek_v32_are_those_of_vllm() {
    let (cases, rejected) = compare(VLLM, "deepseek_v32", family("DeepseekV32ForCausalLM"), &[]);
    assert!(cases > 400 && rejected < cases / 2, "{cases} cases, {rejected} rejected");
}

/// 501: reasoning that is not text. The encoder prints it as Python does.
const UNKNOWN_TO_V4: [&str; 2] = ["of_code.reasoning_number", "of_code.reasoning_object"];

#[test]
fn prompts_of_deepseek_v4_are_those_of_vllm() {
    let (cases, rejected) = compare(VLLM, "deepseek_v4", family("DeepseekV4ForCausalLM"), &UNKNOWN_TO_V4);
    assert!(cases > 400 && rejected < cases / 2, "{cases} cases, {rejected} rejected");
}

/// Requests for gpt-oss that vLLM renders, and this service does not.
const UNKNOWN_TO_HARMONY: [&str; 5] = [
    // Rejected: a tool call that does not call a function.
    "call_custom",
    // 501: only the engine can tokenize special tokens that a text spells out.
    "of_code.special_tokens",
    "of_code.special_answer",
    // 501: a user's message with tool calls.
    "of_code.user_calls",
    // Rejected: reasoning that is not text. vLLM drops it unread.
    "of_code.reasoning_object",
];

#[test]
fn prompts_of_gpt_oss_are_those_of_vllm() {
    let (cases, rejected) = compare(VLLM, "harmony", family("GptOssForCausalLM"), &UNKNOWN_TO_HARMONY);
    assert!(cases > 400 && rejected < cases / 4, "{cases} cases, {rejected} rejected");
}

#[test]
fn prompts_of_deepseek_v4_with_images_are_those_of_v4_without_them() {
    let exceptions = [UNKNOWN_TO_V4.as_slice(), &MEDIA].concat();
    let (cases, _) = compare(VLLM, "deepseek_v4", family("DeepseekV4ForConditionalGeneration"), &exceptions);
    assert!(cases > 400, "{cases} cases");
}

/// The recorded models take no media. Those of these families may.
const MEDIA: [&str; 3] = ["of_code.parts_image", "of_code.result_part_of_image", "of_code.parts_audio"];

/// As [`MEDIA`], and 501: reasoning that is not text.
const UNKNOWN_TO_V41: [&str; 5] =
    [MEDIA[0], MEDIA[1], MEDIA[2], "of_code.reasoning_number", "of_code.reasoning_object"];

#[test]
fn prompts_of_deepseek_v41_are_those_of_vllm() {
    let (cases, rejected) = compare(VLLM, "deepseek_v41", family("DeepseekV41ForCausalLM"), &UNKNOWN_TO_V41);
    assert!(cases > 500 && rejected < cases / 2, "{cases} cases, {rejected} rejected");
}

#[test]
fn prompts_of_inkling_are_those_of_vllm() {
    let (cases, rejected) = compare(VLLM, "inkling", family("InklingForConditionalGeneration"), &MEDIA);
    assert!(cases > 500 && rejected < cases / 2, "{cases} cases, {rejected} rejected");
}

/// As [`MEDIA`], and requests for Mistral's models that vLLM renders, and this service does not.
const UNKNOWN_TO_MISTRAL: [&str; 5] = [
    MEDIA[0],
    MEDIA[1],
    MEDIA[2],
    // Schemas of tools are not validated.
    "tools_types",
    "of_code.tools_types",
];

/// A vocabulary's version and settings.
fn tekken(version: &str, settings: &str) -> String {
    format!("{{\"config\": {{\"version\": {version:?}}}, \"model_settings_builder\": {settings}}}")
}

#[test]
fn prompts_of_mistral_are_those_of_vllm_in_every_version() {
    for version in ["v3", "v7", "v11", "v13", "v15"] {
        let tekken = tekken(version, r#"{"reasoning_effort": {"default": "none", "values": ["none", "high", "max"]}}"#);
        let family = family_of(&[("tekken.json", &tekken), ("consolidated.safetensors", "")], ChatEngine::Vllm);
        let (cases, rejected) = compare(VLLM, &format!("mistral_{version}"), family, &UNKNOWN_TO_MISTRAL);
        assert!(cases > 500 && rejected < cases, "{version}: {cases} cases, {rejected} rejected");
    }
}

/// The text that precedes the media of a chat, and the kind of the first part with media.
fn before_media(family: CodedFamily, parts: &str) -> (String, &'static str) {
    let body = format!("{{\"messages\": [{{\"role\": \"user\", \"content\": {parts}}}]}}");
    let chat = chat(&body, ChatEngine::Vllm).expect("a chat");
    let mut rendering = chat.render_by_code(family, &|_| true).expect("a rendering");
    let media = rendering.media.expect("media");
    rendering.text.truncate(media.bytes);
    (rendering.text, media.kind)
}

#[test]
fn prompts_by_code_are_known_up_to_their_media() {
    let image = r#"[{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "b"}]"#;
    for architecture in ["DeepseekV4ForConditionalGeneration", "DeepseekV41ForCausalLM"] {
        let (text, kind) = before_media(family(architecture), image);
        assert!(text.ends_with("<｜User｜>a\n\n") && kind == "image_url", "{architecture}: {text}");
    }
    let (text, kind) = before_media(family("InklingForCausalLM"), image);
    assert!(text.ends_with("<|content_text|>a<|end_message|><|message_user|>") && kind == "image_url", "{text}");
    let tekken = [("tekken.json", r#"{"config": {"version": "v3"}}"#), ("consolidated.safetensors", "")];
    // The library puts an image before the texts of its message.
    assert_eq!(before_media(family_of(&tekken, ChatEngine::Vllm), image), ("<s>".to_owned(), "image_url"));
}

#[test]
fn declared_tools_of_inkling_begin_with_the_token_that_the_vocabulary_has() {
    let body = r#"{"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function", "function": {"name": "f"}}]}"#;
    let chat = chat(body, ChatEngine::Vllm).expect("a chat");
    let text_with = |has_token: &dyn Fn(&str) -> bool| {
        chat.render_by_code(family("InklingForCausalLM"), has_token).expect("a rendering").text
    };
    let begin = "<|message_system|>tool_declare";
    assert!(text_with(&|_| true).starts_with(&format!("{begin}<|content_xml|>[")));
    assert!(text_with(&|token| token != "<|content_xml|>").starts_with(&format!("{begin}<|unused_200024|>[")));
}

#[test]
fn versions_of_mistral_without_a_known_format_are_named() {
    let request = r#"{"messages": [{"role": "user", "content": "a"}]}"#;
    for (files, name) in [
        ([("tekken.json", r#"{"config": {"version": "v99"}}"#), ("params.json", "")], "tekken of an unknown version"),
        ([("tokenizer.model.v1", ""), ("consolidated.safetensors", "")], "SentencePiece v1"),
        ([("tokenizer.model.v2", ""), ("consolidated.safetensors", "")], "SentencePiece v2"),
        ([("tokenizer.model.v3", ""), ("consolidated-00001.safetensors", "")], "SentencePiece v3"),
        ([("tokenizer.model.v7m1", ""), ("params.json", "")], "SentencePiece v7"),
    ] {
        let chat = chat(request, ChatEngine::Vllm).expect("a chat");
        let error = chat.render_by_code(family_of(&files, ChatEngine::Vllm), &|_| true).expect_err("no prompt");
        let message = error.to_string();
        assert!(
            matches!(error, PrepareError::Unsupported(_)) && message.contains(&format!("Mistral ({name})")),
            "{message}"
        );
    }
}

#[test]
fn settings_of_mistral_are_those_of_the_vocabulary() {
    let text = |settings: &str, more: &str| {
        let tekken = tekken("v15", settings);
        let family = family_of(&[("tekken.json", &tekken), ("params.json", "")], ChatEngine::Vllm);
        let body = format!("{{\"messages\": [{{\"role\": \"user\", \"content\": \"a\"}}]{more}}}");
        let rendered = chat(&body, ChatEngine::Vllm).expect("a chat").render_by_code(family, &|_| true);
        rendered.map(|it| it.text).map_err(|error| error.to_string())
    };
    let efforts = r#"{"reasoning_effort": {"default": "high", "values": ["low", "high"]}}"#;
    let high = r#"<s>[MODEL_SETTINGS]{"reasoning_effort": "high"}[/MODEL_SETTINGS][INST]a[/INST]"#;
    assert_eq!(text(efforts, "").as_deref(), Ok(high));
    assert_eq!(text(efforts, r#", "reasoning_effort": "low""#).as_deref(), Ok(&*high.replace("high", "low")));
    assert!(text(efforts, r#", "reasoning_effort": "max""#).is_err_and(|error| error.contains("\"max\"")));
    assert_eq!(text("{}", r#", "reasoning_effort": "low""#).as_deref(), Ok("<s>[INST]a[/INST]"));
    assert!(text("null", "").is_err_and(|error| error.contains("model_settings_builder")));
}

#[test]
fn prompts_of_deepseek_v32_are_those_of_sglang() {
    // Schemas of tools are not validated.
    let family = family_for("DeepseekV32ForCausalLM", ChatEngine::Sglang);
    let (cases, rejected) = compare(SGLANG, "deepseek_v32", family, &["of_code.tools_one_of"]);
    assert!(cases > 500 && rejected < cases / 2, "{cases} cases, {rejected} rejected");
}

#[test]
fn prompts_of_gpt_oss_have_the_fixed_date_of_the_engine() {
    let recording: Recording = read(VLLM.file);
    let Outcome::Rendered(text) = recording.cases["harmony"]["plain"] else { panic!("the engine takes the request") };
    let body = recording.requests["plain"].to_text();
    let mut chat = Chat::from_body(body.as_bytes(), ChatEngine::Vllm, SystemTime::UNIX_EPOCH).expect("a chat");
    let render = |chat: &Chat| chat.render_by_code(family("GptOssForCausalLM"), &|_| true).expect("a rendering").text;
    assert_ne!(render(&chat), recording.texts[text]);
    // The engine was started with this date.
    chat.gpt_oss_date = Some("2026-11-23".into());
    assert_eq!(render(&chat), recording.texts[text]);
}
