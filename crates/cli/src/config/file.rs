//! The file of `--config`: options of `serve` in TOML.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command, Error};
use flash_indexer_access::TomlError;
use toml::{Table, Value};

use crate::environment::nearest;
use flash_indexer_commands::output::with_causes;

/// Minimum length of a value that is searched for in an error, in characters.
const PART_MIN: usize = 3;

/// Settings of a file, as options of the command line.
pub(crate) struct ConfigFile {
    path: PathBuf,
    settings: Vec<Setting>,
}

struct Setting {
    id: String,
    option: String,
    /// Its line in the file, from 1.
    line: usize,
    /// Whether the values are words of a fixed choice. Many texts contain such words by chance.
    is_choice: bool,
    /// Values of the option, one for each occurrence. A flag that is on has one entry without a value. A flag that is off has no entry.
    values: Vec<Option<String>>,
}

impl ConfigFile {
    /// Reads a file of options of the command `serve`.
    ///
    /// # Errors
    ///
    /// The file cannot be read or is not TOML, a name is not an option, or a value has a type that no option has. The values themselves are
    /// checked with those of the command line.
    pub(crate) fn read(path: &Path, serve: &Command) -> Result<Self> {
        let text = std::fs::read_to_string(path).context("failed to read the file")?;
        // The parser's own text shows the line, which may have a password.
        let unparsed = |error| anyhow!("failed to parse the file: {}", TomlError::of(&text, &error));
        let table: Table = text.parse().map_err(unparsed)?;
        let by_line: BTreeMap<_, _> = table.iter().map(|(name, value)| ((line_of(&text, name), name), value)).collect();
        let settings = by_line.into_iter().map(|((line, name), value)| {
            Setting::new(name, value, line, serve).with_context(|| format!("line {line}"))
        });
        Ok(Self { path: path.to_owned(), settings: settings.collect::<Result<_>>()? })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps the settings of the options that are selected by id.
    pub(super) fn retain(&mut self, is_selected: impl Fn(&str) -> bool) {
        self.settings.retain(|setting| is_selected(&setting.id));
    }

    /// Whether the option with this id has its value from the file.
    pub(super) fn sets(&self, id: &str) -> bool {
        self.settings.iter().any(|setting| setting.id == id)
    }

    /// The settings as options.
    pub(super) fn options(&self) -> impl Iterator<Item = OsString> {
        self.settings.iter().flat_map(Setting::options)
    }

    /// An error about a value, with the file and the line of the value, if the error names the option or the value.
    pub(crate) fn locate(&self, error: anyhow::Error) -> anyhow::Error {
        let text = with_causes(&error);
        let by_option = self.settings.iter().find(|setting| has_word(&text, &setting.option));
        let length_named = |setting: &Setting| setting.parts().filter(|part| has_word(&text, part)).map(str::len).max();
        let by_value = || {
            self.settings
                .iter()
                .filter(|setting| length_named(setting) > None)
                .max_by_key(|setting| length_named(setting))
        };
        match by_option.or_else(by_value) {
            Some(Setting { line, .. }) => anyhow!("--config {}: line {line}: {text}", self.path.display()),
            None => error,
        }
    }

    /// An error that names the file, if one of its settings is wrong.
    pub(super) fn name_in(&self, error: Error, serve: &Command) -> Error {
        let (setting, cause) = match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::String(option)) => {
                let option = option.split([' ', '=']).next().unwrap_or_default();
                let setting = self.settings.iter().find(|setting| setting.option == option);
                let text = error.render().to_string();
                // The error, and the possible values; the usage follows.
                let cause: Vec<_> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
                (setting, cause.join(" ").trim_start_matches("error: ").to_owned())
            }
            Some(ContextValue::Strings(missing)) if error.kind() == ErrorKind::MissingRequiredArgument => {
                let setting = self.settings.iter().find(|setting| setting.lacks(missing, serve));
                let name = setting.map(|setting| setting.option.trim_start_matches('-')).unwrap_or_default();
                (setting, format!("{name} has no effect without {}", missing.join(" and ")))
            }
            _ => return error,
        };
        match setting {
            Some(Setting { line, .. }) => {
                Error::raw(error.kind(), format!("--config {}: line {line}: {cause}\n", self.path.display()))
            }
            None => error,
        }
    }
}

