//! Tasks that start again when they panic.

use std::future::Future;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::task::JoinSet;
use tracing::error;

/// Panics of tasks in this process.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Panics of tasks of the shared store in this process.
pub(crate) fn panics() -> u64 {
    PANICS.load(Relaxed)
}

/// Runs a task to its end. If it panics, that is counted and logged, and after `pause` it starts again from nothing. Dropped,
/// the task ends with it.
pub(crate) async fn supervised<F>(task: &'static str, pause: Duration, mut start: impl FnMut() -> F)
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
                error!(task, %failed, "task of the shared store panicked; it starts again");
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
    async fn a_task_that_panics_starts_again_and_is_counted() {
        let (before, starts) = (panics(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&starts);
        let task = supervised("test", Duration::ZERO, || {
            let start = counted.fetch_add(1, Relaxed);
            async move { assert!(start == 2, "a test asked for it") }
        });
        task.await;
        assert_eq!(starts.load(Relaxed), 3);
        assert_eq!(panics() - before, 2);
    }
}
