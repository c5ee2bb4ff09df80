//! Roles of the service's threads.

/// Role of a supervised thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadKind {
    /// Applies batches to indexes.
    Writer,
    /// Decodes messages.
    Decoder,
    /// Owns the sockets that connect to engines.
    EngineSockets,
    /// Pulls the events of one engine over HTTP.
    EnginePull,
    /// Receives the events of one rank over gRPC.
    EngineStream,
    /// Owns the socket that engines connect to.
    BoundSocket,
    /// Resolves host names.
    Resolver,
    /// Registers the engines that connect to the service.
    Pods,
    /// Compares ranks with the same ranks of peers.
    PeerCheck,
    /// Recovers ranks from a peer or a dump.
    Recovery,
    /// Writes snapshots of the index to the state directory.
    Snapshots,
    /// Polls a discovery source, or applies registration changes of all sources.
    Discovery,
    /// Removes blocks of unregistered ranks from indexes.
    Cleanup,
    /// Runs requests that block on other threads.
    Request,
    /// Samples the progress of the other threads.
    Supervisor,
}

impl ThreadKind {
    /// Every kind, in the order of the discriminants.
    pub const ALL: [Self; 15] = [
        Self::Writer,
        Self::Decoder,
        Self::EngineSockets,
        Self::EnginePull,
        Self::EngineStream,
        Self::BoundSocket,
        Self::Resolver,
        Self::Pods,
        Self::PeerCheck,
        Self::Recovery,
        Self::Snapshots,
        Self::Discovery,
        Self::Cleanup,
        Self::Request,
        Self::Supervisor,
    ];

    /// Label in metrics and readiness.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Writer => "writer",
            Self::Decoder => "decoder",
            Self::EngineSockets => "engine_sockets",
            Self::EnginePull => "engine_pull",
            Self::EngineStream => "engine_stream",
            Self::BoundSocket => "bound_socket",
            Self::Resolver => "resolver",
            Self::Pods => "pods",
            Self::PeerCheck => "peer_check",
            Self::Recovery => "recovery",
            Self::Snapshots => "snapshots",
            Self::Discovery => "discovery",
            Self::Cleanup => "cleanup",
            Self::Request => "request",
            Self::Supervisor => "supervisor",
        }
    }

    /// Name of the thread in the operating system.
    pub(crate) const fn thread_name(self) -> &'static str {
        match self {
            Self::Writer => "index-writer",
            Self::EngineSockets => "engine-sockets",
            Self::EnginePull => "engine-pull",
            Self::EngineStream => "engine-stream",
            Self::BoundSocket => "bound-socket",
            Self::PeerCheck => "peer-check",
            _ => self.as_str(),
        }
    }
}
