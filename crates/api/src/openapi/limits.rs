//! Limits that the types of the schemas do not have: ranges of numbers, lengths and characters of names, alternative fields.

use std::collections::BTreeSet;

use flash_indexer_types::names::{
    ENDPOINT_BYTES_MAX, INSTANCE_ID_BYTES_MAX, NAME_BYTES_MAX, PRINTABLE, SALT_BYTES_MAX,
};
use serde_json::{Map, Value, json};

use super::endpoint::Requirement;
use super::{MODEL, PROMPT};

/// Beginning of a reference to a schema.
const SCHEMAS: &str = "#/components/schemas/";

/// Fields of a body that cannot be in the query string of a binary body.
const LISTS: [&str; 2] = ["token_ids", "block_hashes"];

/// Properties of an endpoint's body in addition to its type.
pub(super) struct Body {
    pub(super) path: &'static str,
    pub(super) needs: Vec<Requirement>,
    pub(super) may_be_binary: bool,
}

/// Adds the limits to the document.
pub(super) fn add(document: &mut Value, bodies: &[Body]) {
    limit_numbers(document);
    for name in request_schemas(document) {
        let schema = &mut document["components"]["schemas"][&name];
        visit(schema, &mut |schema| {
            if let Some(Value::Object(fields)) = schema.get_mut("properties") {
                fields.iter_mut().for_each(|(field, schema)| limit_text(field, schema, ParameterLocation::Body));
            }
        });
    }
    for body in bodies.iter().filter(|body| body.may_be_binary) {
        add_binary_parameters(document, body);
    }
    for operation in operations(document) {
        for parameter in operation.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten() {
            let name = parameter["name"].as_str().unwrap_or_default().to_owned();
            limit_text(&name, &mut parameter["schema"], ParameterLocation::Query);
        }
    }
    for Body { path, needs, .. } in bodies.iter().filter(|body| !body.needs.is_empty()) {
        let schema = &mut document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
        let all: Vec<Value> = [schema.clone()].into_iter().chain(needs.iter().map(condition)).collect();
        *schema = json!({ "allOf": all });
    }
}

fn operations(document: &mut Value) -> impl Iterator<Item = &mut Value> {
    let paths = document["paths"].as_object_mut().into_iter().flat_map(Map::values_mut);
    paths.filter_map(Value::as_object_mut).flat_map(Map::values_mut)
}

/// Calls a function with each object of a value.
fn visit(value: &mut Value, change: &mut impl FnMut(&mut Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            change(object);
            object.values_mut().for_each(|value| visit(value, change));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| visit(value, change)),
        _ => {}
    }
}

/// Whether a schema allows a type, alone or together with null.
fn has_type(schema: &Map<String, Value>, wanted: &str) -> bool {
    match schema.get("type") {
        Some(Value::Array(types)) => types.iter().any(|one| one == wanted),
        one => one.is_some_and(|one| one == wanted),
    }
}

/// Gives unsigned integers, which have the format of signed ones, their own format and range.
fn limit_numbers(document: &mut Value) {
    visit(document, &mut |schema| {
        if !has_type(schema, "integer") || schema.get("minimum").and_then(Value::as_u64).is_none() {
            return;
        }
        let (format, maximum) = match schema.get("format").and_then(Value::as_str) {
            Some("int32") => ("uint32", u64::from(u32::MAX)),
            _ => ("uint64", u64::MAX),
        };
        schema.insert("format".to_owned(), format.into());
        schema.entry("maximum").or_insert_with(|| maximum.into());
    });
}

/// Names of the schemas of request bodies and of their parts.
fn request_schemas(document: &mut Value) -> BTreeSet<String> {
    let bodies = operations(document).filter_map(|operation| operation.get("requestBody").cloned());
    let (mut open, mut known) = (bodies.collect::<Vec<_>>(), BTreeSet::new());
    while let Some(mut value) = open.pop() {
        visit(&mut value, &mut |object| {
            let reference = object.get("$ref").and_then(Value::as_str);
            if let Some(name) = reference.and_then(|path| path.strip_prefix(SCHEMAS))
                && known.insert(name.to_owned())
            {
                open.push(document["components"]["schemas"][name].clone());
            }
        });
    }
    known
}

