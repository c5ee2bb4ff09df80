//! Variables of the environment whose names have the prefix of settings.

use std::ffi::{OsStr, OsString};
use std::fmt;

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command, Error};

const PREFIX: &str = "FLASH_INDEXER_";

/// Variables that no option reads: the log's filter, secrets without an option, and the program that tests of packages run.
const WITHOUT_OPTION: [&str; 5] = ["LOG", "REDIS_PASSWORD", "TOKEN", "TOKENIZER_HUB_TOKEN", "BINARY"];

/// Minimum similarity of two names at which one is suggested for the other, as `clap` does for options.
const SUGGESTED_FROM: f64 = 0.7;

/// A name with at most one changed letter in this number is suggested before one that is similar in another way.
const LETTERS_FOR_A_CHANGE: usize = 3;

/// The name that is most similar to a wrong one, if it is similar enough to be meant.
pub(crate) fn nearest<'a>(wrong: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let names: Vec<_> = names.collect();
    let changed = names.iter().map(|name| (strsim::damerau_levenshtein(name, wrong), *name));
    let changed = changed.filter(|(changes, name)| changes * LETTERS_FOR_A_CHANGE <= name.len());
    if let Some((_, name)) = changed.min() {
        return Some(name);
    }
    let similar = names.into_iter().map(|name| (strsim::jaro(name, wrong), name));
    let similar = similar.filter(|(similarity, _)| *similarity >= SUGGESTED_FROM);
    similar.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, name)| name)
}

/// A variable that looks like a setting and has no effect.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum IgnoredVariable {
    /// No setting has the name.
    Unknown { name: String, nearest: Option<String> },
    /// Kubernetes has set it for a Service, and a setting has the same name.
    ServiceLink { name: String },
}

impl fmt::Display for IgnoredVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name, nearest: Some(nearest) } => {
                write!(f, "there is no setting {name}; did you mean {nearest}?")
            }
            Self::Unknown { name, nearest: None } => {
                write!(f, "there is no setting {name}; see flash-indexer serve --help")
            }
            Self::ServiceLink { name } => write!(
                f,
                "ignoring {name}, which Kubernetes has set for a Service; set enableServiceLinks: false in the pod"
            ),
        }
    }
}

/// The variables that have no effect, by name.
pub(crate) fn ignored_variables(program: &Command) -> Vec<IgnoredVariable> {
    let mut settings: Vec<String> = WITHOUT_OPTION.map(|name| format!("{PREFIX}{name}")).into();
    add_variables(program, &mut settings);
    let variables = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    let mut variables: Vec<_> = variables.filter(|(name, _)| name.starts_with(PREFIX)).collect();
    variables.sort();
    let ignored = variables.into_iter().filter_map(|(name, value)| {
        match (is_service_link(&name, &value.to_string_lossy()), settings.contains(&name)) {
            (true, true) => Some(IgnoredVariable::ServiceLink { name }),
            (false, false) => {
                let names = settings.iter().filter_map(|setting| setting.strip_prefix(PREFIX));
                let nearest = nearest(&name[PREFIX.len()..], names).map(|nearest| format!("{PREFIX}{nearest}"));
                Some(IgnoredVariable::Unknown { name, nearest })
            }
            _ => None,
        }
    });
    ignored.collect()
}

/// The program without the variables that Kubernetes has set for a Service: a Service named flash-indexer makes a
/// `FLASH_INDEXER_PORT` of the form `tcp://10.0.0.1:8090` in every pod of its namespace.
pub(crate) fn without_service_links(program: Command) -> Command {
    let is_link = |arg: &Arg| {
        let name = arg.get_env().and_then(OsStr::to_str);
        name.is_some_and(|name| std::env::var(name).is_ok_and(|value| is_service_link(name, &value)))
    };
    let program = program.mut_args(|arg| if is_link(&arg) { arg.env(Resettable::Reset) } else { arg });
    program.mut_subcommands(without_service_links)
}

/// An error that names the variable, if the wrong value is from one: `clap` names only the option.
pub(crate) fn name_variable(error: Error, program: &Command, command_line: &[OsString]) -> Error {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return error };
    let option = option.split([' ', '=']).next().unwrap_or_default();
    let is_option = |word: &OsString| {
        let rest = word.to_str().and_then(|word| word.strip_prefix(option));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    let variable = variable_of(program, option.trim_start_matches('-')).filter(|name| std::env::var_os(name).is_some());
    match variable {
        Some(name) if !command_line.iter().any(is_option) => {
            let text = error.render().to_string();
            Error::raw(error.kind(), format!("{name}: {}", text.trim_start_matches("error: ")))
        }
        _ => error,
    }
}

/// The variable of an option of a command or of its subcommands.
fn variable_of(command: &Command, long: &str) -> Option<String> {
    let own = command.get_arguments().find(|arg| arg.get_long() == Some(long) && arg.get_env().is_some());
    match own.and_then(Arg::get_env) {
        Some(name) => Some(name.to_str()?.to_owned()),
        None => command.get_subcommands().find_map(|inner| variable_of(inner, long)),
    }
}

/// Whether Kubernetes sets a variable in pods for a Service, such as `NAME_PORT_8090_TCP_ADDR`.
fn is_service_link(name: &str, value: &str) -> bool {
    let after_port = name.split_once("_PORT_").map(|(_, rest)| rest);
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || after_port.is_some_and(|rest| rest.starts_with(|character: char| character.is_ascii_digit()))
        || name.ends_with("_PORT") && ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme))
}

/// Adds the variables of the options of a command and of its subcommands.
fn add_variables(command: &Command, names: &mut Vec<String>) {
    names.extend(command.get_arguments().filter_map(|arg| Some(arg.get_env()?.to_str()?.to_owned())));
    command.get_subcommands().for_each(|inner| add_variables(inner, names));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_changed_letters_is_nearer_than_a_longer_one() {
        let names = ["LOG", "JWT_ALGORITHMS", "TOKEN", "TOKEN_FILE", "STATE_INTERVAL_S"];
        let of = |wrong| nearest(wrong, names.into_iter());
        assert_eq!([of("LGO"), of("TOKN"), of("TOKENFILE")], [Some("LOG"), Some("TOKEN"), Some("TOKEN_FILE")]);
        assert_eq!([of("STATE_INTERVAL"), of("ANOTHER_PROGRAM")], [Some("STATE_INTERVAL_S"), None]);
    }
}
