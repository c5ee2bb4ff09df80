//! Comparing what this server knows with what its peers know, slowly, and mending what is not the same.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use flash_indexer_core::DpRank;
use parking_lot::Mutex;
use tracing::{info, warn};

use super::Peers;
use super::client::{PeerClient, PeerDeadlines, PeerError, Selection};
use super::status::{RecoveryState, RecoveryStatus};
use super::url::PeerUrl;
use crate::http::DIGESTS_MAX;
use flash_indexer_ingest::{Connection, ListenerReport, ReadAt};
use flash_indexer_registry::{Indexer, Shadow, ShadowError};
use flash_indexer_snapshot::{DumpError, RankRecord, StreamRecord, read_dump};
use flash_indexer_telemetry::supervision::{ThreadKind, Watch};
use flash_indexer_types::RankId;
use flash_indexer_types::Trust;
use flash_indexer_types::log_rank;
use flash_indexer_types::{InstanceId, ModelKey};

/// Apart so far, two looks tell how busy a stream is.
const BETWEEN_LOOKS: Duration = Duration::from_millis(250);
/// So far ahead is the message at which both sides digest: both must learn of it before it comes.
const LEAD: Duration = Duration::from_millis(500);
/// Longest wait for that message.
const MEETING_DEADLINE: Duration = Duration::from_secs(5);
/// Longest wait for an engine to tell everything.
const REBUILD_DEADLINE: Duration = Duration::from_secs(30);
const STATE_CHECK: Duration = Duration::from_millis(5);
/// Ranks, each of another instance, that are compared with a peer at the same time. A quarter of the digests that a peer
/// makes at a time, so that several replicas can check it.
const COMPARED_AT_ONCE_MAX: usize = DIGESTS_MAX / 4;
/// What a digest takes of the time of the rank's writer, for each block.
const DIGEST_TIME_PER_BLOCK: Duration = Duration::from_nanos(100);
/// All comparisons together take at most one part in this number of a writer's time.
const WRITER_SHARE: u32 = 20;
/// Longest time for which a thread compares no other rank after a large one.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Times that a peer is asked for a digest while it digests as many ranks as it may.
const BUSY_ATTEMPTS_MAX: usize = 8;
/// How a peer answers then.
const BUSY: u16 = 503;

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
struct ReportedPosition {
    last: Option<u64>,
    trust: Trust,
}

/// A rank that both sides listen to.
#[derive(Debug, Clone, Copy)]
struct Candidate<'c> {
    rank: &'c RankId,
    /// What both sides showed when the comparison of all ranks began.
    our: ReportedPosition,
    their: ReportedPosition,
    /// The last message at `looked_at`, a little before.
    earlier: Option<u64>,
    looked_at: Instant,
}

impl Candidate<'_> {
    /// A message that both sides reach soon and neither has passed, if both have received something: as far ahead of the
    /// last one here, `now`, as the stream goes within [`LEAD`] at the pace that it had for `elapsed`, and as far as the
    /// peer was ahead.
    fn meeting(&self, now: u64, elapsed: Duration) -> Option<u64> {
        let (our_last, their_last) = (self.our.last?, self.their.last?);
        let received = self.earlier.map_or(0, |earlier| now.saturating_sub(earlier));
        let ahead = u128::from(received) * LEAD.as_millis() / elapsed.as_millis().max(1);
        let peer_ahead = their_last.saturating_sub(our_last);
        Some(now.saturating_add(peer_ahead).saturating_add(u64::try_from(ahead).unwrap_or(u64::MAX)))
    }
}

/// How long a thread compares no other rank, from the beginning of a comparison of this number of blocks on.
fn pause_after(blocks: u64) -> Duration {
    let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
    (DIGEST_TIME_PER_BLOCK * WRITER_SHARE * COMPARED_AT_ONCE_MAX as u32).saturating_mul(blocks).min(PAUSE_MAX)
}

/// The outcome of one rank, and how many blocks were digested for it.
#[derive(Debug, Clone, Copy)]
struct RankComparison {
    outcome: Outcome,
    blocks: u64,
}

