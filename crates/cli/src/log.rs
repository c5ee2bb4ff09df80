//! The program's log, on standard error.

use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use clap::ValueEnum;
use flash_indexer_telemetry::log::{WorkerGuard, log_panics, start_writer};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Longest time for the last log lines to be written: a log that is not read blocks its writer.
const END_DEADLINE: Duration = Duration::from_secs(2);

/// Writes the waiting log lines when it is dropped.
static WRITER: Mutex<Option<WorkerGuard>> = Mutex::new(None);

/// How log lines are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people, in colours where standard error is a terminal.
    #[default]
    Text,
    /// One JSON object a line: timestamp, level, fields with the message, and spans.
    Json,
}

/// Starts logging the events that `FLASH_INDEXER_LOG` selects, by default level info and above.
///
/// # Errors
///
/// The variable is not a filter.
pub(crate) fn start(format: LogFormat) -> Result<(), String> {
    let filter = filter()?;
    let (writer, guard) = start_writer(std::io::stderr());
    *WRITER.lock().unwrap_or_else(PoisonError::into_inner) = Some(guard);
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_target(false);
    match format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().init(),
    }
    log_panics();
    Ok(())
}

/// Writes the log lines that wait, if they are read within [`END_DEADLINE`]. Later lines are lost.
pub(crate) fn finish() {
    let Some(guard) = WRITER.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
    let (finished, end) = mpsc::channel();
    // The guard reports a full buffer on standard output, which may be the pipe that is not read.
    let _ = std::thread::Builder::new().name("log-end".to_owned()).spawn(move || {
        drop(guard);
        let _ = finished.send(());
    });
    let _ = end.recv_timeout(END_DEADLINE);
}

/// Filter of `FLASH_INDEXER_LOG`, by default level info and above.
///
/// # Errors
///
/// The variable is not a filter.
pub(crate) fn filter() -> Result<EnvFilter, String> {
    match std::env::var("FLASH_INDEXER_LOG") {
        Ok(filter) if !filter.is_empty() => parsed(&filter).map_err(|error| {
            format!(
                "FLASH_INDEXER_LOG={filter}: {error}; give a level such as debug, or target=level, separated by commas"
            )
        }),
        _ => Ok(EnvFilter::new("info")),
    }
}

fn parsed(filter: &str) -> Result<EnvFilter, String> {
    // The library parses a single word that is not a level as a target. A misspelt level would select no line at all.
    let is_misspelt = |word: &&str| !word.contains(['=', '[']) && word.parse::<LevelFilter>().is_err();
    match filter.split(',').map(str::trim).filter(|word| !word.is_empty()).find(is_misspelt) {
        Some(word) => Err(format!("{word} is not a level")),
        None => EnvFilter::try_new(filter).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_is_refused() {
        for filter in
            ["debug", "INFO", "warn,flash_indexer_server=trace", "off", "flash_indexer_ingest[listener]=debug"]
        {
            assert!(parsed(filter).is_ok(), "{filter}");
        }
        for filter in ["inof", "info,flash_indexer", "x=verbose"] {
            assert!(parsed(filter).is_err(), "{filter}");
        }
    }
}
