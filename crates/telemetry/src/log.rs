//! The writer of the process's log: a thread with a bounded buffer, so that a log that is not read blocks no other thread.

use std::io::Write;
use std::sync::OnceLock;

use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder};
pub use tracing_appender::non_blocking::{NonBlocking, WorkerGuard};

/// Limit of log lines that wait to be written. Further ones are dropped, and counted in `log_lines_dropped_total`.
pub const BUFFERED_LINES_MAX: usize = 4_096;

/// Counter of the process's log, which `tracing` has one of.
static DROPPED_LINES: OnceLock<ErrorCounter> = OnceLock::new();

/// Starts the thread that writes the process's log to `output`. Dropping the guard writes the lines that wait; it gives up
/// after about a second.
///
/// The metric counts the lines that the first writer of the process drops.
pub fn start_writer(output: impl Write + Send + 'static) -> (NonBlocking, WorkerGuard) {
    let builder = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(BUFFERED_LINES_MAX).thread_name("log");
    let (writer, guard) = builder.finish(output);
    DROPPED_LINES.get_or_init(|| writer.error_counter());
    (writer, guard)
}

/// Number of log lines that were dropped.
pub(crate) fn dropped_lines() -> u64 {
    DROPPED_LINES.get().map_or(0, |counter| counter.dropped_lines() as u64)
}
