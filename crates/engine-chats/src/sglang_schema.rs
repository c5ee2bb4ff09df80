//! Types in the schemas of tools, rewritten as SGLang rewrites names of databases and programming languages.

use chat_template::Json;

use super::error::PrepareError;
use super::message::{items, object};

/// JSON schema's types.
const TYPES: [&str; 7] = ["null", "boolean", "object", "array", "number", "string", "integer"];

/// Other names of types, without what is in parentheses and in lower case.
const NAMES: [(&str, &[&str]); 6] = [
    (
        "string",
        &[
            "str",
            "text",
            "varchar",
            "char",
            "enum",
            "uuid",
            "date",
            "datetime",
            "time",
            "timestamp",
            "binary",
            "blob",
            "bytea",
            "bytes",
            "varbinary",
        ],
    ),
    ("boolean", &["bool"]),
    ("integer", &["bigint", "smallint", "tinyint"]),
    ("number", &["double", "decimal", "real", "numeric"]),
    ("array", &["arr", "tuple", "set"]),
    ("object", &["map"]),
];

/// Beginnings of names that are followed by a digit, a bracket or a space.
const BEGINNINGS: [(&str, &[&str]); 4] = [
    ("integer", &["int", "uint", "long", "short", "unsigned"]),
    ("number", &["num", "float"]),
    ("array", &["list"]),
    ("object", &["dict"]),
];

/// Keys of schemas by name.
const NAMED_SCHEMAS: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
/// Keys of lists of schemas.
const SCHEMA_LISTS: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];
/// Keys of schemas, or of lists of them.
const SCHEMAS: [&str; 10] = [
    "items",
    "additionalProperties",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
];

/// A schema, or a list of schemas, with JSON schema's types.
pub(super) fn with_known_types(schema: &Json) -> Result<Json, PrepareError> {
    if let Some(schemas) = items(schema) {
        return Ok(Json::list(schemas.iter().map(with_known_types).collect::<Result<Vec<_>, _>>()?)?);
    }
    let Some(entries) = schema.entries() else { return Ok(schema.clone()) };
    let entries = entries.into_iter().map(|(key, value)| {
        let name = key.as_str();
        let value = match value.entries() {
            _ if name == "type" => known_types(&value)?,
            Some(named) if NAMED_SCHEMAS.contains(&name) => {
                let named = named.into_iter().map(|(name, schema)| Ok((name, with_known_types(&schema)?)));
                object(named.collect::<Result<Vec<_>, PrepareError>>()?)?
            }
            None if SCHEMA_LISTS.contains(&name) => with_known_types(&value)?,
            _ if SCHEMAS.contains(&name) => with_known_types(&value)?,
            _ => value,
        };
        Ok((key, value))
    });
    Ok(object(entries.collect::<Result<Vec<_>, PrepareError>>()?)?)
}

/// The value of `type`: a name, or a list of names without duplicates.
fn known_types(value: &Json) -> Result<Json, PrepareError> {
    let known = |value: &Json| value.as_str().and_then(known_type).map_or_else(|| value.clone(), Json::from);
    let Some(types) = items(value) else { return Ok(known(value)) };
    let mut kept: Vec<Json> = Vec::new();
    for value in types.iter().map(known) {
        if !kept.contains(&value) {
            kept.push(value);
        }
    }
    Ok(Json::list(kept)?)
}

/// JSON schema's type for another name. `None` if the name stays.
fn known_type(name: &str) -> Option<&'static str> {
    if TYPES.contains(&name) {
        return None;
    }
    let name = name.split('(').next().unwrap_or_default().trim().to_lowercase();
    let follows =
        |rest: &str| rest.is_empty() || rest.starts_with(|next: char| next.is_ascii_digit() || "[<( \t".contains(next));
    let begins = |begin: &&str| name.strip_prefix(*begin).is_some_and(follows);
    let standard = TYPES.into_iter().find(|known| *known == name);
    let named = || NAMES.iter().find(|(_, names)| names.contains(&name.as_str())).map(|(known, _)| *known);
    let begun = || BEGINNINGS.iter().find(|(_, begin)| begin.iter().any(begins)).map(|(known, _)| *known);
    standard.or_else(named).or_else(begun)
}
