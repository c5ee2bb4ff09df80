//! Recovery of a starting server from a snapshot, a peer's dump, or a dump file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use flash_indexer_api::Worker;
use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_credentials::ClientCredentials;
use flash_indexer_registry::{Indexer, RegistrationError, Restore, RestoredRank};
use flash_indexer_snapshot::{DumpEntry, DumpError, DumpSink, DumpSummary, RankName, RankRecord, Rejection, read_dump};
use flash_indexer_telemetry::supervision::{ThreadKind, Watch};
use flash_indexer_types::{
    InstanceId, ListenerOptions, ModelKey, Owner, RankId, Registration, RegistrationOutcome, SharedCaches, Trust,
    log_rank,
};
use tracing::{error, info, warn};

use super::client::{PeerClient, PeerDeadlines, PeerError, PeerWorkers};
use super::status::{RecoverySource, RecoveryState, RecoveryStatus, Reporter};
use super::url::PeerUrl;
use super::{Peers, wait_until};
use crate::snapshots::Snapshots;

/// Recovery of a starting server.
#[derive(Debug)]
pub struct Recovery {
    /// Registry that is filled.
    pub indexer: Arc<Indexer>,
    /// Peers to recover from, in this order.
    pub peers: Arc<Peers>,
    /// Deadlines of requests to peers.
    pub deadlines: PeerDeadlines,
    /// Credentials for requests to peers.
    pub credentials: ClientCredentials,
    /// Snapshots of the state directory. The newest undamaged one is loaded.
    pub snapshots: Option<Arc<Snapshots>>,
    /// Dump file to load if no snapshot and no peer can be used.
    pub load: Option<PathBuf>,
    /// Ranks whose streams are held until recovery ends.
    pub held: BTreeSet<RankId>,
}

/// The ranks of a dump, and its size.
type Restored = (BTreeMap<RankId, RestoredRank>, DumpSummary);

/// Source of a recovery, and the restored ranks.
type RecoveredRanks = (RecoverySource, BTreeMap<RankId, RestoredRank>);

/// Failure to recover from one peer or dump file.
#[derive(Debug, thiserror::Error)]
enum SourceError {
    #[error("{0}")]
    Peer(#[from] PeerError),
    #[error("the peer is this replica")]
    Own,
    #[error("failed to open {path}: {source}; check --load or --state-dir")]
    Open { path: String, source: io::Error },
    #[error("failed to restore the dump of {source_name}: {source}")]
    Dump { source_name: String, source: DumpError },
    #[error(
        "failed to restore the dump: the recovery thread panicked; start without this source, and report this bug with the log"
    )]
    Panicked,
}

impl SourceError {
    /// Label in metrics and logs.
    const fn reason(&self) -> &'static str {
        match self {
            Self::Peer(PeerError::Unreachable { .. }) => "unreachable",
            Self::Own | Self::Peer(PeerError::Refused { .. } | PeerError::Redirected { .. }) => "refused",
            Self::Peer(PeerError::Protocol { .. }) => "protocol_error",
            Self::Open { .. } | Self::Dump { .. } => "broken_dump",
            Self::Panicked => "panicked",
        }
    }
}

impl Recovery {
    /// Starts recovery on a separate thread: restores the first usable peer's dump, and releases the streams from its
    /// positions. The thread ends at a deadline after the indexer stops.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system if the thread cannot be started.
    pub fn start(self) -> io::Result<Arc<RecoveryStatus>> {
        let (status, reporter) = RecoveryStatus::running();
        let supervisor = Arc::clone(self.indexer.supervisor());
        self.indexer.set_recovering(true);
        supervisor.spawn(ThreadKind::Recovery, None, move |watch| self.run(watch, &reporter))?;
        Ok(status)
    }

    fn run(mut self, watch: &Watch, reporter: &Reporter) {
        let client = PeerClient::new(&self.deadlines, &self.credentials, self.peers.networks());
        let recovered = self.recover(watch, &client, reporter);
        self.indexer.set_recovering(false);
        let (recovered, restored) = match recovered {
            Ok((source, restored)) => (Ok(source), restored),
            Err(error) => (Err(error), BTreeMap::new()),
        };
        self.release(watch, restored);
        reporter.released(self.held);
        match recovered {
            Ok(source) => {
                self.indexer.metrics().recovered_from(source.label());
                reporter.set(RecoveryState::Finished(source));
            }
            Err(error) => {
                let error = error.to_string();
                error!(error = error.as_str(), "failed to load the dump");
                reporter.set(RecoveryState::Failed(error));
            }
        }
    }

