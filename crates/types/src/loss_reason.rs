//! Reasons for which a rank is not exact, in addition to those that its stream shows.

use std::fmt;

flash_indexer_core::named_enum! {
    /// Reason for which a rank is degraded. Its name is the text in `last_error` and in explanations.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum LossReason {
        /// Messages of the engine were dropped before they were decoded. Ends when a replay returns them.
        Dropped = "messages of the engine were dropped because its decoder did not keep up",
        /// The rank was registered again a moment ago. Ends when its decoder has noticed it.
        Resuming = "the rank was registered again, and its decoder has not resumed it yet",
        /// Events that were published while the rank was not registered are missing.
        Skipped = "the rank was unregistered for a while, and events published meanwhile were skipped",
        /// Two endpoints of an instance publish under one rank, and the events of one are applied. Ends when one of them is unregistered.
        RankConflict = "batches of another endpoint of the instance name this rank as well; give each endpoint ranks of its own",
        /// The rank moved to another endpoint a moment ago. Ends with the removal of its former blocks.
        RankMoved = "the blocks of the rank's former endpoint are not removed yet",
        /// The removal of the former endpoint's blocks followed the first blocks of the new one.
        RemovedAfterMove = "blocks of the rank may have been removed with those of its former endpoint; clear the engine's prefix cache",
        /// The text begins with the number of blocks.
        Parents = "blocks follow a parent that the engine never published; the rank is exact again when the parent is stored or the cache is cleared",
        /// The engine may hold a parent that it never published, and with it longer prefixes than the index has.
        ParentRemoved = "a block was removed whose parent was never stored: the engine may hold the parent",
        /// The limit `waiting_blocks` was reached.
        WaitingBlocks = "too many blocks wait for a parent that was never stored",
        /// The limit `moved_blocks` was reached: the index dropped what the rank held.
        MovedBlocks = "the engine gave a sequence hash with many descendants other content",
        /// The limit `twins` was reached.
        Twins = "the engine has too many sequence hashes for one prefix",
        /// The limit `cache_groups` was reached.
        CacheGroups = "a hybrid model has more cache groups, or blocks in one, than are kept",
        /// The limit `tenant_held_blocks` was reached: stored blocks were refused.
        TenantHeldBlocks = "the tenant holds as many blocks or bytes as its limit; raise held_blocks or index_bytes in the limits file",
        /// The rank is never exact: requests that differ in `extra_key` share blocks in the engine's events.
        ExtraKeys = "the engine was registered with extra_keys, which its events do not carry: matches may be too long",
        /// The rank is never exact, unless the engine is registered again with a release that numbers its messages.
        Unnumbered = "the engine's messages have no sequence numbers: lost messages and restarts between them are not noticed",
        /// A dump, a snapshot or a peer had the rank degraded, or the engine no longer has the messages that follow.
        ImportedDegraded = "the rank was imported degraded: it was degraded at its source, or the engine cannot replay what followed",
        /// The dump is of a program that writes no stream positions.
        ImportedWithoutPosition = "the rank's state was imported from a dump without a stream position",
        /// The dump has no secondary cache groups, so the matches of the hybrid model are not shortened by them.
        ImportedWithoutGroups = "the rank's state was imported without the secondary cache groups of the hybrid model",
        /// The dump has other ranks of the stream, and not this one.
        NotImported = "no state of the rank was imported",
        /// The stream continues at the position of the imported rank, after messages of this one.
        RegisteredDuringImport = "the rank was registered while another rank's state was imported, and its own was not",
        /// The peer, or the writer of the snapshot, lost messages before the dump, which may have been of this rank.
        NotListed = "changes of the rank may be lost: the imported dump does not list it",
        /// A replica differs at the same message of the stream. Ends with the replay that follows, if the engine can replay.
        PeerMismatch = "the rank differs from the same rank of a peer, and both were exact",
        /// A bug in Flash Indexer. The engine's history is not replayed, because it has the message that caused the panic.
        DecoderPanicked = "failed to decode a message: panic in the decoder, a bug in Flash Indexer; the blocks of the stream are removed; report it with the log",
        /// A bug in Flash Indexer, met while the rank was being restored.
        DecoderPanickedInRestore = "the decoder panicked while the rank was being restored, a bug in Flash Indexer; clear the engine's prefix cache, and report it with the log",
        /// A bug in Flash Indexer. Ends when the engine's history is replayed.
        ThreadPanicked = "a thread of the service panicked, a bug in Flash Indexer; the blocks of the stream are removed; report it with the log",
        /// A bug in Flash Indexer. An empty index replaces that of the model. Ends when the engine's history is replayed.
        IndexPanicked = "a change of the index panicked, a bug in Flash Indexer: an empty index replaces it; report it with the log",
        /// The same, where an event of another stream caused it.
        IndexStartedOver = "an empty index replaced that of the model, because a change of another stream panicked",
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
