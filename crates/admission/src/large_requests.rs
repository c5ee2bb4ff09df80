//! Threads for requests with large bodies, so small requests never wait behind them.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use flash_indexer_telemetry::metrics::{Limit, Metrics};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::{JoinError, JoinSet};

use crate::fair_semaphore::{FairSemaphore, Permit, QueueFull};

/// Bytes of a decompressed body beyond which its request is large. A body of this size occupies a thread for 0.3 ms, and
/// for 1.2 ms at worst: a list of local hashes of one digit.
pub const LARGE_BYTES: usize = 256 << 10;

/// Limit of large requests that wait for a thread. One client alone may have half of them.
const WAITING_MAX: usize = 256;

thread_local! {
    static IS_LARGE_REQUEST_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Threads that parse, hash and answer requests with large bodies, one for each two processors. The other requests are
/// served by the threads of the server's runtime.
#[derive(Debug)]
pub struct LargeRequests {
    /// None after its threads are stopped.
    runtime: Option<Runtime>,
    /// Permits of requests that have no thread yet, one for each thread. The others wait in a fair order.
    permits: Arc<FairSemaphore>,
    metrics: Arc<Metrics>,
}

/// A large request was not answered.
#[derive(Debug, thiserror::Error)]
pub enum LargeRequestError {
    /// Too many requests wait for a thread.
    #[error(
        "failed to answer a request with a large body: too many others of this client wait for a thread; retry later"
    )]
    Full,
    /// The request panicked, or the service is stopping.
    #[error(transparent)]
    Ended(#[from] JoinError),
}

impl LargeRequests {
    /// Starts the threads.
    ///
    /// # Errors
    ///
    /// If the system refuses a thread.
    pub fn start(metrics: &Arc<Metrics>) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(Self::threads())
            .thread_name("large-request")
            .on_thread_start(|| IS_LARGE_REQUEST_THREAD.set(true))
            .build()?;
        let permits = FairSemaphore::new(Self::threads(), WAITING_MAX);
        Ok(Self { runtime: Some(runtime), permits, metrics: Arc::clone(metrics) })
    }

    /// Runs work of a client on one of the threads. The work first waits for its turn. If too much work of the client waits, it is refused,
    /// and counted. Dropping the future cancels the work.
    pub async fn run<T: Send + 'static>(
        &self,
        client: IpAddr,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, LargeRequestError> {
        let permit = self.permits.acquire(client).await.map_err(|QueueFull| {
            self.metrics.limit_reached(Limit::LargeRequests);
            LargeRequestError::Full
        })?;
        // Dropping the set cancels the work.
        let mut spawned = self.spawn(work, permit);
        Ok(spawned.join_next().await.expect("it has the work")?)
    }

    /// Number of threads.
    fn threads() -> usize {
        std::thread::available_parallelism().map_or(1, usize::from).div_ceil(2)
    }

    /// Whether the current thread is one of these threads.
    pub fn is_current_thread() -> bool {
        IS_LARGE_REQUEST_THREAD.get()
    }

    /// The future holds the permit until the work first has a thread: a later wait is for something with its own limit.
    fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static, permit: Permit) -> JoinSet<T> {
        // Timers and tasks of the work belong to the runtime that serves all requests.
        let server = Handle::current();
        let request = flash_indexer_traces::current();
        let (mut work, mut permit) = (Box::pin(work), Some(permit));
        let work = poll_fn(move |context| {
            let (_entered, _request) = (server.enter(), request.attach());
            drop(permit.take());
            work.as_mut().poll(context)
        });
        let mut spawned = JoinSet::new();
        spawned.spawn_on(work, self.runtime.as_ref().expect("it runs until it is dropped").handle());
        spawned
    }
}

impl Drop for LargeRequests {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A runtime that is dropped inside another one would panic.
            runtime.shutdown_background();
        }
    }
}

/// Gate for which all threads of a test wait.
#[cfg(any(test, feature = "fault-injection"))]
impl LargeRequests {
    /// Occupies all threads until the returned sender is dropped.
    pub fn occupy(&self) -> std::sync::mpsc::Sender<()> {
        let (gate, closed) = std::sync::mpsc::channel::<()>();
        let closed = Arc::new(parking_lot::Mutex::new(closed));
        let (occupied, started) = std::sync::mpsc::channel();
        for _ in 0..Self::threads() {
            let (closed, occupied) = (Arc::clone(&closed), occupied.clone());
            self.runtime.as_ref().expect("it runs until it is dropped").spawn(async move {
                let _ = occupied.send(());
                // One thread waits for the sender to be dropped, the others for that thread.
                let _ = closed.lock().recv();
            });
        }
        (0..Self::threads()).for_each(|_| started.recv().expect("every thread starts"));
        gate
    }

    /// Number of requests that wait for a thread.
    pub fn waiting(&self) -> usize {
        let (permits, waiters) = self.permits.occupied();
        permits + waiters
    }

    /// Number of requests of one client alone that may wait for a thread while all threads are occupied.
    pub fn share_alone() -> usize {
        Self::threads() + WAITING_MAX / 2
    }
}