    /// Restores the newest snapshot that is undamaged and fits the configuration, all of it or nothing.
    fn recover_from_snapshot(&mut self, watch: &Watch, reporter: &Reporter) -> Option<RecoveredRanks> {
        let snapshots = self.snapshots.clone()?;
        for snapshot in snapshots.newest_first() {
            let path = snapshot.path.display().to_string();
            reporter.set(RecoveryState::Running(format!("reading the snapshot {path}")));
            let started = Instant::now();
            // A damaged snapshot must not register a rank, so it is read completely before any part is applied.
            let checked = watch.guarded(|| snapshot.check()).unwrap_or(Err(DumpError::CutOff));
            let restored = checked.map_err(|source| {
                let outcome = if source.is_damage() { "damaged" } else { "unreadable" };
                (outcome, dump_error(&path, source))
            });
            let restored = restored.and_then(|_| {
                let restored = watch.guarded(|| self.restore_file(&path, &snapshot.path));
                restored.unwrap_or(Err(SourceError::Panicked)).map_err(|error| ("refused", error))
            });
            match restored {
                Ok((restored, summary)) => {
                    let elapsed_ms = started.elapsed().as_millis() as u64;
                    let (ranks, blocks) = (summary.ranks, summary.holds.blocks);
                    info!(path = path.as_str(), ranks, blocks, elapsed_ms, "loaded a snapshot");
                    return Some((RecoverySource::Snapshot(path), restored));
                }
                Err((outcome, error)) => {
                    self.indexer.metrics().snapshot_ended(outcome);
                    warn!(path = path.as_str(), outcome, %error, "skipped a snapshot; trying the one before it");
                }
            }
        }
        None
    }

    /// Restores the first usable source: a snapshot, a peer's dump, a dump file. Without one, the ranks start from their
    /// engines' streams.
    fn recover(
        &mut self,
        watch: &Watch,
        client: &PeerClient,
        reporter: &Reporter,
    ) -> Result<RecoveredRanks, SourceError> {
        if let Some(recovered) = self.recover_from_snapshot(watch, reporter) {
            return Ok(recovered);
        }
        for url in self.peers.urls() {
            reporter.set(RecoveryState::Running(format!("reading the dump of peer {url}")));
            info!(peer = url.as_str(), "recovery from a peer started");
            let started = Instant::now();
            // A panic rolls back the ranks restored before it.
            match watch.guarded(|| self.recover_from(client, &url)).unwrap_or(Err(SourceError::Panicked)) {
                Ok((restored, summary)) => {
                    self.indexer.metrics().recovery_ended("complete");
                    let (ranks, blocks) = (summary.ranks, summary.holds.blocks);
                    let elapsed_ms = started.elapsed().as_millis() as u64;
                    info!(peer = url.as_str(), ranks, blocks, elapsed_ms, "recovery from a peer finished");
                    return Ok((RecoverySource::Peer(url.as_str().to_owned()), restored));
                }
                // It was already logged.
                Err(SourceError::Own) => {}
                Err(error) => {
                    self.indexer.metrics().recovery_ended(error.reason());
                    warn!(peer = url.as_str(), reason = error.reason(), %error, "failed to recover from a peer; trying the next one");
                }
            }
        }
        let Some(path) = self.load.clone() else {
            if !self.peers.urls().is_empty() {
                warn!(
                    peers = self.peers.urls().len(),
                    "failed to recover from every peer; starting from the engines' streams"
                );
            }
            return Ok((RecoverySource::Engines, BTreeMap::new()));
        };
        let source_name = path.display().to_string();
        reporter.set(RecoveryState::Running(format!("reading {source_name}")));
        info!(path = source_name.as_str(), "load of a dump started");
        let started = Instant::now();
        let restored = watch.guarded(|| self.restore_file(&source_name, &path)).unwrap_or(Err(SourceError::Panicked));
        let (restored, summary) = restored?;
        let (ranks, blocks, elapsed_ms) = (summary.ranks, summary.holds.blocks, started.elapsed().as_millis() as u64);
        info!(path = source_name.as_str(), ranks, blocks, elapsed_ms, "load of a dump finished");
        Ok((RecoverySource::Dump(source_name), restored))
    }

