//! The program's log, on standard error.

use std::io::IsTerminal;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// How log lines are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people, in colours where standard error is a terminal.
    #[default]
    Text,
    /// One JSON object a line: timestamp, level, fields with the message, and spans.
    Json,
}

/// Starts logging what `FLASH_INDEXER_LOG` selects, by default level info and above.
///
/// # Errors
///
/// The variable is not a filter.
pub(crate) fn start(format: LogFormat) -> Result<(), String> {
    let log = tracing_subscriber::fmt().with_env_filter(filter()?).with_writer(std::io::stderr).with_target(false);
    match format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}

fn filter() -> Result<EnvFilter, String> {
    match std::env::var("FLASH_INDEXER_LOG") {
        Ok(filter) if !filter.is_empty() => EnvFilter::try_new(&filter).map_err(|error| {
            format!(
                "FLASH_INDEXER_LOG={filter}: {error}; give a level such as debug, or target=level, separated by commas"
            )
        }),
        _ => Ok(EnvFilter::new("info")),
    }
}
