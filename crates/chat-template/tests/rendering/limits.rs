//! Templates that would block, exhaust or crash the process without limits.

use std::fs;
use std::path::Path;

use chat_template::{ChatError, ChatRequest, Effort, Messages};

use crate::{any_bytes, templates_of};

fn render(template: &str) -> Result<String, ChatError> {
    let request = ChatRequest {
        messages: vec![serde_json::from_str(r#"{"role": "user", "content": "Hi"}"#).expect("JSON of the right shape")],
        chat_template: Some(template.to_owned()),
        ..ChatRequest::default()
    };
    templates_of([("tokenizer_config.json", "{}")]).render(&request)
}

#[test]
fn work_is_limited() {
    let grows = |step: &str| {
        format!(
            "{{% set ns = namespace(v='x', l=[1]) %}}{{% for i in range(200) %}}{step}{{% endfor %}}{{{{ ns.v|length }}}}"
        )
    };
    for template in [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}".to_owned(),
        grows("{% set ns.v = ns.v ~ ns.v %}"),
        grows("{% set ns.v = ns.v.replace('x', 'xx') %}"),
        grows("{% set ns.l = ns.l + ns.l %}"),
        grows("{% set v %}{{ ns.v }}{{ ns.v }}{% endset %}{% set ns.v = v %}"),
        "{{ 'x' * 99999999999 }}".to_owned(),
        "{{ [1] * 99999999999 }}".to_owned(),
        "{{ 'x'.center(99999999999) }}{{ 'x'|center(99999999999) }}".to_owned(),
        format!("{{% for i in range(99999) %}}{}{{% endfor %}}", "raw ".repeat(10_000)),
    ] {
        let rendered = render(&template);
        assert!(
            matches!(rendered, Err(ChatError::TooExpensive { .. })),
            "{} {rendered:?}",
            &template[..60.min(template.len())]
        );
    }
}

/// The fuzz target `chat_templates` starts from these inputs.
#[test]
fn every_input_of_the_fuzz_target_is_rendered_within_the_limits() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/chat_templates");
    let mut inputs = 0;
    for entry in fs::read_dir(corpus).expect("the corpus") {
        any_bytes::play(&fs::read(entry.expect("an entry").path()).expect("an input"));
        inputs += 1;
    }
    assert!(inputs > 10, "{inputs} inputs");
}

#[test]
fn recursion_is_limited() {
    for template in [
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
        "{% macro m(x) %}{{ m([x]) }}{% endmacro %}{{ m(1) }}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}",
    ] {
        assert!(render(template).is_err(), "{template}");
    }
}

#[test]
fn nesting_is_limited() {
    for template in [
        format!("{}1{}", "{{ (".to_owned() + &"(".repeat(5_000), ")".repeat(5_001) + " }}"),
        format!("{{{{ {}1{} }}}}", "[".repeat(5_000), "]".repeat(5_000)),
        format!("{{{{ {} x }}}}", "not ".repeat(5_000)),
        format!("{{{{ {} 1 }}}}", "-".repeat(5_000)),
        format!("{{{{ x{} }}}}", ".y".repeat(50_000)),
        format!("{{{{ x{} }}}}", "|upper".repeat(50_000)),
        format!("{{{{ x{} }}}}", "()".repeat(50_000)),
        format!("{{{{ x{} }}}}", " and x".repeat(50_000)),
        format!("{{{{ x{} }}}}", " if x".repeat(50_000)),
        format!("{{{{ x{} }}}}", " if x else x".repeat(50_000)),
        format!("{{{{ x{} }}}}", " < x".repeat(50_000)),
        format!("{{{{ 1{} }}}}", " + 1".repeat(50_000)),
        format!("{{{{ ''{} }}}}", " ~ ''".repeat(50_000)),
        format!("{}{}", "{% if x %}".repeat(5_000), "{% endif %}".repeat(5_000)),
        format!("{{% if x %}}{}{{% endif %}}", "{% elif x %}".repeat(5_000)),
        "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}".to_owned(),
        "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set ns.x = {'k': ns.x} %}{% endfor %}".to_owned(),
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns.x }}".to_owned(),
        "{% set ns = namespace() %}{% set ns.x = [(ns, 1)] %}{{ ns.x }}".to_owned(),
        "{% set a = namespace() %}{% set b = namespace(a=a) %}".to_owned(),
    ] {
        assert!(render(&template).is_err(), "{}", &template[..60.min(template.len())]);
    }
}

#[test]
fn realistic_templates_are_within_the_limits() {
    let long = format!("{{{{ '' {} }}}}", "~ 'x' ".repeat(100));
    assert_eq!(render(&long).expect("rendered"), "x".repeat(100));
    let nested = format!("{{{{ {}1{} }}}}", "[".repeat(50), "]".repeat(50));
    assert!(render(&nested).is_ok());
    let many = "{% set ns = namespace(n=0) %}{% for a in range(1000) %}{% for b in range(200) %}{% set ns.n = ns.n + 1 %}\
                {% endfor %}{% endfor %}{{ ns.n }}";
    assert_eq!(render(many).expect("rendered"), "200000");
    let deep = "{% macro m(n) %}{% if n %}({{ m(n - 1) }}){% endif %}{% endmacro %}{{ m(40) }}";
    assert_eq!(render(deep).expect("rendered"), "(".repeat(40) + &")".repeat(40));
}

#[test]
fn unsupported_constructs_are_named_in_the_error() {
    for (template, named) in [
        ("{% include 'x' %}", "include"),
        ("{% for x in [1] %}{% with y = x %}{% break %}{% endwith %}{% endfor %}", "with"),
        ("{{ [1]|random }}", "random"),
        ("{{ x.append(1) }}{{ [1].append(2) }}", "undefined"),
        ("{{ [1].append(2) }}", "append"),
        ("{{ '%.60000f' % 1.5 }}", "50000"),
        ("{{ '{:.60000f}'.format(1.5) }}", "50000"),
    ] {
        let error = render(template).expect_err("not supported").to_string();
        assert!(error.contains(named), "{error}");
    }
}

#[test]
fn a_brief_rendering_ends_early_and_the_full_one_has_the_same_text_otherwise() {
    let templates = templates_of([("tokenizer_config.json", "{}")]);
    let chat = |messages: usize, content: &str, template: &str| {
        let message = serde_json::json!({ "role": "user", "content": content }).to_string();
        let request = ChatRequest {
            messages: vec![serde_json::from_str(&message).expect("JSON of the right shape"); messages],
            chat_template: Some(template.to_owned()),
            ..ChatRequest::default()
        };
        [Effort::Brief, Effort::Full].map(|effort| templates.render_within(&request, Messages::AsGiven, effort))
    };
    let usual = "{% for m in messages %}{% if m.role == 'user' and m.content is string %}[{{ m.role }}]{{ m.content | trim }}\n{% endif %}{% endfor %}";
    let [brief, full] = chat(1_000, &"words ".repeat(80), usual);
    assert_eq!(brief.expect("half a megabyte is brief"), full.expect("rendered"));
    for (content, template) in [
        ("x", "{% for a in range(300) %}{% for b in range(300) %}{{ a }}{% endfor %}{% endfor %}"),
        (
            "x",
            "{% set ns = namespace(v='x') %}{% for i in range(24) %}{% set ns.v = ns.v ~ ns.v %}{% endfor %}{{ ns.v | length }}",
        ),
    ] {
        let [brief, full] = chat(1, content, template);
        assert!(matches!(brief, Err(ChatError::TooExpensive { .. })), "{template} {brief:?}");
        assert!(full.is_ok(), "{template} {full:?}");
    }
}