    fn recover_from(&mut self, client: &PeerClient, url: &PeerUrl) -> Result<Restored, SourceError> {
        // Listeners connect before the dump is read: every later change then arrives in a stream.
        let PeerWorkers { process, workers } = client.workers(url)?;
        if self.peers.check_own(url, process.as_deref()) {
            return Err(SourceError::Own);
        }
        let mut pulled = BTreeSet::new();
        for worker in workers {
            for (registration, owner) in registrations(&worker) {
                if registration.options.is_pulled() {
                    // A second reader would consume events of the peer.
                    pulled.insert((registration.model, registration.instance));
                } else {
                    // If there is still no room, the record in the dump is also refused.
                    let _ = self.hold(registration, owner);
                }
            }
        }
        // Waits for the listeners of paused streams to connect.
        wait_until(self.deadlines.connect, || self.indexer.unconnected(&self.held).is_empty());
        let dump = client.dump(url, None)?;
        self.restore(url.as_str(), dump, DumpTime::Now, pulled)
    }

    fn restore_file(&mut self, source_name: &str, path: &Path) -> Result<Restored, SourceError> {
        let file = File::open(path).map_err(|source| SourceError::Open { path: source_name.to_owned(), source })?;
        self.restore(source_name, file, DumpTime::Earlier, PulledInstances::new())
    }

    /// Restores a dump, all of it or nothing.
    fn restore(
        &mut self,
        source_name: &str,
        dump: impl Read,
        time: DumpTime,
        pulled: PulledInstances,
    ) -> Result<Restored, SourceError> {
        let restore = Restore::new(Arc::clone(&self.indexer), self.held.clone());
        let mut loader = DumpLoader { recovery: self, restore, time, pulled };
        let summary = read_dump(dump, &mut loader).map_err(|source| dump_error(source_name, source))?;
        Ok((loader.restore.commit(), summary))
    }

    /// Registers a rank and holds its stream. Returns none if the rank is registered already.
    fn hold(&mut self, registration: Registration, owner: Owner) -> Result<Option<RankId>, RegistrationError> {
        let rank = registration.rank_id();
        if self.held.contains(&rank) && !self.indexer.is_held(&rank) {
            // It was unregistered since recovery began.
            return Ok(None);
        }
        match self.indexer.register_from_peer(registration, owner) {
            Ok(RegistrationOutcome::New) if self.indexer.is_held(&rank) => {
                self.held.insert(rank.clone());
                Ok(Some(rank))
            }
            Ok(RegistrationOutcome::New | RegistrationOutcome::Already) => Ok(None),
            Err(error) => {
                log_rank!(warn, rank, %error, "failed to register a rank of the recovery source; its blocks are not restored");
                Err(error)
            }
        }
    }

    fn release(&self, watch: &Watch, mut restored: BTreeMap<RankId, RestoredRank>) {
        for rank in &self.held {
            log_rank!(
                debug,
                rank,
                is_restored = restored.contains_key(rank),
                "releasing the rank's stream after recovery"
            );
            let position = restored.remove(rank);
            // A panic at one rank does not affect the others, and its stream does not stay held.
            let released = watch.guarded(|| {
                #[cfg(any(test, feature = "fault-injection"))]
                assert!(rank.model.model_name != "release-fault", "fault injected by a test");
                self.indexer.release_restored(rank, position);
            });
            if released.is_none() {
                watch.guarded(|| self.indexer.release_cleared(rank));
            }
        }
    }
}

fn dump_error(source_name: &str, source: DumpError) -> SourceError {
    SourceError::Dump { source_name: source_name.to_owned(), source }
}

/// Sink of a dump that also registers the ranks in it.
struct DumpLoader<'r> {
    recovery: &'r mut Recovery,
    restore: Restore,
    time: DumpTime,
    /// Instances of a peer that are left out, because only one replica may pull their events.
    pulled: PulledInstances,
}

type PulledInstances = BTreeSet<(ModelKey, InstanceId)>;

/// Time at which a dump was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DumpTime {
    /// After the ranks were connected: every later change arrives in a stream.
    Now,
    /// Earlier. Only a replay returns what an engine has published since.
    Earlier,
}

