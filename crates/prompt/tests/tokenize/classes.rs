//! Token ids equal those of engines on `transformers` 5 and 4: `classes.py` and `classes_4.py` next to this file generate them.

use std::fs;
use std::path::Path;

use flash_indexer_engine_chats::ChatEngine;
use flash_indexer_prompt::tokenize::{NamedPaths, PromptOptions, SpecialTokens, TokenizerSource, Transformers};
use serde_json::{Value, json};
use tempfile::tempdir;

use crate::pieces::{random_numbers, random_text, reference};
use crate::support::{pool_in, text};

fn expected() -> Value {
    serde_json::from_str(include_str!("classes.json")).expect("JSON")
}

const ENGINES: [(&str, ChatEngine); 2] = [("vllm", ChatEngine::Vllm), ("sglang", ChatEngine::Sglang)];

#[test]
fn classes_of_tokenizers_give_the_ids_of_engines_on_transformers_5() {
    let expected = expected();
    let texts = expected["texts"].as_array().expect("texts");
    let mut wrong = Vec::new();
    let (mut compared, mut unlike_the_file) = (0, 0);
    for case in expected["cases"].as_array().expect("cases") {
        let root = tempdir().expect("a directory");
        let model = write_case(root.path(), case);
        let pool = pool_in(root.path());
        for (name, engine) in ENGINES {
            for (key, special_tokens) in
                [(name.to_owned(), SpecialTokens::Added), (format!("{name}_plain"), SpecialTokens::Omitted)]
            {
                let options = PromptOptions { engine: Some(engine), special_tokens, ..PromptOptions::default() };
                for (number, written) in texts.iter().enumerate() {
                    let prompt = text(written.as_str().expect("a text"));
                    let ids = json!(pool.tokenize_with(&model, prompt, options).expect("tokens").ids);
                    compared += 1;
                    let as_file = PromptOptions { engine: None, ..options };
                    let prompt = text(written.as_str().expect("a text"));
                    let ids_of_file = pool.tokenize_with(&model, prompt, as_file).expect("tokens").ids;
                    unlike_the_file += usize::from(json!(ids_of_file) != case[&key][number]);
                    if ids != case[&key][number] {
                        wrong.push(format!("{} {key} {written}: {ids} is not {}", case["name"], case[&key][number]));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {compared}:\n{}", wrong.len(), wrong[..wrong.len().min(20)].join("\n"));
    assert!(compared > 2_000 && unlike_the_file > 500, "{unlike_the_file} of {compared}");
}

#[test]
fn classes_of_tokenizers_give_the_ids_of_engines_on_transformers_4() {
    let expected: Value = serde_json::from_str(include_str!("classes_4.json")).expect("JSON");
    let texts = expected["texts"].as_array().expect("texts");
    let mut wrong = Vec::new();
    let (mut compared, mut unlike_the_file) = (0, 0);
    for case in expected["cases"].as_array().expect("cases") {
        let root = tempdir().expect("a directory");
        let model = write_case(root.path(), case);
        let pool = pool_in(root.path());
        let ids = |written: &Value, engine, special_tokens, transformers| {
            let options = PromptOptions { engine, special_tokens, transformers, ..PromptOptions::default() };
            let prompt = text(written.as_str().expect("a text"));
            json!(pool.tokenize_with(&model, prompt, options).expect("tokens").ids)
        };
        for (key, special_tokens) in [("ids", SpecialTokens::Added), ("plain", SpecialTokens::Omitted)] {
            for (number, written) in texts.iter().enumerate() {
                let expected = &case[key][number];
                let of_file = ids(written, None, special_tokens, Transformers::Five);
                unlike_the_file += usize::from(of_file != *expected);
                for (engine, transformers) in [
                    (ChatEngine::TensorRtLlm, Transformers::Five),
                    (ChatEngine::Vllm, Transformers::Four),
                    (ChatEngine::Sglang, Transformers::Four),
                ] {
                    compared += 1;
                    let ids = ids(written, Some(engine), special_tokens, transformers);
                    if ids != *expected {
                        wrong.push(format!("{} {key} {engine:?} {written}: {ids} is not {expected}", case["name"]));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {compared}:\n{}", wrong.len(), wrong[..wrong.len().min(20)].join("\n"));
    assert!(compared > 6_000 && unlike_the_file > 300, "{unlike_the_file} of {compared}");
}

#[test]
fn a_class_with_a_pipeline_that_is_not_followed_is_named() {
    let root = tempdir().expect("a directory");
    for (class, model, expected) in [
        ("BertTokenizer", "word_pieces", Some("BertTokenizer")),
        ("T5TokenizerFast", "unigram", Some("T5TokenizerFast")),
        ("LlamaTokenizer", "unigram", Some("Llama")),
        ("LlamaTokenizer", "sentence_pieces", None),
        ("PreTrainedTokenizerFast", "unigram", None),
        ("OneOfTheModelsOwn", "unigram", None),
    ] {
        let name = format!("{class} of {model}");
        let files = json!({"tokenizer_config.json": {"tokenizer_class": class}});
        write_case(&root.path().join(&name), &json!({"name": "", "model": model, "files": files}));
        let path = root.path().join(&name).join("model");
        let tokenizer = NamedPaths::from_iter([(name.clone(), path)]).load(&name).expect("a tokenizer");
        assert_eq!(tokenizer.unknown_class(), expected, "{name}");
    }
}

/// Writes the files of a case, and returns the name of its model. A case with the name of a model on the hub is that model.
fn write_case(root: &Path, case: &Value) -> String {
    let name = case["name"].as_str().filter(|name| name.contains('/')).unwrap_or("model").to_owned();
    let folder = root.join(&name);
    fs::create_dir_all(&folder).expect("a folder");
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokenize/models");
    let model = models.join(case["model"].as_str().expect("a model"));
    fs::copy(model.join("tokenizer.json"), folder.join("tokenizer.json")).expect("a tokenizer");
    if model.join("tokenizer.model").exists() {
        fs::copy(model.join("tokenizer.model"), folder.join("tokenizer.model")).expect("a SentencePiece model");
    }
    for (file, content) in case["files"].as_object().expect("files") {
        fs::write(folder.join(file), content.to_string()).expect("a file");
    }
    name
}

#[test]
fn pieces_have_the_ids_of_the_whole_text_with_every_class() {
    let space_signs = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false});
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let digits = json!({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true}, bytes]});
    let nfc = json!({"type": "NFC"});
    let signs = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let before_spaces =
        json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false});
    let classes = [
        ("LlamaTokenizer", "sentence_pieces", Value::Null, space_signs),
        ("GemmaTokenizer", "sentence_pieces", signs, before_spaces),
        ("GPT2Tokenizer", "byte_level", Value::Null, bytes.clone()),
        ("CohereTokenizer", "byte_level", nfc.clone(), digits),
        ("GPTNeoXTokenizer", "byte_level", nfc, bytes),
    ];
    let names = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
    for (number, (class, model, normalizer, pre_tokenizer)) in classes.into_iter().enumerate() {
        let root = tempdir().expect("a directory");
        let folder = root.path().join("model");
        fs::create_dir(&folder).expect("a folder");
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokenize/models");
        let file = fs::read(models.join(model).join("tokenizer.json")).expect("a tokenizer");
        fs::write(folder.join("tokenizer.json"), &file).expect("a tokenizer");
        let mut config = json!({"tokenizer_class": class});
        for name in names {
            config[name] = Value::Null;
        }
        fs::write(folder.join("tokenizer_config.json"), config.to_string()).expect("a configuration");

        let mut whole: Value = serde_json::from_slice(&file).expect("JSON");
        whole["normalizer"] = normalizer;
        whole["pre_tokenizer"] = pre_tokenizer;
        whole["model"]["ignore_merges"] = false.into();
        whole["model"]["unk_token"] = Value::Null;
        let whole = reference(whole.to_string().as_bytes());
        let pool = pool_in(root.path());
        let mut next = random_numbers(number as u64);
        let mut texts: Vec<String> = (0..60).map(|_| random_text(&mut next, 40)).collect();
        texts.extend((0..6).map(|_| random_text(&mut next, 12_000)));
        for written in texts.iter().chain(&texts) {
            let special_tokens = SpecialTokens::Omitted;
            let options = PromptOptions { engine: Some(ChatEngine::Vllm), special_tokens, ..PromptOptions::default() };
            let ids = pool.tokenize_with("model", text(written), options).expect("tokens").ids;
            let expected = whole.encode_fast(written.as_str(), false).expect("tokens");
            assert!(ids == expected.get_ids(), "{class}: {written:?}");
        }
        assert!(pool.statistics().pieces.hits > 0, "{class}");
    }
}
