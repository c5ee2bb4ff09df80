//! The `flash-indexer` command.
//!
//! | module | role |
//! |---|---|
//! | `serve`, `serve/*` | runs the service; its options by subject, and the demo |
//! | `simulate/*` | simulated engines, under a workload or from a recording |
//! | `relay` | a relay next to an engine, which publishes hashes instead of tokens |
//! | `query`, `explain`, `prompt` | ask a service about a prompt |
//! | `config/*` | the configuration file of `serve`, checked and printed |
//! | `environment` | variables of the environment that look like settings and have no effect |
//! | `token`, `curve_key` | make bearer tokens, and CURVE key pairs |
//! | `manual` | manual pages and completions of shells |
//! | `reference` | reference pages of the documentation |
//! | `dump`, `diff/*` | save the state of a service; compare two services or dumps |
//! | `replay/*`, `bench` | measure index designs without a service |
//! | `log`, `stop`, `parsers`, `trace` | log, signals, option values, the trace file |
//! | `masking` | errors of the command line without secrets |

// Its macros replace those of the standard library.
#[macro_use]
extern crate flash_indexer_commands;

mod bench;
mod config;
mod curve_key;
mod diff;
mod dump;
mod environment;
mod explain;
mod log;
mod manual;
mod masking;
mod parsers;
mod prompt;
mod query;
mod reference;
mod relay;
mod replay;
mod serve;
mod simulate;
mod stop;
mod token;
mod trace;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use flash_indexer_commands::output::with_causes;
use flash_indexer_commands::{TOKEN_HELP, TOKEN_VARIABLE, sends_token};
use tracing::warn;

use crate::config::ParsedCommand;

/// Also serves the allocations of ZeroMQ. Its memory stays flat while models and engines come and go, but that of glibc's allocator grows.
#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Version and commit, such as `0.1.0 (a43e7f81 2026-11-24)`.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("FLASH_INDEXER_COMMIT"), ")");

/// A global index of the KV blocks that a fleet of LLM inference engines has cached.
#[derive(Parser)]
#[command(name = "flash-indexer", version = VERSION, propagate_version = true, after_help = FIRST_STEPS)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// First steps, at the end of the help.
const FIRST_STEPS: &str = "First steps:
  flash-indexer serve --demo            the service with simulated engines, and its dashboard
  flash-indexer serve --help            how it follows your own engines
  flash-indexer doctor                  checks a running service and its engines";

#[derive(Subcommand)]
enum Command {
    /// Run the service: listen to engines, answer queries over HTTP.
    Serve(Box<serve::ServeArguments>),
    // The doc comments of these arguments are their help.
    Simulate(simulate::SimulateArguments),
    Relay(relay::RelayArguments),
    /// Ask a running service which instances hold a prompt's prefix.
    Query(query::QueryArguments),
    /// Ask a running service where each rank's match of a prompt ends, and why.
    Explain(explain::ExplainArguments),
    // The doc comments of these arguments are their help.
    Doctor(flash_indexer_doctor::DoctorArguments),
    Token(token::TokenArguments),
    CurveKey(curve_key::CurveKeyArguments),
    Dump(dump::DumpArguments),
    Diff(diff::DiffArguments),
    Replay(replay::ReplayArguments),
    Bench(bench::BenchArguments),
    Config(config::ConfigArguments),
    Completions(manual::CompletionsArguments),
    Man(manual::ManArguments),
    #[command(hide = true)]
    Reference(reference::ReferenceArguments),
}

/// The parser of the program. The help of commands that send a token names its variable.
fn program() -> clap::Command {
    Arguments::command().mut_subcommands(|command| {
        if !sends_token(&command) {
            return command;
        }
        let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        command.after_help(format!("{examples}\n\nEnvironment:\n  {TOKEN_VARIABLE}  {TOKEN_HELP}"))
    })
}

fn main() -> ExitCode {
    let parsed = match config::parse(std::env::args_os().collect()) {
        Ok(parsed) => parsed,
        Err(error) => error.exit(),
    };
    let log_format = match &parsed.arguments.command {
        Command::Serve(arguments) => arguments.log_format,
        _ => log::LogFormat::default(),
    };
    if let Err(error) = log::start(log_format) {
        eprintln!("flash-indexer: {error}");
        return ExitCode::from(USAGE);
    }
    let code = run(parsed);
    log::finish();
    code
}

fn run(ParsedCommand { arguments, matches, file }: ParsedCommand) -> ExitCode {
    let result = match arguments.command {
        Command::Serve(arguments) => {
            for variable in environment::ignored_variables(&Arguments::command()) {
                warn!("{variable}");
            }
            serve::run(*arguments).map_err(|error| config::located(file.as_ref(), error))
        }
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::Relay(arguments) => relay::run(&arguments),
        Command::Query(arguments) => query::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Token(arguments) => token::run(&arguments),
        Command::CurveKey(arguments) => curve_key::run(&arguments),
        Command::Dump(arguments) => dump::run(&arguments),
        Command::Diff(arguments) => return diff::run(&arguments),
        Command::Doctor(arguments) => return flash_indexer_doctor::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Config(arguments) => config::run(&arguments, &matches, file.as_ref()),
        Command::Completions(arguments) => manual::complete(&arguments),
        Command::Man(arguments) => manual::write_pages(&arguments),
        Command::Reference(arguments) => reference::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::finish();
            eprintln!("flash-indexer: {}", flash_indexer_types::without_users(&with_causes(&error)));
            ExitCode::FAILURE
        }
    }
}

/// The exit code for a wrong option or environment variable.
const USAGE: u8 = 2;
