//! Ending on Ctrl-C or SIGTERM.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

/// Resolves at the first Ctrl-C or SIGTERM.
pub(crate) fn signal() -> Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupted = signal(SignalKind::interrupt()).context("failed to listen for Ctrl-C")?;
    let mut terminated = signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?;
    Ok(async move {
        tokio::select! {
            _ = interrupted.recv() => {}
            _ = terminated.recv() => {}
        }
    })
}

/// Longest time from the first signal to the end of a service: above the sum of what it waits for at its end.
const END_DEADLINE: Duration = Duration::from_secs(20);
/// The exit code of a service that did not end by itself.
const NOT_ENDED: i32 = 1;

/// From now on the process ends within [`END_DEADLINE`] of the first Ctrl-C or SIGTERM, whatever its threads do. Its own
/// thread sees to that, with a runtime of its own.
pub(crate) fn end_within_deadline() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stopped = runtime.block_on(async { signal() })?;
    std::thread::Builder::new().name("end-deadline".to_owned()).spawn(move || {
        runtime.block_on(stopped);
        std::thread::sleep(END_DEADLINE);
        tracing::error!("failed to end within {END_DEADLINE:?} of the signal; the process exits");
        std::process::exit(NOT_ENDED);
    })?;
    Ok(())
}

/// Tells work that is not asynchronous that it should end.
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
/// What shells report of a program that Ctrl-C ended.
const INTERRUPTED: i32 = 130;
