//! JSON schemas as the types of TypeScript that gpt-oss reads.

use std::fmt::Write as _;

use chat_template::Json;

use crate::message::{items, text_of};

/// The type of a schema. Its lines after the first begin with `indent`.
pub(super) fn type_of(schema: &Json, indent: &str) -> String {
    if let Some(variants) = list(schema, "oneOf") {
        let deeper = format!("{indent}   ");
        let variants = variants.iter().map(|variant| {
            let default = variant.get("default").map(|default| shown_default(&default, variant, EnumDefault::AsJson));
            let comments = [text_of(variant, "description"), default].into_iter().flatten().collect();
            format!("\n{indent} | {}{}", nullable_type_of(variant, &deeper), trailing(comments))
        });
        return variants.collect();
    }
    if let Some(names) = list(schema, "type") {
        let names = names.iter().filter_map(Json::as_str);
        let names: Vec<&str> = names.map(|name| if name == "integer" { "number" } else { name }).collect();
        if !names.is_empty() {
            return names.join(" | ");
        }
    }
    match text_of(schema, "type").as_deref() {
        Some("object") => object_type(schema, indent),
        Some("string") => {
            let values = list(schema, "enum").unwrap_or_default();
            let values: Vec<String> =
                values.iter().filter_map(Json::as_str).map(|value| format!("\"{value}\"")).collect();
            if values.is_empty() { "string".to_owned() } else { values.join(" | ") }
        }
        Some("number" | "integer") => "number".to_owned(),
        Some("boolean") => "boolean".to_owned(),
        Some("array") => match schema.get("items") {
            Some(items) => format!("{}[]", type_of(&items, indent)),
            None => "Array<any>".to_owned(),
        },
        _ => "any".to_owned(),
    }
}

fn object_type(schema: &Json, indent: &str) -> String {
    let mut out = String::new();
    if let Some(description) = text_of(schema, "description") {
        comment(&mut out, indent, &description);
    }
    out.push_str("{\n");
    let required = list(schema, "required").unwrap_or_default();
    for (name, property) in schema.get("properties").and_then(|properties| properties.entries()).unwrap_or_default() {
        let mark = if required.iter().any(|it| it.as_str() == Some(&name)) { "" } else { "?" };
        write_property(&mut out, indent, &format!("{name}{mark}"), &property);
    }
    out.push_str(indent);
    out.push('}');
    out
}

fn write_property(out: &mut String, indent: &str, name: &str, property: &Json) {
    let has_variants = property.get("oneOf").is_some();
    if let Some(title) = text_of(property, "title") {
        comment(out, indent, &title);
        _ = writeln!(out, "{indent}//");
    }
    let description = text_of(property, "description");
    if let Some(description) = description.as_ref().filter(|_| !has_variants) {
        comment(out, indent, description);
    }
    let examples = list(property, "examples").unwrap_or_default();
    if !examples.is_empty() {
        comment(out, indent, "Examples:");
        for example in examples.iter().filter_map(Json::as_str) {
            comment(out, indent, &format!("- \"{example}\""));
        }
    }
    let default = property.get("default").map(|default| shown_default(&default, property, EnumDefault::Bare));
    if let Some(variants) = list(property, "oneOf") {
        write_variants(out, indent, name, &variants, description.as_deref(), default.as_deref());
        return;
    }
    _ = write!(out, "{indent}{name}: {},", nullable_type_of(property, &format!("{indent}    ")));
    out.push_str(&trailing(default.into_iter().filter(|_| !has_variants).collect()));
    out.push('\n');
}

/// Writes a property that has one of several types, each on its own line.
fn write_variants(
    out: &mut String,
    indent: &str,
    name: &str,
    variants: &[Json],
    description: Option<&str>,
    default: Option<&str>,
) {
    // The description is not repeated.
    let first = variants.first().and_then(|first| text_of(first, "description"));
    let above = description.filter(|description| first.as_deref() != Some(*description));
    for line in above.into_iter().chain(default) {
        comment(out, indent, line);
    }
    _ = writeln!(out, "{indent}{name}:");
    for (at, variant) in variants.iter().enumerate() {
        let own = text_of(variant, "description")
            .filter(|own| !(at == 0 && above.is_some()) && Some(own.as_str()) != description);
        let default = variant.get("default").map(|default| shown_default(&default, variant, EnumDefault::Bare));
        let comments = trailing(own.into_iter().chain(default).collect());
        _ = writeln!(out, "{indent} | {}{comments}", nullable_type_of(variant, &format!("{indent}   ")));
    }
    _ = writeln!(out, "{indent},");
}

fn nullable_type_of(schema: &Json, indent: &str) -> String {
    let mut shown = type_of(schema, indent);
    if schema.get("nullable").and_then(|it| it.as_bool()) == Some(true) && !shown.contains("null") {
        shown.push_str(" | null");
    }
    shown
}

/// How the default of an enumeration is written, if it is a text.
#[derive(Clone, Copy, PartialEq)]
enum EnumDefault {
    AsJson,
    Bare,
}

fn shown_default(default: &Json, schema: &Json, enumerated: EnumDefault) -> String {
    let is_enumeration = list(schema, "enum").is_some_and(|values| !values.is_empty());
    match default.as_str() {
        Some(text) if !is_enumeration => format!("default: \"{text}\""),
        Some(text) if enumerated == EnumDefault::Bare => format!("default: {text}"),
        _ => format!("default: {}", serde_json::to_string(default).unwrap_or_default()),
    }
}

fn trailing(comments: Vec<String>) -> String {
    if comments.is_empty() { String::new() } else { format!(" // {}", comments.join(" ")) }
}

fn comment(out: &mut String, indent: &str, text: &str) {
    _ = writeln!(out, "{indent}// {text}");
}

fn list(schema: &Json, key: &str) -> Option<Vec<Json>> {
    schema.get(key).as_ref().and_then(items)
}