/// Location of a field.
#[derive(Clone, Copy, PartialEq)]
enum ParameterLocation {
    Body,
    Query,
}

/// Limits a text by the name of its field.
fn limit_text(field: &str, schema: &mut Value, location: ParameterLocation) {
    let Some(schema) = schema.as_object_mut().filter(|schema| has_type(schema, "string")) else { return };
    let (length_max, pattern) = match field {
        "tenant_id" | "routing_group" | "lora_name" | "request_id" => (NAME_BYTES_MAX, Some(PRINTABLE)),
        field if MODEL.contains(&field) => (NAME_BYTES_MAX, Some(PRINTABLE)),
        "instance_id" | "pod" => (INSTANCE_ID_BYTES_MAX, Some(PRINTABLE)),
        "cache_salt" => (SALT_BYTES_MAX, None),
        "endpoint" => (ENDPOINT_BYTES_MAX, Some(r"^((tcp|https?|grpc)://.+:[0-9]{1,5}|ipc://.+|bound(:.*)?|none)$")),
        "replay_endpoint" => (ENDPOINT_BYTES_MAX, Some(r"^(tcp://.+:[0-9]{1,5}|ipc://.+)$")),
        "url" => (ENDPOINT_BYTES_MAX, Some("^https?://[^/?#@]+(/[^?#]*)?$")),
        _ => return,
    };
    schema.insert("maxLength".to_owned(), length_max.into());
    if let Some(pattern) = pattern {
        schema.insert("pattern".to_owned(), pattern.into());
    }
    // An empty model or tenant in a query string selects nothing.
    let is_scope = MODEL.contains(&field) || matches!(field, "tenant_id" | "routing_group");
    if matches!(field, "instance_id" | "pod") || (is_scope && location == ParameterLocation::Body) {
        schema.insert("minLength".to_owned(), 1.into());
    }
}

/// Adds the fields of the JSON body as parameters of the query string, where a binary body has them.
fn add_binary_parameters(document: &mut Value, Body { path, needs, .. }: &Body) {
    let operation = &document["paths"][path]["post"];
    let mut parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
    let mut open = vec![&operation["requestBody"]["content"]["application/json"]["schema"]];
    while let Some(schema) = open.pop() {
        if let Some(name) = schema["$ref"].as_str().and_then(|path| path.strip_prefix(SCHEMAS)) {
            open.push(&document["components"]["schemas"][name]);
        }
        open.extend(schema["allOf"].as_array().into_iter().flatten());
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            if LISTS.contains(&name.as_str()) || PROMPT.contains(&name.as_str()) {
                continue;
            }
            let mut parameter = in_query(document, schema);
            for needs in needs {
                if let Requirement::AtMost(field, maximum) = needs
                    && field == name
                {
                    parameter["maximum"] = (*maximum).into();
                }
            }
            let description = format!("Only with a binary body. {}", description(schema));
            parameters.push(json!({
                "name": name, "in": "query", "required": false, "description": description, "schema": parameter,
            }));
        }
    }
    document["paths"][path]["post"]["parameters"] = parameters.into();
}

fn description(schema: &Value) -> &str {
    let of_reference = || schema["oneOf"].as_array()?.iter().find_map(|one| one["description"].as_str());
    schema["description"].as_str().or_else(of_reference).unwrap_or_default()
}

/// The schema of a value in a query string, where null cannot be written.
fn without_null(schema: &Value) -> Value {
    let mut schema = schema.clone();
    let only = |list: &[Value], is_null: fn(&Value) -> bool| match list {
        [one, null] | [null, one] if is_null(null) && !is_null(one) => Some(one.clone()),
        _ => None,
    };
    if let Some(one) = schema["oneOf"].as_array().and_then(|list| only(list, |one| one["type"] == "null")) {
        schema = one;
    } else if let Some(one) = schema["type"].as_array().and_then(|list| only(list, |one| one == "null")) {
        schema["type"] = one;
    }
    schema
}

