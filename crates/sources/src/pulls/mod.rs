//! Engines whose events the service pulls over HTTP: TensorRT-LLM's `POST /kv_cache_events`. No other module of this crate
//! uses HTTP.
//!
//! Each engine has its own thread with one connection: an engine that does not respond delays no other one. The thread
//! pulls, converts the response into messages ([`PullReader`]), and delivers them to the listener's decoder. A connection
//! reaches one process. Another may reach a restarted engine, so it counts like a lost connection of a socket.

mod client;
mod long_pulls;
mod pull_loop;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use crossbeam_channel::{Sender, bounded};
use flash_indexer_ingest::{
    ConnectError, Decoders, Delivery, DeliveryGate, EventSource, Listener, OnRetired, RunningThread,
};
use flash_indexer_telemetry::supervision::{SupervisedThread, Supervisor, ThreadKind, Watch};
use flash_indexer_types::networks::EngineNetworks;
use flash_indexer_wire::PullReader;
use parking_lot::Mutex;

use self::client::PullClient;
use self::long_pulls::LongPulls;
use self::pull_loop::PullLoop;

/// Limit of the engines that are pulled, each by a thread. Threads of closed listeners that have not ended yet count.
const PULLED_ENGINES_MAX: usize = 256;

/// All engines that are pulled, with their threads.
pub(super) struct Pulls {
    engines: Mutex<BTreeMap<u64, Engine>>,
    /// Threads that run.
    running: Arc<AtomicUsize>,
    long_pulls: Arc<LongPulls>,
    networks: EngineNetworks,
    decoders: Arc<Decoders>,
    supervisor: Arc<Supervisor>,
}

/// The thread of one engine.
struct Engine {
    gate: Arc<DeliveryGate>,
    /// Ends the thread when it is dropped.
    stop: Option<Sender<()>>,
    thread: SupervisedThread,
}

impl Pulls {
    /// Pulls from engines in these networks. Threads are started as listeners are opened.
    pub(super) fn new(decoders: Arc<Decoders>, networks: &EngineNetworks, supervisor: &Arc<Supervisor>) -> Self {
        Self {
            engines: Mutex::default(),
            running: Arc::default(),
            long_pulls: Arc::default(),
            networks: networks.clone(),
            decoders,
            supervisor: Arc::clone(supervisor),
        }
    }

    /// Requests every thread to end. Its later deliveries are dropped.
    pub(super) fn end(&self) {
        for engine in self.engines.lock().values_mut() {
            engine.stop = None;
        }
    }
}

impl EventSource for Pulls {
    fn open(&self, listener: Arc<Listener>) -> Result<(), ConnectError> {
        let mut engines = self.engines.lock();
        let Some(running) = RunningThread::begin(&self.running, PULLED_ENGINES_MAX) else {
            return Err(ConnectError::TooManyPulls { max: PULLED_ENGINES_MAX });
        };
        let (id, gate) = (listener.id, Arc::new(DeliveryGate::default()));
        let (stop, stopped) = bounded(0);
        let pulls = PullLoop {
            client: PullClient::new(&listener, &self.networks, Arc::clone(&self.long_pulls)),
            reader: PullReader::new(listener.model.block_size()),
            gate: Arc::clone(&gate),
            stopped,
            connection: None,
            clock: self.supervisor.clock().clone(),
            decoders: Arc::clone(&self.decoders),
            listener,
        };
        let run = move |watch: &Arc<Watch>| {
            let _running = running;
            pulls.run(watch);
        };
        let thread = self.supervisor.spawn(ThreadKind::EnginePull, usize::try_from(id).ok(), run);
        let thread = thread.map_err(|error| ConnectError::Thread(error.to_string()))?;
        engines.insert(id, Engine { gate, stop: Some(stop), thread });
        Ok(())
    }

    fn close(&self, listener: &Arc<Listener>, retired: OnRetired) -> bool {
        let Some(engine) = self.engines.lock().remove(&listener.id) else { return false };
        // The thread may be in a pull. It ends after it, and delivers no more.
        engine.gate.close(|| self.decoders.deliver(listener, Delivery::Retire(retired)));
        true
    }

    fn stop(&self, deadline: Instant) {
        self.end();
        let engines = std::mem::take(&mut *self.engines.lock());
        for engine in engines.into_values() {
            engine.thread.join_by(deadline);
        }
    }
}
