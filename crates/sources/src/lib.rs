//! Ways of receiving the events of engines, each behind the trait [`EventSource`].
//!
//! [`Sources`] has all of them, and the endpoint of a listener selects its way. Their frames go to the decoders of
//! `ingest`, which handle all ways alike.
//!
//! | file | role |
//! |---|---|
//! | `lib.rs` | [`Sources`]: all ways as one [`Transport`] |
//! | `pulls/` | HTTP: engines whose events the service pulls, each with its own thread |
//!
//! ZeroMQ is `ingest::Sockets`, and gRPC is `engine-streams`.

mod pulls;

use std::sync::Arc;
use std::time::Instant;

use flash_indexer_curve::Curve;
use flash_indexer_engine_streams::EngineStreams;
use flash_indexer_ingest::{BindError, BoundOptions, ConnectError, Decoders, EventSource, Listener, OnRetired};
use flash_indexer_ingest::{Sockets, Transport};
use flash_indexer_telemetry::supervision::Supervisor;
use flash_indexer_types::networks::EngineNetworks;

use self::pulls::Pulls;

/// The sources of events. The endpoint of a listener selects its source.
pub struct Sources {
    sockets: Sockets,
    pulls: Pulls,
    streams: EngineStreams,
}

impl Sources {
    /// Starts the sources. They connect to addresses in these networks only. ZeroMQ uses the CURVE keys.
    ///
    /// # Errors
    ///
    /// When the system refuses a thread.
    pub fn start(
        decoders: Arc<Decoders>,
        networks: &EngineNetworks,
        curve: Option<Arc<Curve>>,
        supervisor: &Arc<Supervisor>,
    ) -> std::io::Result<Self> {
        let pulls = Pulls::new(Arc::clone(&decoders), networks, supervisor);
        let streams = EngineStreams::new(Arc::clone(&decoders), networks, supervisor);
        Ok(Self { sockets: Sockets::start(decoders, networks, curve, supervisor)?, pulls, streams })
    }

    /// The source of a listener.
    fn source_of(&self, listener: &Listener) -> &dyn EventSource {
        match &listener.options {
            options if options.is_pulled() => &self.pulls,
            options if options.is_streamed() => &self.streams,
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

    fn close(&self, listener: &Arc<Listener>, retired: OnRetired) -> bool {
        self.source_of(listener).close(listener, retired)
    }

    fn stop(&self, deadline: Instant) {
        self.pulls.end();
        self.sockets.stop(deadline);
        self.pulls.stop(deadline);
        self.streams.stop(deadline);
    }
}