impl From<Outcome> for RankComparison {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, blocks: 0 }
    }
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
                if let Some(Err(error)) = watch.guarded(|| self.compare(watch, &client, &url, &mut disputed)) {
                    self.indexer.metrics().peer_check("unreachable");
                    info!(peer = url.as_str(), %error, "failed to compare with a peer");
                }
            }
        }
    }

    /// Compares every rank that both sides listen to, several at a time.
    fn compare(
        &self,
        watch: &Watch,
        client: &PeerClient,
        url: &PeerUrl,
        disputed: &mut BTreeSet<RankId>,
    ) -> Result<(), PeerError> {
        let (earlier, looked_at) = (self.own_looks(), Instant::now());
        std::thread::sleep(BETWEEN_LOOKS);
        let theirs = looks_of(client, url)?;
        let ours = self.own_looks();
        disputed.retain(|rank| ours.get(rank).is_some_and(|look| look.trust == Trust::Degraded));
        // By instance, because a stream is digested at one message at a time.
        let mut instances: BTreeMap<(&ModelKey, &InstanceId), Vec<Candidate<'_>>> = BTreeMap::new();
        for (rank, &our) in &ours {
            let Some(&their) = theirs.get(rank).filter(|_| !disputed.contains(rank)) else { continue };
            let earlier = earlier.get(rank).and_then(|look| look.last);
            let candidate = Candidate { rank, our, their, earlier, looked_at };
            instances.entry((&rank.model, &rank.instance)).or_default().push(candidate);
        }
        let mut worse: BTreeSet<(ModelKey, InstanceId)> = BTreeSet::new();
        let mut new_disputes = Vec::new();
        self.compare_all(watch, client, url, instances.into_values().collect(), |rank, outcome| {
            self.indexer.metrics().peer_check(outcome.as_str());
            match outcome {
                Outcome::Equal | Outcome::NotCompared | Outcome::OtherLife => {}
                Outcome::Worse => drop(worse.insert((rank.model.clone(), rank.instance.clone()))),
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
                    self.indexer.mark_degraded(rank, "it differs from a peer that is just as sure of it".to_owned());
                    new_disputes.push(rank.clone());
                }
            }
        });
        // An instance is rebuilt as a whole.
        let rebuilt: BTreeSet<_> =
            new_disputes.iter().map(|rank| (rank.model.clone(), rank.instance.clone())).collect();
        disputed.extend(new_disputes);
        for (model, instance) in rebuilt {
            self.repair(&model, &instance, rebuild);
        }
        for (model, instance) in worse {
            // An instance is taken over as a whole.
            let is_of_it = |(rank, _): &(&RankId, &ReportedPosition)| rank.model == model && rank.instance == instance;
            let mut of_it = ours.iter().filter(is_of_it);
            if of_it.all(|(rank, our)| theirs.get(rank).is_some_and(|their| their.trust <= our.trust)) {
                self.repair(&model, &instance, |shadow| {
                    let selection =
                        Selection { model_name: &model.model_name, tenant_id: &model.tenant_id, instance: &instance };
                    read_dump(client.dump(url, Some(&selection))?, shadow)?;
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
                    // One that panics leaves the others their outcomes.
                    let compared = watch.guarded(|| self.compare_rank(client, url, &candidate));
                    let compared = compared.unwrap_or_else(|| Outcome::NotCompared.into());
                    // It fails only when nothing is reported any more.
                    let _ = sender.send((candidate.rank, compared.outcome));
                    let pause = pause_after(compared.blocks).saturating_sub(started.elapsed());
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

    /// Compares a rank at a message that neither side has passed.
    fn compare_rank(&self, client: &PeerClient, url: &PeerUrl, candidate: &Candidate<'_>) -> RankComparison {
        let Candidate { rank, our, their, .. } = *candidate;
        // No rank is known to make the thread fail, so a name does.
        #[cfg(test)]
        assert!(rank.model.model_name != "peer-check-fault", "a test asked for a failure");
        if our.trust > their.trust && their.trust == Trust::Exact {
            return Outcome::Worse.into();
        }
        if our.trust == Trust::Exact && their.trust == Trust::Degraded {
            return Outcome::NotCompared.into();
        }
        for _ in 0..BUSY_ATTEMPTS_MAX {
            let now = self.indexer.last_sequence(rank);
            let Some(at) = now.and_then(|now| candidate.meeting(now, candidate.looked_at.elapsed())) else { break };
            let (ours, theirs) = std::thread::scope(|scope| {
                let theirs = scope.spawn(|| client.digest(url, rank, at, MEETING_DEADLINE));
                let ours = self.indexer.digest(rank, ReadAt::Message(at), MEETING_DEADLINE).ok();
                (ours, theirs.join().unwrap_or_else(|panic| resume_unwind(panic)))
            });
            match (ours, theirs) {
                (Some(ours), Ok(theirs)) => {
                    return RankComparison { outcome: judge(&ours, &theirs), blocks: ours.holds.blocks };
                }
                // It digests as many ranks as it may, for other replicas too.
                (_, Err(PeerError::Refused { status: BUSY, .. })) => {
                    wait_until(BETWEEN_LOOKS, || self.indexer.is_stopping());
                }
                _ => break,
            }
        }
        Outcome::NotCompared.into()
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
                let (model, tenant, instance) =
                    (model.model_name.as_str(), model.tenant_id.as_str(), instance.to_string());
                info!(model, tenant, instance = instance.as_str(), "rebuilt an instance");
            }
            Err(error) => {
                self.indexer.metrics().peer_repair("failed");
                let (model, tenant, instance) =
                    (model.model_name.as_str(), model.tenant_id.as_str(), instance.to_string());
                warn!(model, tenant, instance = instance.as_str(), %error, "failed to rebuild an instance");
            }
        }
    }

    fn own_looks(&self) -> BTreeMap<RankId, ReportedPosition> {
        let reports = self.indexer.instances(None, None).into_iter();
        let looks = reports.flat_map(|report| {
            // What was forgotten here is not drift, and whose connection is lost may only be late.
            let is_settled = |listener: &ListenerReport| listener.trust != Trust::Recovering && !listener.partial;
            let comparable =
                move |listener: &ListenerReport| is_settled(listener) && listener.status == Connection::Connected;
            let comparable = report.listeners.into_iter().filter(move |(_, listener)| comparable(listener));
            comparable.map(move |(dp_rank, listener)| {
                let rank = RankId { model: report.model.clone(), instance: report.instance.clone(), dp_rank };
                (rank, ReportedPosition { last: listener.last_seq, trust: listener.trust })
            })
        });
        looks.collect()
    }
}

/// What the engine itself can tell, from its start.
fn rebuild(shadow: &mut Shadow) -> Result<(), RepairError> {
    shadow.resume();
    match shadow.can_replay() && wait_until(REBUILD_DEADLINE, || shadow.is_exact()) {
        true => Ok(()),
        false => Err(RepairError::NotExact),
    }
}

fn looks_of(client: &PeerClient, url: &PeerUrl) -> Result<BTreeMap<RankId, ReportedPosition>, PeerError> {
    let mut looks = BTreeMap::new();
    for worker in client.workers(url)? {
        let Some(model_name) = worker.model_name else { continue };
        let model = ModelKey::new(model_name, worker.tenant_id);
        for (dp_rank, listener) in worker.listeners {
            let is_settled = |trust: &Trust| *trust != Trust::Recovering && !listener.partial;
            let Some(trust) = listener.trust.filter(is_settled) else { continue };
            let (model, instance) = (model.clone(), worker.instance_id.clone());
            let look = ReportedPosition { last: listener.last_seq, trust };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_meet_ahead_of_where_the_stream_is_when_their_turn_comes() {
        let rank = RankId { model: ModelKey::new("m", None), instance: InstanceId::number(1), dp_rank: DpRank(0) };
        let look = |last| ReportedPosition { last: Some(last), trust: Trust::Exact };
        let candidate = |our, their| Candidate {
            rank: &rank,
            our: look(our),
            their: look(their),
            earlier: Some(100),
            looked_at: Instant::now(),
        };
        let s = Duration::from_secs;
        // 100 messages a second: half a second is 50 messages, at once and after a minute.
        assert_eq!(candidate(125, 125).meeting(125, Duration::from_millis(250)), Some(175));
        assert_eq!(candidate(125, 125).meeting(6_100, s(60)), Some(6_150));
        // An idle stream is where it was; a slow one is not waited for.
        assert_eq!(candidate(100, 100).meeting(100, s(60)), Some(100));
        assert_eq!(candidate(100, 100).meeting(130, s(60)), Some(130));
        // A peer that was ahead of this replica still is.
        assert_eq!(candidate(100, 120).meeting(100, s(1)), Some(120));
        let silent = Candidate { their: ReportedPosition { last: None, trust: Trust::Cold }, ..candidate(100, 100) };
        assert_eq!(silent.meeting(100, s(1)), None);
    }

    #[test]
    fn digests_leave_writers_their_time() {
        let writer_time = DIGEST_TIME_PER_BLOCK * 1_000_000 * COMPARED_AT_ONCE_MAX as u32;
        assert_eq!(pause_after(1_000_000), writer_time * WRITER_SHARE);
        assert_eq!(pause_after(0), Duration::ZERO);
        assert_eq!(pause_after(u64::MAX), PAUSE_MAX);
    }
}