/// The schema of a field in a query string, where each value is a text.
fn in_query(document: &Value, schema: &Value) -> Value {
    let mut schema = without_null(schema);
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.strip_prefix(SCHEMAS)) {
        let alternatives = document["components"]["schemas"][name]["oneOf"].as_array();
        let text = alternatives.and_then(|list| list.iter().find(|one| one["type"] == "string"));
        schema = text.cloned().unwrap_or(schema);
    }
    if let Some(items) = schema.get("items").map(|items| in_query(document, items)) {
        schema["items"] = items;
    }
    if let Some(schema) = schema.as_object_mut() {
        schema.remove("description");
    }
    schema
}

/// The schema of a condition on fields.
fn condition(needs: &Requirement) -> Value {
    let given = |field: &&str| json!({ "required": [field], "properties": { *field: { "not": { "type": "null" } } } });
    let absent = |field: &&str| ((*field).to_owned(), json!({ "type": "null" }));
    match needs {
        Requirement::AnyOf(fields) => json!({ "anyOf": fields.iter().map(given).collect::<Value>() }),
        Requirement::OneOf(fields) => json!({ "oneOf": fields.iter().map(given).collect::<Value>() }),
        Requirement::Excludes(field, others) => {
            let (field, others) = ([field].into_iter().map(absent), others.iter().map(absent));
            let absent = [field.collect::<Map<_, _>>(), others.collect()].map(|fields| json!({ "properties": fields }));
            json!({ "anyOf": absent })
        }
        Requirement::AtMost(field, maximum) => json!({ "properties": { *field: { "maximum": maximum } } }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::document;
    use super::*;

    fn parameter<'a>(document: &'a Value, path: &str, method: &str, name: &str) -> Option<&'a Value> {
        let parameters = document["paths"][path][method]["parameters"].as_array()?;
        parameters.iter().find(|parameter| parameter["name"] == name).map(|parameter| &parameter["schema"])
    }

    #[test]
    fn the_fields_of_a_binary_body_are_parameters() {
        let document = document();
        for name in ["model_name", "tenant_id", "top_k", "min_score", "after", "cache_salt"] {
            assert!(parameter(&document, "/query", "post", name).is_some(), "{name}");
        }
        for name in LISTS.into_iter().chain(PROMPT) {
            assert_eq!(parameter(&document, "/score_completions", "post", name), None);
            assert_eq!(parameter(&document, "/explain", "post", name), None);
        }
        assert_eq!(parameter(&document, "/score_chat_completions", "post", "model_name"), None, "takes JSON only");
        let pods = parameter(&document, "/score_completions", "post", "pods").expect("pods");
        assert_eq!((&pods["type"], &pods["items"]["type"]), (&json!("array"), &json!("string")));
        let ttl = parameter(&document, "/predict", "post", "ttl_ms").expect("ttl_ms");
        assert_eq!((&ttl["type"], &ttl["maximum"]), (&json!("integer"), &json!(600_000)));
    }

    #[test]
    fn numbers_and_names_have_their_limits() {
        let document = document();
        let schemas = &document["components"]["schemas"];
        let block_size = &schemas["Worker"]["properties"]["block_size"];
        assert_eq!((&block_size["format"], &block_size["maximum"]), (&json!("uint32"), &json!(u32::MAX)));
        let model = &schemas["ModelScope"]["properties"]["model_name"];
        assert_eq!((&model["maxLength"], &model["minLength"]), (&json!(NAME_BYTES_MAX), &json!(1)));
        let filter = parameter(&document, "/workers", "get", "model_name").expect("model_name");
        assert_eq!((&filter["maxLength"], &filter["minLength"]), (&json!(NAME_BYTES_MAX), &Value::Null));
        assert_eq!(schemas["Worker"]["properties"]["model_name"]["maxLength"], Value::Null, "no part of a request");
    }
}
