//! The configuration of `serve`: command line, environment, file and defaults, in this order.
//!
//! | module | role |
//! |---|---|
//! | `file` | the file of `--config`, as options of the command line |
//! | `effective` | all settings and their sources, as such a file |

mod effective;
mod file;

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, CommandFactory, Error, FromArgMatches, Subcommand};

use self::effective::effective_settings;
pub(crate) use self::file::ConfigFile;
use crate::environment::{IgnoredVariable, ignored_variables, name_variable, without_service_links};
use crate::masking::Masks;
use crate::parsers::plain_cause;
use crate::serve::ServeArguments;
use crate::{Arguments, program};

/// Check or print the configuration of `serve`.
#[derive(Args)]
#[command(after_help = "Examples:
  flash-indexer config check fleet.toml
  flash-indexer config print --config fleet.toml --port 9000
  flash-indexer config print > fleet.toml

A file has options of `serve` by their names, one a line:
  port = 9000
  allow-ipc = true
  peers = [\"http://replica-b:8090\", \"http://replica-c:8090\"]

The command line precedes the environment, the environment precedes the file, and the file precedes the defaults. Paths
are relative to the directory in which the program starts.")]
pub(crate) struct ConfigArguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Report the first error with which `serve` would refuse the options, the environment and the file.
    ///
    /// Files that settings name are read. No host name is resolved, no address is bound and no connection is made: errors of
    /// these appear when the service starts.
    Check(Box<ServeSettings>),
    /// Print the settings that `serve` would use with these options, and where each is from, as a file for --config.
    Print(Box<ServeSettings>),
}

#[derive(Args)]
struct ServeSettings {
    #[command(flatten)]
    serve: ServeArguments,

    /// The file, instead of --config.
    #[arg(value_name = "FILE")]
    config_file: Option<PathBuf>,
}

/// The arguments of the program, with the settings of a configuration file.
pub(crate) struct ParsedCommand {
    pub(crate) arguments: Arguments,
    pub(crate) matches: ArgMatches,
    pub(crate) file: Option<ConfigFile>,
}

/// Values that are an argument or an option: their ids, and the error for both.
const GIVEN_ONCE: [[&str; 3]; 2] = [
    ["config_file", "config", "give the file once: FILE or --config FILE"],
    ["service_url", "url", "give the URL of the service once: URL or --url URL"],
];

/// Parses a command line with the environment, and with the file that `--config` or `FLASH_INDEXER_CONFIG` names.
///
/// # Errors
///
/// The file cannot be read, or an option, a variable or a setting of the file is wrong.
pub(crate) fn parse(mut command_line: Vec<OsString>) -> Result<ParsedCommand, Error> {
    let mut command = without_service_links(program());
    // Errors are ignored: the command line may lack options that the file has.
    let given = command.clone().ignore_errors(true).try_get_matches_from(&command_line)?;
    let (depth, given) = innermost(&given);
    let mut file = None;
    let positional = given.try_get_one::<PathBuf>("config_file").ok().flatten();
    let is_on_command_line =
        |id: &str| given.try_contains_id(id).is_ok() && given.value_source(id) == Some(ValueSource::CommandLine);
    for [positional, option, error] in GIVEN_ONCE {
        if is_on_command_line(positional) && is_on_command_line(option) {
            return Err(command.error(ErrorKind::ArgumentConflict, error));
        }
    }
    if let Some(path) = positional.or_else(|| given.try_get_one::<PathBuf>("config").ok().flatten()) {
        let mut read = ConfigFile::read(path, serve_command(&mut Arguments::command())).map_err(|error| {
            Error::raw(ErrorKind::InvalidValue, format!("--config {}: {error:#}\n", path.display()))
        })?;
        let precedes_file =
            |id: &str| matches!(given.value_source(id), Some(ValueSource::CommandLine | ValueSource::EnvVariable));
        read.retain(|id| !precedes_file(id));
        // No option precedes the names of the subcommands.
        let position = (1 + depth).min(command_line.len());
        command_line.splice(position..position, read.options());
        file = Some(read);
    }
    let matches = command.try_get_matches_from_mut(&command_line);
    match matches.and_then(|matches| Ok((Arguments::from_arg_matches(&matches)?, matches))) {
        Ok((arguments, matches)) => Ok(ParsedCommand { arguments, matches, file }),
        Err(mut error) => {
            let cause = plain_cause(&error);
            let masks = Masks::apply(&mut error, &command);
            let error = match &file {
                Some(file) => file.name_in(error, serve_command(&mut program())),
                None => error,
            };
            let error = name_variable(error, &command, &command_line);
            let text = error.render().to_string();
            let shown = match cause {
                Some((cause, plain)) => text.replacen(&cause, plain, 1),
                None => text.clone(),
            };
            let shown = masks.within(&shown);
            Err(match shown == text {
                true => error,
                false => Error::raw(error.kind(), shown.trim_start_matches("error: ")),
            })
        }
    }
}

/// Number of subcommands, and the arguments of the innermost one.
fn innermost(matches: &ArgMatches) -> (usize, &ArgMatches) {
    let mut found = (0, matches);
    while let Some((_, inner)) = found.1.subcommand() {
        found = (found.0 + 1, inner);
    }
    found
}

fn serve_command(program: &mut Command) -> &Command {
    program.find_subcommand_mut("serve").expect("the program has the command serve")
}

/// An error of the options, with its place in the file, if that is known.
pub(crate) fn located(file: Option<&ConfigFile>, error: anyhow::Error) -> anyhow::Error {
    match file {
        Some(file) => file.locate(error),
        None => error,
    }
}

/// Runs `config`.
///
/// # Errors
///
/// [`Action::Check`]: a setting has the right form and a wrong value, such as a file that does not exist, or a variable has the
/// name of no setting.
pub(crate) fn run(arguments: &ConfigArguments, matches: &ArgMatches, file: Option<&ConfigFile>) -> Result<()> {
    match &arguments.action {
        Action::Check(checked) => {
            checked.serve.check().map_err(|error| located(file, error))?;
            crate::log::filter().map_err(anyhow::Error::msg)?;
            let ignored = ignored_variables(&Arguments::command()).into_iter();
            let unknown = ignored.filter(|variable| matches!(variable, IgnoredVariable::Unknown { .. }));
            let unknown: Vec<_> = unknown.map(|variable| variable.to_string()).collect();
            ensure!(unknown.is_empty(), "{}", unknown.join("\n"));
            match file {
                Some(file) => println!("{}: no error", file.path().display()),
                None => println!("no error"),
            }
        }
        Action::Print(_) => {
            print!("{}", effective_settings(serve_command(&mut Arguments::command()), innermost(matches).1, file));
        }
    }
    Ok(())
}
