//! Comparing what this server knows with what its peers know, slowly, and mending what is not the same.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use flash_indexer_core::DpRank;
use tracing::{error, info, warn};

use super::Peers;
use super::client::{PeerClient, PeerDeadlines, PeerError, Selection};
use super::status::{RecoveryState, RecoveryStatus};
use super::url::PeerUrl;
use crate::dump::{DumpError, RankRecord, StreamRecord, read_dump};
use crate::indexer::{Indexer, RankId, Shadow, ShadowError};
use crate::ingest::{Connection, ListenerReport, ReadAt, Trust};
use crate::instance::{InstanceId, ModelKey};
use crate::supervision::{ThreadKind, Watch};

/// Apart so far, two looks tell how busy a stream is.
const BETWEEN_LOOKS: Duration = Duration::from_millis(250);
/// So far ahead is the message at which both sides digest: both must learn of it before it comes.
const LEAD: Duration = Duration::from_millis(500);
/// Longest wait for that message.
const MEETING_DEADLINE: Duration = Duration::from_secs(5);
/// Longest wait for an engine to tell everything.
const REBUILD_DEADLINE: Duration = Duration::from_secs(30);
const STATE_CHECK: Duration = Duration::from_millis(5);

/// Compares with every peer in turn, again and again.
pub(crate) struct Check {
    pub(crate) indexer: Arc<Indexer>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) deadlines: PeerDeadlines,
    pub(crate) interval: Duration,
    pub(crate) recovery: Arc<RecoveryStatus>,
}

/// Ends the comparisons when it is dropped.
#[derive(Debug)]
pub(crate) struct CheckGuard(#[expect(dead_code, reason = "it is there to be dropped")] Sender<()>);

/// Where a stream stands, as one side tells.
#[derive(Debug, Clone, Copy)]
struct Look {
    last: Option<u64>,
    trust: Trust,
}

/// What came out for one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Equal,
    /// They did not meet at a message, one of them has heard nothing, or only this one is sure: the peer's own check mends
    /// the peer.
    NotCompared,
    /// They follow different lives of the engine.
    OtherLife,
    /// They differ, or may, and the peer knows better.
    Worse,
    /// They differ, and nobody knows better.
    Drift,
    /// They differ, and both are sure.
    Dispute,
}

impl Outcome {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::NotCompared => "not_compared",
            Self::OtherLife => "other_life",
            Self::Worse => "worse",
            Self::Drift => "drift",
            Self::Dispute => "dispute",
        }
    }
}

