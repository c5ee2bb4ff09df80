//! System services, other than time, of a store's tasks: random ids, threads that may block, and connections. A
//! simulation provides its own. The tasks read Tokio's clock, which a simulation pauses.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::error::StoreError;

/// The store of a simulation, which runs all replicas in one thread.
pub trait SimulatedStore: fmt::Debug + Send + Sync {
    /// Number of buckets.
    fn buckets(&self) -> u16;

    /// A link of one replica to the store.
    fn connect(&self) -> Arc<dyn SimulatedLink>;

    /// The next number of the simulation's random sequence.
    fn random(&self) -> u64;
}

/// One replica's link to the store of a simulation.
pub trait SimulatedLink: Send + Sync {
    /// Whether calls reach the store.
    fn is_connected(&self) -> bool;

    /// Runs a script and returns its response, or an error at the deadline.
    fn call<'c>(
        &'c self,
        call: ScriptCall<'c>,
        deadline: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<Value, StoreError>> + Send + 'c>>;
}

/// One call of a script, as `EVAL` takes it.
#[derive(Debug, Clone, Copy)]
pub struct ScriptCall<'c> {
    /// Source of the script, in Lua.
    pub source: &'static str,
    /// The script's keys.
    pub keys: &'c [Vec<u8>],
    /// The script's arguments.
    pub arguments: &'c [Vec<u8>],
}

/// Source of random ids and of threads that may block.
#[derive(Debug, Clone)]
pub(crate) enum Environment {
    System,
    /// One thread, and ids that a seed decides.
    Simulated(Arc<dyn SimulatedStore>),
}

impl Environment {
    /// A random id that is not zero, for replicas, sessions and epochs. Ids of different calls, in any process, differ.
    pub(crate) fn random_id(&self) -> u64 {
        let random = match self {
            Self::System => getrandom::u64().expect("the operating system has a source of random numbers"),
            Self::Simulated(store) => store.random(),
        };
        random.max(1)
    }

    /// Runs a call that may block on a thread for such calls. None if it panics, or if the runtime is shutting down.
    pub(crate) async fn run_blocking<T: Send + 'static>(&self, call: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        match self {
            Self::System => tokio::task::spawn_blocking(call).await.ok(),
            Self::Simulated(_) => Some(call()),
        }
    }
}
