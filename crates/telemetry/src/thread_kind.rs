//! Roles of the service's threads.

flash_indexer_types::named_enum! {
    /// Role of a supervised thread.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ThreadKind {
        /// Applies batches to indexes.
        Writer = "writer",
        /// Decodes messages.
        Decoder = "decoder",
        /// Owns the sockets that connect to engines.
        EngineSockets = "engine_sockets",
        /// Pulls the events of one engine over HTTP.
        EnginePull = "engine_pull",
        /// Receives the events of one rank over gRPC.
        EngineStream = "engine_stream",
        /// Owns the socket that engines connect to.
        BoundSocket = "bound_socket",
        /// Resolves host names.
        Resolver = "resolver",
        /// Registers the engines that connect to the service.
        Pods = "pods",
        /// Compares ranks with the same ranks of peers.
        PeerCheck = "peer_check",
        /// Recovers ranks from a peer or a dump.
        Recovery = "recovery",
        /// Writes snapshots of the index to the state directory.
        Snapshots = "snapshots",
        /// Polls a discovery source, or applies registration changes of all sources.
        Discovery = "discovery",
        /// Removes blocks of unregistered ranks from indexes.
        Cleanup = "cleanup",
        /// Runs requests that block on other threads.
        Request = "request",
        /// Samples the progress of the other threads.
        Supervisor = "supervisor",
    }
}

impl ThreadKind {
    /// Name of the thread in the operating system.
    pub(crate) fn thread_name(self) -> String {
        match self {
            Self::Writer => "index-writer".to_owned(),
            _ => self.as_str().replace('_', "-"),
        }
    }
}
