//! Endpoints of the HTTP API, and the fields of their bodies and answers.

use serde_json::Value;

use super::{cell, head};

pub(super) fn page(document: &Value) -> String {
    let mut page = head("Endpoints", "the OpenAPI document");
    page.push_str(
        "\nThe service has the [whole document](openapi.json) at `/openapi.json`. [HTTP API](../http-api.md) explains the endpoints.\n",
    );
    page.push_str("\n| endpoint | purpose | body | answers |\n|---|---|---|---|\n");
    for (path, methods) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in methods.as_object().into_iter().flatten() {
            let body = operation["requestBody"]["content"].as_object().into_iter().flatten();
            let bodies: Vec<String> =
                body.map(|(kind, content)| schema_name(&content["schema"]).unwrap_or(kind.clone())).collect();
            let answers: Vec<&str> =
                operation["responses"].as_object().into_iter().flatten().map(|(code, _)| code.as_str()).collect();
            let summary = operation["summary"].as_str().unwrap_or_default();
            let (method, bodies) = (method.to_uppercase(), bodies.join(", "));
            page += &format!("| {method} `{path}` | {} | {bodies} | {} |\n", cell(summary), answers.join(", "));
        }
    }
    page.push_str("\n## Fields\n\nThe fields of each body and answer. Required ones are **bold**.\n");
    for (name, schema) in document["components"]["schemas"].as_object().into_iter().flatten() {
        add_schema(&mut page, name, schema);
    }
    page
}

fn add_schema(page: &mut String, name: &str, schema: &Value) {
    let about = cell(schema["description"].as_str().unwrap_or_default());
    *page += &format!("\n### {name}\n\n{about}\n");
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut fields = schema["properties"].as_object().into_iter().flatten().peekable();
    if fields.peek().is_some() {
        page.push_str("\n| field | type | meaning |\n|---|---|---|\n");
    }
    for (field, of) in fields {
        let shown = if required.contains(&field.as_str()) { format!("**`{field}`**") } else { format!("`{field}`") };
        let about = cell(of["description"].as_str().unwrap_or_default());
        *page += &format!("| {shown} | {} | {about} |\n", kind(of));
    }
    let values = schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str).map(|value| (value, ""));
    let described = schema["oneOf"].as_array().into_iter().flatten();
    let described =
        described.filter_map(|one| Some((one["enum"][0].as_str()?, one["description"].as_str().unwrap_or_default())));
    let mut values = values.chain(described).peekable();
    if values.peek().is_some() {
        page.push_str("\n| value | meaning |\n|---|---|\n");
    }
    for (value, about) in values {
        *page += &format!("| `{value}` | {} |\n", cell(about));
    }
}

/// Name of the schema that a schema refers to.
fn schema_name(schema: &Value) -> Option<String> {
    schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()).map(str::to_owned)
}

/// Type of a field in a few words.
fn kind(schema: &Value) -> String {
    if let Some(name) = schema_name(schema) {
        return format!("[{name}](#{})", name.to_lowercase());
    }
    for alternatives in ["oneOf", "anyOf", "allOf"] {
        if let Some(all) = schema[alternatives].as_array() {
            return all.iter().map(kind).collect::<Vec<_>>().join(", ");
        }
    }
    match &schema["type"] {
        Value::String(name) if name == "array" => format!("list of {}", kind(&schema["items"])),
        Value::String(name) => name.clone(),
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
        _ => "any".to_owned(),
    }
}
