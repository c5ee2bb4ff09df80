//! The writer of the process's log: a thread with a bounded buffer, so a log that is not read blocks no other thread.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::Write;
use std::sync::OnceLock;

use tracing::error;
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder};
pub use tracing_appender::non_blocking::{NonBlocking, WorkerGuard};

/// Limit of log lines that wait to be written. Further lines are dropped, and counted in `log_lines_dropped_total`.
pub const BUFFERED_LINES_MAX: usize = 4_096;

/// Counter of the process's log. `tracing` has one log for each process.
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

/// Logs each panic of a thread, instead of writing its message to standard error: a full pipe there would block the thread. The
/// line has a backtrace if `RUST_BACKTRACE` asks for one. A panic of the main thread ends the process and its log, so its
/// message is written as before.
pub fn log_panics() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("unnamed");
        if thread == "main" {
            return default(panic);
        }
        let location = panic.location().map(ToString::to_string).unwrap_or_default();
        let message = panic.payload_as_str().unwrap_or("no message");
        let backtrace = Backtrace::capture();
        match backtrace.status() {
            BacktraceStatus::Captured => error!(thread, location, panic = message, %backtrace, "panic"),
            _ => error!(thread, location, panic = message, "panic"),
        }
    }));
}

/// Number of log lines that were dropped.
pub(crate) fn dropped_lines() -> u64 {
    DROPPED_LINES.get().map_or(0, |counter| counter.dropped_lines() as u64)
}
