//! Small templates, rendered as Jinja2 renders them.

use flash_indexer_prompt::chat::{ChatRequest, Json};
use serde::Deserialize;

use crate::{table, templates_of};

#[derive(Deserialize)]
struct Snippets {
    variables: Json,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    template: String,
    /// `None` where Python fails.
    expected: Option<String>,
}

#[test]
fn snippets_render_as_in_python() {
    let snippets: Snippets = table("snippets.json");
    let templates = templates_of([("tokenizer_config.json", "{}")]);
    let mut wrong = Vec::new();
    for case in &snippets.cases {
        let request = ChatRequest {
            messages: vec![serde_json::from_str(r#"{"role": "user"}"#).expect("JSON of the right shape")],
            chat_template: Some(case.template.clone()),
            chat_template_kwargs: Some(snippets.variables.clone()),
            ..ChatRequest::default()
        };
        let rendered = templates.render(&request);
        if rendered.as_ref().ok() != case.expected.as_ref() {
            wrong.push(format!("{}\n  expected {:?}\n  rendered {rendered:?}", case.template, case.expected));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), snippets.cases.len(), wrong.join("\n"));
}
