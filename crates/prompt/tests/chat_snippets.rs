//! Small templates, rendered as Jinja2 renders them.

use std::fs;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use flash_indexer_prompt::chat::{ChatRequest, ChatTemplates, Json};
use serde::Deserialize;

/// Monday, 2026-03-09 07:05:03 UTC.
const NOW_S: u64 = 1_773_039_903;

#[derive(Deserialize)]
struct Table {
    variables: Json,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    template: String,
    expected: Option<String>,
}

#[test]
fn snippets_render_as_in_python() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chat/snippets.json");
    let table: Table = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tokenizer_config.json"), "{}").unwrap();
    let clock = || UNIX_EPOCH + Duration::from_secs(NOW_S);
    let templates = ChatTemplates::read_with_clock(dir.path(), clock).unwrap().unwrap();
    let mut wrong = Vec::new();
    for case in &table.cases {
        let request = ChatRequest {
            messages: vec![serde_json::from_str(r#"{"role": "user"}"#).unwrap()],
            chat_template: Some(case.template.clone()),
            chat_template_kwargs: Some(table.variables.clone()),
            ..ChatRequest::default()
        };
        let rendered = templates.render(&request);
        if rendered.as_ref().ok() != case.expected.as_ref() {
            wrong.push(format!("{}\n  expected {:?}\n  rendered {rendered:?}", case.template, case.expected));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), table.cases.len(), wrong.join("\n"));
}
