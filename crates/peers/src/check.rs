//! Periodic comparison of ranks with the same ranks of peers, and repair of differences.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use flash_indexer_api::Worker;
use flash_indexer_core::DpRank;
use flash_indexer_credentials::{ClientCredentials, ClientFiles};
use flash_indexer_ingest::ReadAt;
use flash_indexer_registry::{Indexer, Shadow, ShadowError};
use flash_indexer_snapshot::{DumpError, read_dump};
use flash_indexer_telemetry::metrics::ReloadedFile;
use flash_indexer_telemetry::supervision::{ThreadKind, Watch};
use flash_indexer_types::{ConnectionStatus, InstanceId, LossReason, ModelKey, RankId, Trust, log_rank};
use parking_lot::Mutex;
use tracing::{info, warn};

use super::client::{PeerClient, PeerDeadlines, PeerError, PeerWorkers};
use super::comparison::{
    COMPARED_AT_ONCE_MAX, Candidate, Outcome, ReportedPosition, SAMPLE_INTERVAL, compare_digests, pause_after,
};
use super::status::RecoveryStatus;
use super::url::PeerUrl;
use super::{Peers, wait_until};

/// Longest wait for both sides to reach the message at which they digest, and for a rebuilt instance to reach the registered one.
const DIGEST_DEADLINE: Duration = Duration::from_secs(5);
/// Longest wait for an engine to replay its whole stream.
const REBUILD_DEADLINE: Duration = Duration::from_secs(30);
/// Attempts to get a digest from a peer that is at its limit of concurrent digests.
const BUSY_ATTEMPTS_MAX: usize = 8;
/// Status of a peer at its limit.
const BUSY: u16 = 503;

/// Periodic comparison with every peer in turn.
#[derive(Debug)]
pub struct Check {
    /// Registry whose ranks are compared.
    pub indexer: Arc<Indexer>,
    /// Peers, each compared in turn.
    pub peers: Arc<Peers>,
    /// Deadlines of requests to peers.
    pub deadlines: PeerDeadlines,
    /// Files of the credentials for peers, read again before each round.
    pub credentials: ClientFiles,
    /// Interval between two rounds.
    pub interval: Duration,
    /// Recovery; comparisons begin after its end.
    pub recovery: Arc<RecoveryStatus>,
}

