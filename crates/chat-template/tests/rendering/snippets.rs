//! Small templates, rendered as Jinja2 renders them.

use chat_template::{ChatRequest, Json};
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

fn request(template: &str, variables: &Json) -> ChatRequest {
    ChatRequest {
        messages: vec![serde_json::from_str(r#"{"role": "user"}"#).expect("JSON of the right shape")],
        chat_template: Some(template.to_owned()),
        chat_template_kwargs: Some(variables.clone()),
        ..ChatRequest::default()
    }
}

/// A template with any part cut out renders or fails.
#[test]
fn broken_snippets_do_not_panic() {
    let snippets: Snippets = table("snippets.json");
    let templates = templates_of([("tokenizer_config.json", "{}")]);
    for (nth, case) in snippets.cases.iter().enumerate() {
        let chars: Vec<char> = case.template.chars().collect();
        for seventh in 1..7 {
            let cut = chars.len() * seventh / 7;
            let length = (nth + seventh) % 5;
            let without: String = chars[..cut].iter().chain(chars.iter().skip(cut + length)).collect();
            let _ = templates.render(&request(&without, &snippets.variables));
        }
    }
}

#[test]
fn snippets_render_as_in_python() {
    let snippets: Snippets = table("snippets.json");
    let templates = templates_of([("tokenizer_config.json", "{}")]);
    let mut wrong = Vec::new();
    for case in &snippets.cases {
        let rendered = templates.render(&request(&case.template, &snippets.variables));
        if rendered.as_ref().ok() != case.expected.as_ref() {
            wrong.push(format!("{}\n  expected {:?}\n  rendered {rendered:?}", case.template, case.expected));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), snippets.cases.len(), wrong.join("\n"));
}