/// An instance stays as it is.
#[derive(Debug, thiserror::Error)]
enum RepairError {
    #[error("{0}")]
    Peer(#[from] PeerError),
    #[error("{0}")]
    Dump(#[from] DumpError),
    #[error("{0}")]
    Shadow(#[from] ShadowError),
    #[error("the engine cannot tell everything")]
    NotExact,
}

impl Check {
    /// Starts in a thread of its own.
    ///
    /// # Errors
    ///
    /// When there is no thread.
    pub(crate) fn start(self) -> io::Result<CheckGuard> {
        let (guard, dropped) = bounded(0);
        let supervisor = Arc::clone(self.indexer.supervisor());
        supervisor.spawn(ThreadKind::PeerCheck, None, move |watch| self.run(watch, &dropped))?;
        Ok(CheckGuard(guard))
    }

    fn run(self, watch: &Watch, dropped: &Receiver<()>) {
        let client = PeerClient::new(&self.deadlines);
        let mut disputed = BTreeSet::new();
        while dropped.recv_timeout(self.interval) == Err(RecvTimeoutError::Timeout) {
            if let RecoveryState::Running(_) = self.recovery.state() {
                continue;
            }
            for url in self.peers.urls() {
                // One that panics is tried again with the next round.
                if let Some(Err(error)) = watch.guarded(|| self.compare(&client, &url, &mut disputed)) {
                    self.indexer.metrics().peer_check("unreachable");
                    info!("not compared with a peer: {error}");
                }
            }
        }
    }

    /// Compares every rank that both sides listen to.
    fn compare(&self, client: &PeerClient, url: &PeerUrl, disputed: &mut BTreeSet<RankId>) -> Result<(), PeerError> {
        let earlier = self.own_looks();
        std::thread::sleep(BETWEEN_LOOKS);
        let theirs = looks_of(client, url)?;
        let ours = self.own_looks();
        disputed.retain(|rank| ours.get(rank).is_some_and(|look| look.trust == Trust::Degraded));
        let mut worse: BTreeSet<(ModelKey, InstanceId)> = BTreeSet::new();
        for (rank, &our) in &ours {
            let Some(&their) = theirs.get(rank).filter(|_| !disputed.contains(rank)) else { continue };
            if self.indexer.is_stopping() {
                return Ok(());
            }
            let seen_before = earlier.get(rank).and_then(|look| look.last);
            let outcome = self.compare_rank(client, url, rank, (our, their), seen_before);
            self.indexer.metrics().peer_check(outcome.as_str());
            match outcome {
                Outcome::Equal | Outcome::NotCompared | Outcome::OtherLife => {}
                Outcome::Worse => drop(worse.insert((rank.model.clone(), rank.instance.clone()))),
                Outcome::Drift => warn!("{rank} differs from {url}, and neither is sure of it"),
                Outcome::Dispute => {
                    error!("{rank} differs from {url}, and both are sure of it: one of them has a fault");
                    disputed.insert(rank.clone());
                    self.indexer.distrust(rank, "it differs from a peer that is just as sure of it".to_owned());
                    self.repair(&rank.model, &rank.instance, rebuild);
                }
            }
        }
        for (model, instance) in worse {
            // An instance is taken over as a whole.
            let is_of_it = |(rank, _): &(&RankId, &Look)| rank.model == model && rank.instance == instance;
            let mut of_it = ours.iter().filter(is_of_it);
            if of_it.all(|(rank, our)| theirs.get(rank).is_some_and(|their| their.trust <= our.trust)) {
                self.repair(&model, &instance, |shadow| {
                    let selection =
                        Selection { model_name: &model.model_name, tenant_id: &model.tenant_id, instance: &instance };
                    read_dump(client.dump(url, Some(&selection))?, shadow)?;
                    shadow.go_on();
                    Ok(())
                });
            }
        }
        Ok(())
    }

    /// Compares a rank at a message that neither side has passed.
    fn compare_rank(
        &self,
        client: &PeerClient,
        url: &PeerUrl,
        rank: &RankId,
        (our, their): (Look, Look),
        seen_before: Option<u64>,
    ) -> Outcome {
        if our.trust > their.trust && their.trust == Trust::Exact {
            return Outcome::Worse;
        }
        if our.trust == Trust::Exact && their.trust == Trust::Degraded {
            return Outcome::NotCompared;
        }
        let (Some(last), Some(their_last)) = (our.last, their.last) else { return Outcome::NotCompared };
        let heard = seen_before.map_or(0, |before| last.saturating_sub(before));
        let ahead = heard * LEAD.as_millis() as u64 / BETWEEN_LOOKS.as_millis() as u64;
        let at = last.max(their_last) + ahead;
        let (ours, theirs) = std::thread::scope(|scope| {
            let theirs = scope.spawn(|| client.digest(url, rank, at, MEETING_DEADLINE).ok());
            let ours = self.indexer.digest(rank, ReadAt::Message(at), MEETING_DEADLINE).ok();
            (ours, theirs.join().ok().flatten())
        });
        let (Some(ours), Some(theirs)) = (ours, theirs) else { return Outcome::NotCompared };
        judge(&ours, &theirs)
    }

    /// Builds an instance up anew and exchanges it, or leaves it as it is.
    fn repair(
        &self,
        model: &ModelKey,
        instance: &InstanceId,
        fill: impl FnOnce(&mut Shadow) -> Result<(), RepairError>,
    ) {
        let repaired = Shadow::of(&self.indexer, model, instance).map_err(RepairError::from).and_then(|mut shadow| {
            wait_until(self.deadlines.connect, || shadow.is_connected());
            fill(&mut shadow)?;
            Ok(shadow.exchange()?)
        });
        match repaired {
            Ok(()) => {
                self.indexer.metrics().peer_repair("complete");
                info!("instance {instance} of {model} was built up anew");
            }
            Err(error) => {
                self.indexer.metrics().peer_repair("failed");
                warn!("failed to build up instance {instance} of {model} anew: {error}");
            }
        }
    }

    fn own_looks(&self) -> BTreeMap<RankId, Look> {
        let reports = self.indexer.instances(None, None).into_iter();
        let looks = reports.flat_map(|report| {
            // What was forgotten here is not drift, and whose connection is lost may only be late.
            let comparable = |listener: &ListenerReport| !listener.partial && listener.status == Connection::Connected;
            let comparable = report.listeners.into_iter().filter(move |(_, listener)| comparable(listener));
            comparable.map(move |(dp_rank, listener)| {
                let rank = RankId { model: report.model.clone(), instance: report.instance.clone(), dp_rank };
                (rank, Look { last: listener.last_seq, trust: listener.trust })
            })
        });
        looks.collect()
    }
}

/// What the engine itself can tell, from its start.
fn rebuild(shadow: &mut Shadow) -> Result<(), RepairError> {
    shadow.go_on();
    match shadow.can_replay() && wait_until(REBUILD_DEADLINE, || shadow.is_exact()) {
        true => Ok(()),
        false => Err(RepairError::NotExact),
    }
}

fn looks_of(client: &PeerClient, url: &PeerUrl) -> Result<BTreeMap<RankId, Look>, PeerError> {
    let mut looks = BTreeMap::new();
    for worker in client.workers(url)? {
        let Some(model_name) = worker.model_name else { continue };
        let model = ModelKey::new(model_name, worker.tenant_id);
        for (dp_rank, listener) in worker.listeners {
            let Some(trust) = listener.trust.filter(|_| !listener.partial) else { continue };
            let (model, instance) = (model.clone(), worker.instance_id.clone());
            let look = Look { last: listener.last_seq, trust };
            looks.insert(RankId { model, instance, dp_rank: DpRank(dp_rank) }, look);
        }
    }
    Ok(looks)
}

/// What follows from two digests.
fn judge(ours: &RankRecord, theirs: &RankRecord) -> Outcome {
    let (Some(our), Some(their)) = (ours.stream, theirs.stream) else { return Outcome::NotCompared };
    let sure = |stream: StreamRecord| stream.trust == Trust::Exact;
    let same_groups = match (&ours.groups, &theirs.groups) {
        (Some(ours), Some(theirs)) => Some(ours == theirs),
        // An older version does not say; of most models there is nothing to be said.
        (told, untold) => told.iter().chain(untold).flatten().all(|group| group.holds.is_none()).then_some(true),
    };
    let same = match same_groups {
        None if ours.holds == theirs.holds => return Outcome::NotCompared,
        same_groups => ours.holds == theirs.holds && same_groups == Some(true),
    };
    match (our.cursor == their.cursor, same) {
        (false, _) => Outcome::OtherLife,
        (true, true) => Outcome::Equal,
        (true, false) if sure(our) && sure(their) => Outcome::Dispute,
        (true, false) if sure(their) => Outcome::Worse,
        // It has lost its trust since it was looked at.
        (true, false) if sure(our) => Outcome::NotCompared,
        (true, false) => Outcome::Drift,
    }
}

/// Whether it became so in time.
fn wait_until(patience: Duration, condition: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + patience;
    while !condition() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(STATE_CHECK);
    }
    true
}