/// Guard that ends the comparisons when it is dropped.
#[derive(Debug)]
pub struct CheckGuard(#[expect(dead_code, reason = "it is dropped to disconnect the channel")] Sender<()>);

/// Failure to rebuild an instance, which stays unchanged.
#[derive(Debug, thiserror::Error)]
enum RepairError {
    #[error("{0}")]
    Peer(#[from] PeerError),
    #[error("{0}")]
    Dump(#[from] DumpError),
    #[error("{0}")]
    Shadow(#[from] ShadowError),
    #[error(
        "failed to rebuild from the engine: its replay is incomplete; clear the engine's prefix cache or enlarge its replay buffer"
    )]
    NotExact,
}

impl Check {
    /// Starts the comparisons on a separate thread.
    ///
    /// # Errors
    ///
    /// Returns the error of the operating system if the thread cannot be started.
    pub fn start(self) -> io::Result<CheckGuard> {
        let (guard, dropped) = bounded(0);
        let supervisor = Arc::clone(self.indexer.supervisor());
        supervisor.spawn(ThreadKind::PeerCheck, None, move |watch| self.run(watch, &dropped))?;
        Ok(CheckGuard(guard))
    }

    fn run(self, watch: &Watch, dropped: &Receiver<()>) {
        let mut latest = None;
        let mut disputed = BTreeSet::new();
        while dropped.recv_timeout(self.interval) == Err(RecvTimeoutError::Timeout) {
            if self.recovery.is_running() {
                continue;
            }
            let Some(client) = self.client(&mut latest) else { continue };
            for url in self.peers.urls() {
                // After a panic, the peer is compared again in the next round.
                if let Some(Err(error)) = watch.guarded(|| self.compare(watch, client, &url, &mut disputed)) {
                    self.indexer.metrics().peer_check("unreachable");
                    info!(peer = url.as_str(), %error, "failed to compare with a peer; retrying after the check interval");
                }
            }
        }
    }

    /// The client of a round. Certificates expire and tokens are replaced, so their files are read again. Files that cannot
    /// be read leave the previous client in place, if there is one.
    fn client<'c>(&self, previous: &'c mut Option<PeerClient>) -> Option<&'c PeerClient> {
        if previous.is_none() || self.credentials != ClientFiles::default() {
            match ClientCredentials::load(&self.credentials) {
                Ok(credentials) => {
                    *previous = Some(PeerClient::new(&self.deadlines, &credentials, self.peers.networks()))
                }
                Err(error) => {
                    self.indexer.metrics().reload_failed(ReloadedFile::PeerCredentials);
                    warn!(%error, "failed to reload the credentials for peers; the previous ones stay in force; correct the file");
                }
            }
        }
        previous.as_ref()
    }

    /// Compares every rank that both sides listen to, several at a time.
    fn compare(
        &self,
        watch: &Watch,
        client: &PeerClient,
        url: &PeerUrl,
        disputed: &mut BTreeSet<RankId>,
    ) -> Result<(), PeerError> {
        let (earlier, sampled_at) = (self.local_positions(), Instant::now());
        std::thread::sleep(SAMPLE_INTERVAL);
        let PeerWorkers { process, workers } = client.workers(url)?;
        if self.peers.check_own(url, process.as_deref()) {
            return Ok(());
        }
        let theirs = peer_positions(workers);
        let ours = self.local_positions();
        disputed.retain(|rank| ours.get(rank).is_some_and(|position| position.trust == Trust::Degraded));
        // Grouped by instance, because a stream can be digested at only one message at a time.
        let mut instances: BTreeMap<(&ModelKey, &InstanceId), Vec<Candidate<'_>>> = BTreeMap::new();
        for (rank, &our) in &ours {
            let Some(&their) = theirs.get(rank).filter(|_| !disputed.contains(rank)) else { continue };
            let earlier = earlier.get(rank).and_then(|position| position.last);
            let candidate = Candidate { rank, our, their, earlier, sampled_at };
            instances.entry((&rank.model, &rank.instance)).or_default().push(candidate);
        }
        // An entire instance is rebuilt, or replaced.
        let (mut rebuilt, mut worse) = (BTreeSet::new(), BTreeSet::new());
        let instance_of = |rank: &RankId| (rank.model.clone(), rank.instance.clone());
        self.compare_all(watch, client, url, instances.into_values().collect(), |rank, outcome| {
            self.indexer.metrics().peer_check(outcome.as_str());
            match outcome {
                Outcome::Equal | Outcome::NotCompared | Outcome::OtherEpoch => {}
                Outcome::Worse => drop(worse.insert(instance_of(rank))),
                Outcome::Drift => {
                    log_rank!(warn, rank, peer = url.as_str(), "rank differs from a peer's, and neither is exact")
                }
                Outcome::Dispute => {
                    log_rank!(
                        error,
                        rank,
                        peer = url.as_str(),
                        "rank differs from a peer's, and both are exact; rebuilding"
                    );
                    self.indexer.mark_degraded(rank, LossReason::PeerMismatch.to_string());
                    rebuilt.insert(instance_of(rank));
                    disputed.insert(rank.clone());
                }
            }
        });
        for (model, instance) in rebuilt {
            self.repair(&model, &instance, rebuild);
        }
        for (model, instance) in worse {
            // Every rank of the instance is replaced, so all must be at least as reliable at the peer.
            let is_of_it = |(rank, _): &(&RankId, &ReportedPosition)| rank.model == model && rank.instance == instance;
            let mut of_it = ours.iter().filter(is_of_it);
            if of_it.all(|(rank, our)| theirs.get(rank).is_some_and(|their| their.trust <= our.trust)) {
                self.repair(&model, &instance, |shadow| {
                    read_dump(client.dump(url, Some((&model, &instance)))?, shadow)?;
                    shadow.resume();
                    Ok(())
                });
            }
        }
        Ok(())
    }

    /// Compares the ranks of up to [`COMPARED_AT_ONCE_MAX`] instances at a time, and reports each outcome.
    fn compare_all<'c>(
        &self,
        watch: &Watch,
        client: &PeerClient,
        url: &PeerUrl,
        instances: Vec<Vec<Candidate<'c>>>,
        mut report: impl FnMut(&'c RankId, Outcome),
    ) {
        let threads = instances.len().min(COMPARED_AT_ONCE_MAX);
        let waiting = Mutex::new(instances.into_iter());
        let (sender, outcomes) = unbounded();
        let work = |sender: Sender<(&'c RankId, Outcome)>| {
            loop {
                let Some(instance) = ({ waiting.lock().next() }) else { return };
                for candidate in instance {
                    if self.indexer.is_stopping() {
                        return;
                    }
                    let started = Instant::now();
                    // A panic at one rank does not affect the outcomes of the others.
                    let compared = watch.guarded(|| self.compare_rank(client, url, &candidate));
                    let (outcome, blocks) = compared.unwrap_or((Outcome::NotCompared, 0));
                    // The send fails only after the receiver has ended.
                    let _ = sender.send((candidate.rank, outcome));
                    let pause = pause_after(blocks).saturating_sub(started.elapsed());
                    wait_until(pause, || self.indexer.is_stopping());
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..threads {
                let (sender, work) = (sender.clone(), &work);
                scope.spawn(move || work(sender));
            }
            drop(sender);
            outcomes.iter().for_each(|(rank, outcome)| report(rank, outcome));
        });
    }

    /// Compares a rank at a message that neither side has reached yet. Returns the outcome, and the number of blocks that were
    /// digested for it.
    fn compare_rank(&self, client: &PeerClient, url: &PeerUrl, candidate: &Candidate<'_>) -> (Outcome, u64) {
        let Candidate { rank, our, their, .. } = *candidate;
        // Fault injection by model name.
        #[cfg(any(test, feature = "fault-injection"))]
        assert!(rank.model.model_name != "peer-check-fault", "a test asked for a failure");
        // A peer with a stalled connection is exact at an earlier message, or in an earlier epoch. So trust alone decides only while this
        // replica has received nothing.
        if our.last.is_none() && their.trust == Trust::Exact {
            return (Outcome::Worse, 0);
        }
        if our.trust == Trust::Exact && their.trust == Trust::Degraded {
            return (Outcome::NotCompared, 0);
        }
        for _ in 0..BUSY_ATTEMPTS_MAX {
            let now = self.indexer.last_sequence(rank);
            let Some(at) = now.and_then(|now| candidate.digest_sequence(now, candidate.sampled_at.elapsed())) else {
                break;
            };
            let (ours, theirs) = std::thread::scope(|scope| {
                let theirs = scope.spawn(|| client.digest(url, rank, at, DIGEST_DEADLINE));
                let ours = self.indexer.digest(rank, ReadAt::Message(at), DIGEST_DEADLINE).ok();
                (ours, theirs.join().unwrap_or_else(|panic| resume_unwind(panic)))
            });
            match (ours, theirs) {
                (Some(ours), Ok(theirs)) => {
                    return (compare_digests(&ours, &theirs), ours.holds.blocks);
                }
                // The peer is at its limit of digests, which all replicas share.
                (_, Err(PeerError::Refused { status: BUSY, .. })) => {
                    wait_until(SAMPLE_INTERVAL, || self.indexer.is_stopping());
                }
                _ => break,
            }
        }
        (Outcome::NotCompared, 0)
    }

    /// Rebuilds an instance in a shadow and exchanges it, or leaves it unchanged.
    fn repair(
        &self,
        model: &ModelKey,
        instance: &InstanceId,
        fill: impl FnOnce(&mut Shadow) -> Result<(), RepairError>,
    ) {
        let repaired = Shadow::of(&self.indexer, model, instance).map_err(RepairError::from).and_then(|mut shadow| {
            wait_until(self.deadlines.connect, || shadow.is_connected());
            fill(&mut shadow)?;
            wait_until(DIGEST_DEADLINE, || !shadow.is_behind());
            Ok(shadow.exchange()?)
        });
        let (model, tenant, instance) = (model.model_name.as_str(), model.tenant_id.as_str(), instance.to_string());
        match repaired {
            Ok(()) => {
                self.indexer.metrics().peer_repair("complete");
                info!(model, tenant, instance = instance.as_str(), "rebuilt an instance");
            }
            Err(error) => {
                self.indexer.metrics().peer_repair("failed");
                warn!(model, tenant, instance = instance.as_str(), %error, "failed to rebuild an instance; it stays unchanged");
            }
        }
    }

    /// Positions of this replica's ranks that can be compared.
    fn local_positions(&self) -> BTreeMap<RankId, ReportedPosition> {
        let reports = self.indexer.instances(None, None).into_iter();
        let positions = reports.flat_map(|report| {
            // A rank without a connection may only have missed the latest messages.
            let comparable = report.listeners.into_iter().filter(|(_, listener)| {
                is_comparable(listener.trust, listener.partial) && listener.status == ConnectionStatus::Connected
            });
            comparable.map(move |(dp_rank, listener)| {
                let rank = RankId { model: report.model.clone(), instance: report.instance.clone(), dp_rank };
                (rank, ReportedPosition { last: listener.last_seq, trust: listener.trust })
            })
        });
        positions.collect()
    }
}

/// Rebuilds an instance from the engine's replay of its whole stream.
fn rebuild(shadow: &mut Shadow) -> Result<(), RepairError> {
    shadow.resume();
    match shadow.can_replay() && wait_until(REBUILD_DEADLINE, || shadow.is_exact()) {
        true => Ok(()),
        false => Err(RepairError::NotExact),
    }
}

/// Whether two replicas hold the same blocks of a rank. Evicted blocks are not drift, and routers send different decisions to each replica.
const fn is_comparable(trust: Trust, is_partial: bool) -> bool {
    !matches!(trust, Trust::Recovering | Trust::Approximate) && !is_partial
}

/// Positions of a peer's ranks that can be compared.
fn peer_positions(workers: Vec<Worker>) -> BTreeMap<RankId, ReportedPosition> {
    let mut positions = BTreeMap::new();
    for worker in workers {
        let model = ModelKey::new(worker.model_name, Some(worker.tenant_id));
        for (dp_rank, listener) in worker.listeners {
            if !is_comparable(listener.trust, listener.partial) {
                continue;
            }
            let (model, instance) = (model.clone(), worker.instance_id.clone());
            let position = ReportedPosition { last: listener.last_seq, trust: listener.trust };
            positions.insert(RankId { model, instance, dp_rank: DpRank(dp_rank) }, position);
        }
    }
    positions
}
