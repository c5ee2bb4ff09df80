//! Conversations, rendered as `transformers` renders them.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use flash_indexer_prompt::chat::{ChatError, ChatRequest, ChatTemplates, Json};
use serde::Deserialize;

/// Monday, 2026-03-09 07:05:03 UTC.
const NOW_S: u64 = 1_773_039_903;

#[derive(Deserialize)]
struct Table {
    config: Json,
    requests: HashMap<String, ChatRequest>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    template: String,
    request: String,
    expected: Option<String>,
    raised: Option<String>,
}

fn chat_tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chat")
}

#[test]
fn chats_render_as_in_python() {
    let table: Table = serde_json::from_str(&fs::read_to_string(chat_tests().join("chats.json")).unwrap()).unwrap();
    let mut wrong = Vec::new();
    let mut read: Option<(String, ChatTemplates)> = None;
    for case in &table.cases {
        let templates = match read.take() {
            Some((name, templates)) if name == case.template => templates,
            _ => {
                let dir = tempfile::tempdir().unwrap();
                let template = chat_tests().join("templates").join(format!("{}.jinja", case.template));
                fs::copy(template, dir.path().join("chat_template.jinja")).unwrap();
                fs::write(dir.path().join("tokenizer_config.json"), table.config.to_text()).unwrap();
                let clock = || UNIX_EPOCH + Duration::from_secs(NOW_S);
                ChatTemplates::read_with_clock(dir.path(), clock).unwrap().unwrap()
            }
        };
        let rendered = templates.render(&table.requests[&case.request]);
        read = Some((case.template.clone(), templates));
        let right = match (&rendered, &case.expected, &case.raised) {
            (Ok(text), Some(expected), _) => text == expected,
            (Err(ChatError::Raised(message)), None, Some(raised)) => message == raised,
            (Err(_), None, None) => true,
            _ => false,
        };
        if !right {
            let (template, request) = (&case.template, &case.request);
            let expected = case.expected.as_ref().or(case.raised.as_ref());
            wrong.push(format!("{template} {request}\n  expected {expected:?}\n  rendered {rendered:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), table.cases.len(), wrong.join("\n"));
}
