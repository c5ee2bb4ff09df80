//! All connections to engines, as the registry uses them.

use std::sync::Arc;
use std::time::Instant;

use flash_indexer_telemetry::supervision::Supervisor;
use flash_indexer_types::networks::EngineNetworks;

use super::decoders::{Decoders, Retired};
use super::event_source::{ConnectError, EventSource};
use super::listener::Listener;
use super::pulls::Pulls;
use super::sockets::{BindError, BoundOptions, Sockets};

/// Connections to the engines of listeners. [`Sources`] are those of the service.
pub trait Transport: Send + Sync {
    /// Binds a socket that engines connect to. Returns its addresses, with the actual ports.
    ///
    /// # Errors
    ///
    /// When an address cannot be bound.
    fn bind(&self, options: &BoundOptions) -> Result<Vec<String>, BindError>;

    /// Begins to receive the events of a listener. Connects and reconnects in the background. For a bound pod, it only enables
    /// replays.
    ///
    /// # Errors
    ///
    /// As [`EventSource::open`].
    fn open(&self, listener: Arc<Listener>) -> Result<(), ConnectError>;

    /// Ends it, as [`EventSource::close`] does.
    fn close(&self, listener: &Arc<Listener>, retired: Retired) -> bool;

    /// Closes every connection and stops the threads. A thread that does not end by `deadline` is abandoned.
    fn stop(&self, deadline: Instant);
}

/// The sources of events. The endpoint of a listener selects its source.
pub struct Sources {
    sockets: Sockets,
    pulls: Pulls,
    streams: Box<dyn EventSource>,
}

impl Sources {
    /// Starts the sources. They connect to addresses in these networks only. `streams` is the source of events over gRPC.
    ///
    /// # Errors
    ///
    /// When the system refuses a thread.
    pub fn start(
        decoders: Arc<Decoders>,
        networks: &EngineNetworks,
        supervisor: &Arc<Supervisor>,
        streams: Box<dyn EventSource>,
    ) -> std::io::Result<Self> {
        let pulls = Pulls::new(Arc::clone(&decoders), networks, supervisor);
        Ok(Self { sockets: Sockets::start(decoders, networks, supervisor)?, pulls, streams })
    }

    /// The source of a listener.
    fn source_of(&self, listener: &Listener) -> &dyn EventSource {
        match &listener.options {
            options if options.is_pulled() => &self.pulls,
            options if options.is_streamed() => &*self.streams,
            _ => &self.sockets,
        }
    }
}

impl Transport for Sources {
    fn bind(&self, options: &BoundOptions) -> Result<Vec<String>, BindError> {
        self.sockets.bind(options)
    }

    fn open(&self, listener: Arc<Listener>) -> Result<(), ConnectError> {
        self.source_of(&listener).open(listener)
    }

    fn close(&self, listener: &Arc<Listener>, retired: Retired) -> bool {
        self.source_of(listener).close(listener, retired)
    }

    fn stop(&self, deadline: Instant) {
        self.pulls.end();
        self.sockets.stop(deadline);
        self.pulls.stop(deadline);
        self.streams.stop(deadline);
    }
}
