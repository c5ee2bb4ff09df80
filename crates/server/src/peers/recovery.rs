//! Starting from what somebody else knows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use tracing::{error, info, warn};

use super::Peers;
use super::client::{PeerClient, PeerDeadlines, PeerError, PeerWorker};
use super::status::{RecoveryState, RecoveryStatus, Reporter};
use super::url::PeerUrl;
use flash_indexer_registry::{Indexer, Restore, RestoredRank};
use flash_indexer_snapshot::{
    DumpEntry, DumpError, DumpSink, DumpSummary, EngineKind, RankName, RankRecord, Refused, read_dump,
};
use flash_indexer_telemetry::supervision::{ThreadKind, Watch};
use flash_indexer_types::ModelKey;
use flash_indexer_types::RankId;
use flash_indexer_types::log_rank;
use flash_indexer_types::{Owner, Registered, Registration};

const CONNECTION_CHECK: Duration = Duration::from_millis(5);

/// What a server starts from, when it is not from nothing.
pub(crate) struct Recovery {
    pub(crate) indexer: Arc<Indexer>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) deadlines: PeerDeadlines,
    /// A dump, for when no peer can help.
    pub(crate) load: Option<PathBuf>,
    /// Ranks whose streams are held until this is over.
    pub(crate) held: BTreeSet<RankId>,
}

/// One source cannot help.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    #[error("{0}")]
    Peer(#[from] PeerError),
    #[error("failed to open {path}: {source}")]
    Open { path: String, source: io::Error },
    #[error("{source_name}: {source}")]
    Dump { source_name: String, source: DumpError },
    #[error("failed to take over what it holds: a panic, which is a fault of this program; start without this source")]
    Panicked,
}

impl SourceError {
    /// A short name for counting.
    const fn reason(&self) -> &'static str {
        match self {
            Self::Peer(PeerError::Unreachable { .. }) => "unreachable",
            Self::Peer(PeerError::Refused { .. } | PeerError::Redirected { .. }) => "refused",
            Self::Peer(PeerError::Strange { .. }) => "strange",
            Self::Open { .. } | Self::Dump { .. } => "broken_dump",
            Self::Panicked => "panicked",
        }
    }
}

impl Recovery {
    /// Asks the peers in turn, takes over what the first one knows, and lets the streams go on from there; in a
    /// thread of its own, which ends when the indexer stops and a deadline has passed.
    ///
    /// # Errors
    ///
    /// When there is no thread.
    pub(crate) fn start(self) -> io::Result<Arc<RecoveryStatus>> {
        let (status, reporter) = RecoveryStatus::running();
        let supervisor = Arc::clone(self.indexer.supervisor());
        supervisor.spawn(ThreadKind::Recovery, None, move |watch| self.run(watch, &reporter))?;
        Ok(status)
    }

    fn run(mut self, watch: &Watch, reporter: &Reporter) {
        let client = PeerClient::new(&self.deadlines);
        let restored = self.ask_all(watch, &client, reporter);
        let failed = restored.as_ref().err().map(ToString::to_string);
        let restored = restored.unwrap_or_default();
        self.release(watch, restored);
        match failed {
            None => reporter.say(RecoveryState::Finished),
            Some(error) => {
                error!(error = error.as_str(), "failed to load a dump");
                reporter.say(RecoveryState::Failed(error));
            }
        }
    }

    /// What the first source that can help says of streams; of nothing if none can.
    fn ask_all(
        &mut self,
        watch: &Watch,
        client: &PeerClient,
        reporter: &Reporter,
    ) -> Result<BTreeMap<RankId, RestoredRank>, SourceError> {
        for url in self.peers.urls() {
            reporter.say(RecoveryState::Running(format!("asking {url} what it knows")));
            info!(peer = url.as_str(), "recovering from a peer");
            let started = Instant::now();
            // What was restored before a panic is taken out again on the way.
            match watch.guarded(|| self.ask_peer(client, &url)).unwrap_or(Err(SourceError::Panicked)) {
                Ok((restored, summary)) => {
                    self.indexer.metrics().recovery("complete");
                    let (ranks, blocks) = (summary.ranks, summary.holds.blocks);
                    let elapsed_ms = started.elapsed().as_millis() as u64;
                    info!(peer = url.as_str(), ranks, blocks, elapsed_ms, "recovered from a peer");
                    return Ok(restored);
                }
                Err(error) => {
                    self.indexer.metrics().recovery(error.reason());
                    warn!(peer = url.as_str(), reason = error.reason(), %error, "failed to recover from a peer; asking the next one");
                }
            }
        }
        let Some(path) = self.load.clone() else {
            if !self.peers.urls().is_empty() {
                warn!(peers = self.peers.urls().len(), "no peer could help; starting from the streams of the engines");
            }
            return Ok(BTreeMap::new());
        };
        let source_name = path.display().to_string();
        reporter.say(RecoveryState::Running(format!("reading {source_name}")));
        info!(path = source_name.as_str(), "loading a dump");
        let started = Instant::now();
        let file = File::open(&path).map_err(|source| SourceError::Open { path: source_name.clone(), source })?;
        let restored = watch.guarded(|| self.restore(&source_name, file)).unwrap_or(Err(SourceError::Panicked));
        let (restored, summary) = restored?;
        let (ranks, blocks, elapsed_ms) = (summary.ranks, summary.holds.blocks, started.elapsed().as_millis() as u64);
        info!(path = source_name.as_str(), ranks, blocks, elapsed_ms, "loaded a dump");
        Ok(restored)
    }

