//! Stopping on Ctrl-C or SIGTERM.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::signal::unix::{self, SignalKind};

use crate::log;

/// Resolves at the first Ctrl-C or SIGTERM.
pub(crate) fn signal() -> Result<impl Future<Output = ()>> {
    let mut interrupted = unix::signal(SignalKind::interrupt()).context("failed to listen for Ctrl-C")?;
    let mut terminated = unix::signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?;
    Ok(async move {
        tokio::select! {
            _ = interrupted.recv() => {}
            _ = terminated.recv() => {}
        }
    })
}

/// Makes a write beyond the limit on file sizes fail as on a full disk, instead of ending the process. Called in a Tokio runtime.
pub(crate) fn survive_file_size_limit() -> Result<()> {
    // SIGXFSZ on Linux and macOS. Its handler stays after the receiver is dropped.
    unix::signal(SignalKind::from_raw(25)).map(drop).context("failed to handle the limit on file sizes")
}

/// Longest time from the first signal to the end of a service: above the sum of its deadlines for stopping.
pub(crate) const END_DEADLINE: Duration = Duration::from_secs(20);
/// The exit code of a service that did not stop in time.
const NOT_ENDED: i32 = 1;

/// Exits the process at `deadline` after the first Ctrl-C or SIGTERM, once its log is written, if it has not stopped by then. A thread with
/// its own runtime waits for the signal, so a blocked thread of the service does not prevent the exit.
pub(crate) fn end_within(deadline: Duration) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stopped = runtime.block_on(async { signal() })?;
    std::thread::Builder::new().name("end-deadline".to_owned()).spawn(move || {
        runtime.block_on(stopped);
        std::thread::sleep(deadline);
        tracing::error!(?deadline, "failed to stop within the deadline: a task did not end; the process exits");
        log::finish();
        std::process::exit(NOT_ENDED);
    })?;
    Ok(())
}

/// Stop signal for blocking work.
#[derive(Clone, Default)]
pub(crate) struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// A flag that the first Ctrl-C or SIGTERM raises; the second one ends the process.
    pub(crate) fn on_signal() -> Result<Self> {
        let flag = Self::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let first = runtime.block_on(async { signal() })?;
        let raised = flag.clone();
        std::thread::spawn(move || {
            runtime.block_on(first);
            raised.0.store(true, Ordering::Relaxed);
            if let Ok(again) = runtime.block_on(async { signal() }) {
                runtime.block_on(again);
            }
            std::process::exit(INTERRUPTED);
        });
        Ok(flag)
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Waits until the flag is raised.
    pub(crate) fn wait(&self) {
        while !self.is_raised() {
            std::thread::sleep(CHECK_INTERVAL);
        }
    }
}

const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The exit code that shells report for a program that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

#[cfg(test)]
mod tests {
    use std::process::{Command, Output, Stdio};

    use flash_indexer_test_support::wait_for;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);
    /// Variable in whose presence a test is the process that hangs.
    const HANGS: &str = "FLASH_INDEXER_TEST_HANGS";

    /// Output of a process that runs this test alone, in which `hang` starts its cause, and that receives SIGTERM. In that process itself,
    /// it does not return.
    fn output_of_process_that_hangs<T>(test: &str, hang: impl FnOnce() -> T) -> Output {
        if std::env::var_os(HANGS).is_some() {
            log::start(log::LogFormat::Text).expect("a filter");
            end_within(Duration::ZERO).expect("a thread");
            let _cause = hang();
            let pid = std::process::id().to_string();
            assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs").success());
            loop {
                std::thread::park();
            }
        }
        let mut process = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", &format!("stop::tests::{test}"), "--nocapture"])
            .env(HANGS, "")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_for("the end of the process", PATIENCE, || process.try_wait().expect("a child can be waited for"))
        }));
        // The process may have ended already.
        let _ = process.kill();
        let output = process.wait_with_output().expect("it ended");
        assert!(end.is_ok(), "the process did not end by itself: {output:?}");
        output
    }

    #[test]
    fn a_process_whose_stop_hangs_exits_with_1_and_logs_it() {
        let output = output_of_process_that_hangs("a_process_whose_stop_hangs_exits_with_1_and_logs_it", || {});
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(NOT_ENDED), "{output:?}");
        assert!(log.contains("ERROR") && log.contains("failed to stop within the deadline"), "{log}");
    }

    #[test]
    fn a_process_whose_log_blocks_exits_with_1() {
        let output =
            output_of_process_that_hangs("a_process_whose_log_blocks_exits_with_1", || std::io::stderr().lock());
        assert_eq!(output.status.code(), Some(NOT_ENDED), "{output:?}");
    }
}
