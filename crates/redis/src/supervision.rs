//! Supervision of tasks: a task that panics is restarted.

use std::future::Future;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::task::JoinSet;
use tracing::error;

/// Pause before a link that panicked is started again.
pub(crate) const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// Number of panics of store tasks in this process.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Number of panics of store tasks in this process.
pub(crate) fn panic_count() -> u64 {
    PANICS.load(Relaxed)
}

/// Runs a task to its end. A panic is counted and logged, and the task restarts after `pause`. Dropping the future
/// aborts the task.
pub(crate) async fn supervise<F>(task: &'static str, pause: Duration, mut start: impl FnMut() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        // A set aborts its tasks when it is dropped.
        let mut running = JoinSet::new();
        running.spawn(start());
        match running.join_next().await {
            Some(Err(failed)) if failed.is_panic() => {
                PANICS.fetch_add(1, Relaxed);
                error!(task, %failed, "shared store task panicked; restarting it");
            }
            _ => return,
        }
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[tokio::test]
    async fn a_panicked_task_is_restarted_and_counted() {
        let (before, starts) = (panic_count(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&starts);
        let task = supervise("test", Duration::ZERO, || {
            let start = counted.fetch_add(1, Relaxed);
            async move { assert!(start == 2, "deliberate panic of the test") }
        });
        task.await;
        assert_eq!(starts.load(Relaxed), 3);
        assert_eq!(panic_count() - before, 2);
    }
}