    fn ask_peer(
        &mut self,
        client: &PeerClient,
        url: &PeerUrl,
    ) -> Result<(BTreeMap<RankId, RestoredRank>, DumpSummary), SourceError> {
        // Whatever the dump does not have, its streams must: so they are listened to first.
        for worker in client.workers(url)? {
            for (registration, owner) in registrations(&worker) {
                self.hold(registration, owner);
            }
        }
        self.wait_for_connections();
        let dump = client.dump(url, None)?;
        self.restore(url.as_str(), dump)
    }

    /// Takes a dump over: all of it or nothing.
    fn restore(
        &mut self,
        source_name: &str,
        dump: impl Read,
    ) -> Result<(BTreeMap<RankId, RestoredRank>, DumpSummary), SourceError> {
        let restore = Restore::new(Arc::clone(&self.indexer), self.held.clone());
        let mut taking = DumpLoader { recovery: self, restore };
        let read = read_dump(dump, &mut taking);
        let summary = read.map_err(|source| SourceError::Dump { source_name: source_name.to_owned(), source })?;
        Ok((taking.restore.commit(), summary))
    }

    /// Listens to a rank without applying anything yet; none if it is listened to already, or cannot be.
    fn hold(&mut self, registration: Registration, owner: Owner) -> Option<RankId> {
        let rank = registration.rank_id();
        match self.indexer.register_from_peer(registration, owner) {
            Ok(Registered::New) if self.indexer.is_held(&rank) => {
                self.held.insert(rank.clone());
                Some(rank)
            }
            Ok(Registered::New | Registered::Already) => None,
            Err(error) => {
                log_rank!(warn, rank, %error, "failed to listen to a rank of the recovery's source");
                None
            }
        }
    }

    fn release(&self, watch: &Watch, mut restored: BTreeMap<RankId, RestoredRank>) {
        for rank in &self.held {
            log_rank!(
                debug,
                rank,
                is_restored = restored.contains_key(rank),
                "following the rank's stream after recovery"
            );
            let taken = restored.remove(rank);
            // One that panics leaves the others theirs.
            watch.guarded(|| self.indexer.release_restored(rank, taken));
        }
    }

    /// Waits, as long as a connection may take, for the streams that wait.
    fn wait_for_connections(&self) {
        let deadline = Instant::now() + self.deadlines.connect;
        while !self.indexer.unconnected(&self.held).is_empty() && Instant::now() < deadline {
            std::thread::sleep(CONNECTION_CHECK);
        }
    }
}

/// Takes a dump, and listens to the engines that it names.
struct DumpLoader<'r> {
    recovery: &'r mut Recovery,
    restore: Restore,
}

impl DumpSink for DumpLoader<'_> {
    fn rank(&mut self, record: RankRecord) -> Result<(), Refused> {
        if self.recovery.indexer.is_stopping() {
            return Err(Refused("the service is stopping".to_owned()));
        }
        // No dump is known to make the thread fail, so a name does.
        #[cfg(test)]
        assert!(record.model_name != "recovery-fault", "a test asked for a failure");
        if let Some((registration, owner)) = registration(&record)
            && let Some(rank) = self.recovery.hold(registration, owner)
        {
            self.restore.hold(rank);
        }
        self.restore.rank(record)
    }

    fn entry(&mut self, rank: RankName<'_>, told: DumpEntry) -> Result<(), Refused> {
        self.restore.entry(rank, told)
    }
}

/// What a dump's rank is registered with, if it is.
fn registration(record: &RankRecord) -> Option<(Registration, Owner)> {
    let engine = record.engine.as_ref()?;
    let registration = Registration {
        instance: record.instance_id.clone(),
        dp_rank: DpRank(record.dp_rank),
        endpoint: engine.endpoint.clone(),
        replay_endpoint: engine.replay_endpoint.clone(),
        model: record.key(),
        block_size: BlockSize::new(record.block_size)?,
        lora_name: engine.lora_name.clone(),
        engine: engine.engine.map(EngineKind::name),
        removed_copies: engine.removal.into(),
        extra_keys: engine.extra_keys,
    };
    Some((registration, Owner::recovered(engine.source.as_deref())))
}

/// What a peer's instance is registered with. Other indexers do not say enough of theirs: those are known from the
/// command line, or are known by their blocks alone.
fn registrations(worker: &PeerWorker) -> Vec<(Registration, Owner)> {
    let (Some(model), Some(block_size)) = (&worker.model_name, worker.block_size.and_then(BlockSize::new)) else {
        return Vec::new();
    };
    let listeners = worker.listeners.iter().filter_map(|(&dp_rank, listener)| {
        let endpoint = worker.endpoints.get(&dp_rank)?.clone();
        let registration = Registration {
            instance: worker.instance_id.clone(),
            dp_rank: DpRank(dp_rank),
            endpoint,
            replay_endpoint: listener.replay_endpoint.clone(),
            model: ModelKey::new(model.clone(), worker.tenant_id.clone()),
            block_size,
            lora_name: listener.lora_name.clone(),
            engine: listener.engine.map(EngineKind::name),
            removed_copies: listener.removal.into(),
            extra_keys: listener.extra_keys,
        };
        Some((registration, Owner::recovered(listener.source.as_deref())))
    });
    listeners.collect()
}
