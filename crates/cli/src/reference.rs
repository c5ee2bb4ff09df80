//! `flash-indexer reference`: the pages of `docs/reference/`, made from the program itself. Hidden, because only the project uses it.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Arg, ArgAction, Args, Command, CommandFactory};
use serde_json::Value;

use crate::Arguments;

/// Write the reference pages of the documentation.
#[derive(Args)]
pub(crate) struct ReferenceArguments {
    /// Directory of the pages.
    directory: PathBuf,
}

/// Beginning of the options of the feature `hub`, which the pages leave out: a program is built with or without them.
const HUB_OPTIONS: &str = "tokenizer-hub";

pub(crate) fn run(arguments: &ReferenceArguments) -> Result<()> {
    let pages = [("commands.md", commands()), ("endpoints.md", endpoints(&flash_indexer_api::document()))];
    for (name, page) in pages {
        let path = arguments.directory.join(name);
        std::fs::write(&path, page).with_context(|| format!("failed to write {}", path.display()))?;
    }
    Ok(())
}

/// Beginning of a page.
fn head(title: &str, source: &str) -> String {
    format!("# {title}\n\nGenerated from {source} by `flash-indexer reference docs/reference`, do not edit.\n")
}

/// Text as a cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|").replace('<', "&lt;")
}

fn commands() -> String {
    let mut page = head("Commands and options", "the program's parser");
    page.push_str(
        "\nA program that is built with the feature `hub` also has `serve --tokenizer-hub` and its options, which its help lists. The \
         sections of [Operations](../operations.md) say when to use an option.\n",
    );
    let mut program = Arguments::command();
    program.build();
    for command in program.get_subcommands() {
        add_command(&mut page, command, "");
    }
    page
}

fn add_command(page: &mut String, command: &Command, before: &str) {
    if command.is_hide_set() || command.get_name() == "help" {
        return;
    }
    let name = format!("{before}{}", command.get_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    write!(page, "\n## {name}\n\n{about}\n").expect("a string takes all text");
    if let Some(("config", _)) = name.split_once(' ') {
        page.push_str("\nIt takes the options of [serve](#serve).\n");
        return;
    }
    let mut args = command.get_arguments().filter(|arg| is_listed(arg)).peekable();
    if args.peek().is_some() {
        page.push_str("\n| option | default | variable | meaning |\n|---|---|---|---|\n");
    }
    args.for_each(|arg| add_option(page, arg));
    for inner in command.get_subcommands() {
        add_command(page, inner, &format!("{name} "));
    }
}

fn is_listed(arg: &Arg) -> bool {
    let is_about_program = matches!(arg.get_id().as_str(), "help" | "version");
    !arg.is_hide_set() && !is_about_program && !arg.get_long().is_some_and(|name| name.starts_with(HUB_OPTIONS))
}

fn add_option(page: &mut String, arg: &Arg) {
    let takes_value = !matches!(arg.get_action(), ArgAction::SetTrue);
    let value = arg.get_value_names().map(|names| names.join(" ")).unwrap_or_default();
    let name = match arg.get_long() {
        Some(long) if takes_value => format!("--{long} {value}"),
        Some(long) => format!("--{long}"),
        None => value,
    };
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let default = if takes_value && !defaults.is_empty() { format!("`{}`", defaults.join(",")) } else { String::new() };
    let variable = arg.get_env().map(|name| format!("`{}`", name.to_string_lossy())).unwrap_or_default();
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    writeln!(page, "| `{}` | {} | {variable} | {} |", cell(&name), cell(&default), cell(&help))
        .expect("a string takes all text");
}

fn endpoints(document: &Value) -> String {
    let mut page = head("Endpoints", "the OpenAPI document");
    page.push_str(
        "\nThe service has the whole document at `/openapi.json`. [HTTP API](../http-api.md) explains the endpoints.\n",
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
            writeln!(page, "| {method} `{path}` | {} | {bodies} | {} |", cell(summary), answers.join(", "))
                .expect("a string takes all text");
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
    write!(page, "\n### {name}\n\n{about}\n").expect("a string takes all text");
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut fields = schema["properties"].as_object().into_iter().flatten().peekable();
    if fields.peek().is_some() {
        page.push_str("\n| field | type | meaning |\n|---|---|---|\n");
    }
    for (field, of) in fields {
        let shown = if required.contains(&field.as_str()) { format!("**`{field}`**") } else { format!("`{field}`") };
        let about = cell(of["description"].as_str().unwrap_or_default());
        writeln!(page, "| {shown} | {} | {about} |", kind(of)).expect("a string takes all text");
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
        writeln!(page, "| `{value}` | {} |", cell(about)).expect("a string takes all text");
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
