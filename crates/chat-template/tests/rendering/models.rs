//! Model directories, read as `transformers` reads them.

use std::collections::HashMap;

use chat_template::{ChatError, ChatRequest, ChatTemplates};
use serde::Deserialize;

use crate::{Outcome, table, templates_of};

#[derive(Deserialize)]
struct Models {
    models: HashMap<String, HashMap<String, String>>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    model: String,
    request: ChatRequest,
    #[serde(flatten)]
    outcome: Outcome,
}

fn hello() -> ChatRequest {
    serde_json::from_str(r#"{"messages": [{"role": "user", "content": "Hi"}]}"#).expect("JSON of the right shape")
}

#[test]
fn models_choose_templates_and_tokens_as_in_python() {
    let models: Models = table("models.json");
    let mut wrong = Vec::new();
    for case in &models.cases {
        let files = models.models[&case.model].iter().map(|(name, text)| (&name[..], &text[..]));
        let rendered = templates_of(files).render(&case.request);
        if !case.outcome.is(&rendered) {
            let expected = &case.outcome.expected;
            wrong.push(format!("{} {:?}\n  expected {expected:?}\n  rendered {rendered:?}", case.model, case.request));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), models.cases.len(), wrong.join("\n"));
}

#[test]
fn a_directory_without_any_of_the_files_has_no_templates() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    assert!(ChatTemplates::read(dir.path()).expect("an empty directory").is_none());
}

#[test]
fn a_processor_template_is_used_only_without_another() {
    let processor = r#"{"chat_template": "processor"}"#;
    let templates = templates_of([("chat_template.json", processor)]);
    assert_eq!(templates.render(&hello()).expect("rendered"), "processor");
    let templates = templates_of([("chat_template.json", processor), ("chat_template.jinja", "file")]);
    assert_eq!(templates.render(&hello()).expect("rendered"), "file");
}

#[test]
fn malformed_files_are_named_in_the_error() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for text in ["{", "[]", r#"{"chat_template": 5}"#, r#"{"chat_template": [{"name": "default"}]}"#] {
        std::fs::write(dir.path().join("tokenizer_config.json"), text).expect("written");
        let Err(error) = ChatTemplates::read(dir.path()) else {
            panic!("{text} was accepted as a configuration");
        };
        assert!(error.to_string().contains("tokenizer_config.json"), "{error}");
    }
}

#[test]
fn a_syntax_error_names_the_line_when_the_template_is_used() {
    let templates = templates_of([("chat_template.jinja", "one\n{{ two }}\n{% if %}")]);
    match templates.render(&hello()) {
        Err(ChatError::Syntax { name, line, .. }) => assert_eq!((name.as_str(), line), ("default", 3)),
        other => panic!("{other:?}"),
    }
    let templates = templates_of([("chat_template.jinja", "one\n{{\n  two.three }}\n{{ 1 + 'x' }}")]);
    match templates.render(&hello()) {
        // The line where the tag begins.
        Err(ChatError::Failed { line, .. }) => assert_eq!(line, 2),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_generation_prompt_is_the_default_unless_a_message_is_continued() {
    let templates = templates_of([("chat_template.jinja", "{{ messages[0].content }}{{ add_generation_prompt }}")]);
    assert_eq!(templates.render(&hello()).expect("rendered"), "HiTrue");
    let mut request = hello();
    request.continue_final_message = chat_template::Continuation::Content;
    assert_eq!(templates.render(&request).expect("rendered"), "Hi");
}

#[test]
fn template_variables_take_precedence_over_fields() {
    let templates = templates_of([("chat_template.jinja", "{{ add_generation_prompt }}{{ tools|length }}")]);
    let mut request = hello();
    request.chat_template_kwargs = Some(
        serde_json::from_str(r#"{"add_generation_prompt": false, "tools": [{}, {}]}"#)
            .expect("JSON of the right shape"),
    );
    assert_eq!(templates.render(&request).expect("rendered"), "False2");
    request.chat_template_kwargs = Some(serde_json::from_str(r#"{"messages": []}"#).expect("JSON of the right shape"));
    assert!(matches!(templates.render(&request), Err(ChatError::Request(_))));
}
