//! The `flash-indexer` command.

mod bench;
mod byte_size;
mod client;
mod count;
mod demo;
mod diff;
mod discovery;
mod doctor;
mod dump;
mod explain;
#[cfg(feature = "hub")]
mod hub;
mod pods;
mod prompt;
mod query;
mod replay;
mod serve;
mod simulate;
mod stop;
mod store;
mod tokenization;
mod trace;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand};
use flash_indexer_designs::Design;
use tracing_subscriber::EnvFilter;

use crate::trace::trace_file;

/// A global index of the KV blocks that a fleet of LLM inference engines has cached.
///
/// Start with `flash-indexer serve --demo`, which shows the whole at work without any engine.
#[derive(Parser)]
#[command(version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the service: listen to engines, answer queries over HTTP.
    Serve(Box<serve::ServeArguments>),
    /// Be one or more engines: play a recorded stream, or simulate caches under a workload.
    Simulate(simulate::SimulateArguments),
    /// Ask a running service which instances hold a prompt's prefix.
    Query(query::QueryArguments),
    /// Ask a running service where each rank's match of a prompt ends, and why.
    Explain(explain::ExplainArguments),
    /// Check a running service and its engines end to end, and say what to fix.
    Doctor(doctor::DoctorArguments),
    // Their arguments say what they do, at more length in --help.
    Dump(dump::DumpArguments),
    Diff(diff::DiffArguments),
    Replay(replay::ReplayArguments),
    Bench(bench::BenchArguments),
}

/// Reads the name of an index design, and lists them all in the help.
fn design_name() -> impl TypedValueParser<Value = Design> {
    let names = PossibleValuesParser::new(Design::ALL.map(Design::as_str));
    names.map(|name| name.parse().expect("only names of designs are possible"))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = match log_filter() {
        Ok(filter) => filter,
        Err(error) => {
            eprintln!("flash-indexer: {error}");
            return ExitCode::from(USAGE);
        }
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    let result = match arguments.command {
        Command::Serve(arguments) => serve::run(*arguments),
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::Query(arguments) => query::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Dump(arguments) => dump::run(&arguments),
        Command::Diff(arguments) => return diff::run(&arguments),
        Command::Doctor(arguments) => return doctor::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("flash-indexer: {}", told(&error));
            ExitCode::FAILURE
        }
    }
}

/// The exit code for a wrong option, which is what a wrong variable is.
const USAGE: u8 = 2;

/// What is logged, as `FLASH_INDEXER_LOG` says.
fn log_filter() -> Result<EnvFilter, String> {
    match std::env::var("FLASH_INDEXER_LOG") {
        Ok(filter) if !filter.is_empty() => EnvFilter::try_new(&filter).map_err(|error| {
            format!(
                "FLASH_INDEXER_LOG={filter}: {error}; give a level such as debug, or target=level, separated by commas"
            )
        }),
        _ => Ok(EnvFilter::new("info")),
    }
}

/// An error with what has led to it. Many of the project's errors say that themselves: nothing is said twice.
fn told(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        match text.is_empty() {
            true => text = cause,
            false if text.contains(&cause) => {}
            false => text = format!("{text}: {cause}"),
        }
    }
    text
}
