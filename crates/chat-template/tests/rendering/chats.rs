//! Conversations, rendered as `transformers` renders them.

use std::collections::HashMap;
use std::fs;

use chat_template::{ChatRequest, ChatTemplates, Json};
use serde::Deserialize;

use crate::{Outcome, folder, table, templates_of};

#[derive(Deserialize)]
struct Chats {
    config: Json,
    requests: HashMap<String, ChatRequest>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    template: String,
    request: String,
    #[serde(flatten)]
    outcome: Outcome,
}

#[test]
fn chats_render_as_in_python() {
    let chats: Chats = table("chats.json");
    let config = chats.config.to_text();
    let mut templates: HashMap<&str, ChatTemplates> = HashMap::new();
    let mut wrong = Vec::new();
    for case in &chats.cases {
        let templates = templates.entry(&case.template).or_insert_with(|| {
            let template = fs::read_to_string(folder().join(format!("templates/{}.jinja", case.template)))
                .expect("a file of the tests");
            templates_of([("chat_template.jinja", &template[..]), ("tokenizer_config.json", &config)])
        });
        let rendered = templates.render(&chats.requests[&case.request]);
        if !case.outcome.is(&rendered) {
            let expected = case.outcome.expected.as_ref().or(case.outcome.raised.as_ref());
            wrong.push(format!("{} {}\n  expected {expected:?}\n  rendered {rendered:?}", case.template, case.request));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), chats.cases.len(), wrong.join("\n"));
}