impl DumpLoader<'_> {
    /// Whether changes of a rank may be missing after its position, and no replay can return them.
    fn is_unverifiable(&self, record: &RankRecord) -> bool {
        let is_replayed = match &record.engine {
            Some(engine) => engine.replay_endpoint.is_some(),
            // A rank that was named only by batches belongs to a stream of its instance.
            None => self.recovery.indexer.instances(Some(&record.model_name), Some(&record.tenant_id)).iter().any(
                |report| {
                    report.instance == record.instance_id
                        && report.listeners.values().any(|listener| listener.options.replay_endpoint.is_some())
                },
            ),
        };
        self.time == DumpTime::Earlier && !is_replayed
    }
}

impl DumpSink for DumpLoader<'_> {
    fn rank(&mut self, mut record: RankRecord) -> Result<(), Rejection> {
        if self.recovery.indexer.is_stopping() {
            return Err(Rejection("the service is stopping".to_owned()));
        }
        // Fault injection by model name.
        #[cfg(any(test, feature = "fault-injection"))]
        assert!(record.model_name != "recovery-fault", "a test asked for a failure");
        if self.pulled.contains(&(record.key(), record.instance_id.clone())) {
            return Ok(());
        }
        if let Some((registration, owner)) = registration(&record) {
            let rank = registration.rank_id();
            match self.recovery.hold(registration, owner) {
                Ok(held) => held.into_iter().for_each(|rank| self.restore.hold(rank)),
                Err(error) => self.restore.skip_refused(&rank, &error)?,
            }
        }
        if self.is_unverifiable(&record)
            && let Some(stream) = &mut record.stream
        {
            stream.trust = Trust::Degraded;
            stream.unlisted_degraded = true;
        }
        self.restore.rank(record)
    }

    fn entry(&mut self, rank: RankName<'_>, entry: DumpEntry) -> Result<(), Rejection> {
        if !self.pulled.is_empty() && self.pulled.contains(&(rank.key.clone(), rank.instance.clone())) {
            return Ok(());
        }
        self.restore.entry(rank, entry)
    }
}

/// Registration of a dump's rank, if it has one.
fn registration(record: &RankRecord) -> Option<(Registration, Owner)> {
    let engine = record.engine.as_ref()?;
    let registration = Registration {
        instance: record.instance_id.clone(),
        dp_rank: DpRank(record.dp_rank),
        model: record.key(),
        block_size: BlockSize::new(record.block_size)?,
        options: ListenerOptions {
            endpoint: engine.endpoint.clone(),
            replay_endpoint: engine.replay_endpoint.clone(),
            lora_name: engine.lora_name.clone(),
            engine: engine.engine,
            removed_copies: engine.removal.into(),
            extra_keys: engine.extra_keys,
            cache_blocks: engine.cache_blocks,
            shared_caches: shared_caches(&engine.shared_caches),
        },
    };
    Some((registration, Owner::recovered(engine.source.as_deref())))
}

/// Shared caches of a rank of a dump or a peer. A list that only a later version accepts is left out.
fn shared_caches(ids: &[InstanceId]) -> SharedCaches {
    SharedCaches::new(ids.iter().cloned().map(Into::into)).unwrap_or_default()
}

/// Registrations of a peer's instance.
fn registrations(worker: &Worker) -> Vec<(Registration, Owner)> {
    let Some(block_size) = BlockSize::new(worker.block_size) else { return Vec::new() };
    let listeners = worker.listeners.iter().filter_map(|(&dp_rank, listener)| {
        let endpoint = worker.endpoints.get(&dp_rank)?.clone();
        let registration = Registration {
            instance: worker.instance_id.clone(),
            dp_rank: DpRank(dp_rank),
            model: ModelKey::new(worker.model_name.clone(), Some(worker.tenant_id.clone())),
            block_size,
            options: ListenerOptions {
                endpoint,
                replay_endpoint: listener.replay_endpoint.clone(),
                lora_name: listener.lora_name.clone(),
                engine: listener.engine,
                removed_copies: listener.removal.into(),
                extra_keys: listener.extra_keys,
                cache_blocks: listener.cache_blocks,
                shared_caches: shared_caches(&listener.shared_caches),
            },
        };
        Some((registration, Owner::recovered(listener.source.as_deref())))
    });
    listeners.collect()
}