impl Setting {
    fn new(name: &str, value: &Value, line: usize, serve: &Command) -> Result<Self> {
        let Some(arg) = settable(serve).find(|arg| arg.get_long() == Some(name)) else {
            match nearest(name, settable(serve).filter_map(Arg::get_long)) {
                Some(nearest) => bail!("there is no setting {name:?}; did you mean {nearest:?}?"),
                None if value.is_table() => {
                    bail!("[{name}]: the file has no tables; write its settings at the top level")
                }
                None => bail!("there is no setting {name:?}; see flash-indexer serve --help"),
            }
        };
        let values = match (arg.get_action(), value) {
            (ArgAction::SetTrue, Value::Boolean(is_on)) => is_on.then_some(None).into_iter().collect(),
            (ArgAction::SetTrue, _) => bail!("{name}: give true or false"),
            (ArgAction::Append, Value::Array(values)) => {
                values.iter().map(|value| scalar(name, value).map(Some)).collect::<Result<_>>()?
            }
            (_, value) => vec![Some(scalar(name, value)?)],
        };
        Ok(Self {
            id: arg.get_id().to_string(),
            option: format!("--{name}"),
            line,
            is_choice: !arg.get_possible_values().is_empty(),
            values,
        })
    }

    /// Whether this setting alone requires others, of which these are absent.
    fn lacks(&self, missing: &[String], serve: &Command) -> bool {
        let alone = serve.clone().try_get_matches_from([OsString::from("serve")].into_iter().chain(self.options()));
        let required = alone.err().and_then(|error| error.get(ContextKind::InvalidArg).cloned());
        matches!(required, Some(ContextValue::Strings(required)) if missing.iter().all(|option| required.contains(option)))
    }

    /// The values, and the parts of those that have some, such as an endpoint. Short ones occur in many texts by chance.
    fn parts(&self) -> impl Iterator<Item = &str> {
        let values = self.values.iter().flatten().filter(|_| !self.is_choice);
        values.flat_map(|value| value.split(['=', '|']).chain([value.as_str()])).filter(|part| part.len() >= PART_MIN)
    }

    fn options(&self) -> impl Iterator<Item = OsString> {
        self.values.iter().map(|value| match value {
            Some(value) => format!("{}={value}", self.option).into(),
            None => self.option.clone().into(),
        })
    }
}

/// Whether a text has these characters, and not as a part of a longer name.
fn has_word(text: &str, word: &str) -> bool {
    let is_of_name = |character: char| character.is_alphanumeric() || matches!(character, '-' | '_');
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(is_of_name) && !text[at + word.len()..].starts_with(is_of_name))
}

/// The line of a key or a table at the top level of a file, from 1.
fn line_of(text: &str, name: &str) -> usize {
    let is_named = |line: &str| {
        let key = line.trim_start().trim_start_matches(['[', '"', '\'']);
        let rest = key.strip_prefix(name).map(|rest| rest.trim_start_matches(['"', '\'']).trim_start());
        rest.is_some_and(|rest| rest.starts_with(['=', '.', ']']))
    };
    text.lines().position(is_named).map_or(1, |before| before + 1)
}

/// Options that a file may have.
pub(super) fn settable(serve: &Command) -> impl Iterator<Item = &Arg> {
    serve.get_arguments().filter(|arg| arg.get_long().is_some() && arg.get_id() != "config" && takes_setting(arg))
}

fn takes_setting(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Set | ArgAction::Append | ArgAction::SetTrue)
}

/// A value as text.
fn scalar(name: &str, value: &Value) -> Result<String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        Value::Boolean(value) => Ok(value.to_string()),
        Value::Datetime(date) => Ok(date.to_string()),
        Value::Array(_) => Err(anyhow!("{name}: give one value instead of a list")),
        Value::Table(_) => Err(anyhow!("{name}: give a value instead of a table")),
    }
}
