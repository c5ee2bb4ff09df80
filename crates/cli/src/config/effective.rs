//! All settings of `serve` with their sources, as a configuration file.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use flash_indexer_types::without_users;

use super::file::{ConfigFile, settable};

/// A file for `--config` with each setting that is given. A comment after the setting names its source. Defaults are comments, because a
/// given option may require others. Settings that may have passwords are also comments.
pub(super) fn effective_settings(serve: &Command, matches: &ArgMatches, file: Option<&ConfigFile>) -> String {
    let mut text = String::new();
    for arg in settable(serve) {
        let (Some(name), id) = (arg.get_long(), arg.get_id().as_str()) else { continue };
        let source = match matches.value_source(id) {
            Some(ValueSource::EnvVariable) => "environment",
            Some(ValueSource::CommandLine) if file.is_some_and(|file| file.sets(id)) => "file",
            Some(ValueSource::CommandLine) => "command line",
            _ => "default",
        };
        text += &match value(arg, matches) {
            None => format!("# {name} =\n"),
            Some(value) if source == "default" => format!("# {name} = {value}  # default\n"),
            Some(value) if arg.is_hide_env_values_set() || without_users(&value) != value => {
                format!("# {name} = (may have a password)  # {source}\n")
            }
            Some(value) => format!("{name} = {value}  # {source}\n"),
        };
    }
    text
}

/// A value in TOML.
fn value(arg: &Arg, matches: &ArgMatches) -> Option<String> {
    let id = arg.get_id().as_str();
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return Some(matches.get_flag(id).to_string());
    }
    let values: Vec<String> = matches.get_raw(id)?.map(|value| scalar(&value.to_string_lossy())).collect();
    match arg.get_action() {
        ArgAction::Append => Some(format!("[{}]", values.join(", "))),
        _ => values.into_iter().next(),
    }
}

/// A number unchanged, and other text as a JSON string, which is also a TOML string.
fn scalar(text: &str) -> String {
    match text.parse::<i64>() {
        Ok(number) if number.to_string() == text => text.to_owned(),
        _ => serde_json::Value::from(text).to_string(),
    }
}
