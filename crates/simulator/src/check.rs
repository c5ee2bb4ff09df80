//! Invariants: answers of exact ranks, trust states, counters, and recovery.

use std::collections::BTreeMap;

use flash_indexer_core::Tier;
use flash_indexer_ingest::ListenerReport;
use flash_indexer_registry::{Answer, QueryOptions};
use flash_indexer_telemetry::metrics::TextFormat;
use flash_indexer_types::{ConnectionStatus, LossReason, ModelKey, RankId, Trust};
use flash_indexer_wire::PendingReason;

use crate::action::FaultKind;
use crate::engine::Depths;
use crate::network::ReceivedMessages;
use crate::prompts::block_size;
use crate::service::{Service, reports};
use crate::world::World;

/// Number of prompts queried after each step. Once the threads have no work, all prompts are queried.
const PROMPTS_PER_STEP: usize = 3;

/// A service's answer about a rank.
#[derive(Debug)]
struct RankObservation {
    trust: Trust,
    /// Blocks found of each queried prompt, with the prompt's number.
    depths: Vec<(usize, Depths)>,
}

/// A rank in an answer to a prompt.
#[derive(Debug)]
pub(crate) struct FoundRank {
    pub(crate) rank: RankId,
    pub(crate) trust: Trust,
    pub(crate) depths: Depths,
}

impl World {
    /// Checks the answers of a service. `is_settled` is true if its threads have no work left.
    pub(crate) fn check(&mut self, number: usize, is_settled: bool) -> Result<(), String> {
        let discovered = self.services[number].read_discovered(is_settled);
        discovered.map_err(|broken| format!("service {number}: {broken}"))?;
        let observed = self.observe(number, is_settled)?;
        let reports = reports(&self.services[number]);
        self.record_positions(number, &reports);
        for (rank, observed) in &observed {
            let report = reports.get(rank).ok_or_else(|| format!("service {number}, {rank} has no listener"))?;
            self.coverage.answers += observed.depths.len() as u64;
            if observed.trust == Trust::Exact {
                self.coverage.exact_answers += observed.depths.len() as u64;
            }
            self.check_rank(number, rank, observed, report, is_settled)
                .and_then(|()| self.check_drops(number, rank, report, is_settled))
                .map_err(|broken| format!("service {number}, {rank}: {broken}"))?;
        }
        if is_settled {
            let mut links = self.services[number].links.lock();
            links.iter_mut().for_each(|link| link.known.has_queued_replies = false);
        }
        Ok(())
    }

    /// Queries a service for some prompts, or all of them.
    fn observe(&mut self, number: usize, all: bool) -> Result<BTreeMap<RankId, RankObservation>, String> {
        let first = self.random.within(0..self.prompts.len());
        let count = if all { self.prompts.len() } else { PROMPTS_PER_STEP.min(self.prompts.len()) };
        let service = &self.services[number];
        let mut models: Vec<&ModelKey> = service.registered.keys().map(|rank| &rank.model).collect();
        models.dedup();
        let mut observed: BTreeMap<RankId, RankObservation> = BTreeMap::new();
        for model in models {
            for at in (first..first + count).map(|at| at % self.prompts.len()) {
                let answer = service.indexer.query_local(model, self.prompts[at].query(), QueryOptions::default());
                let answer = answer.map_err(|error| format!("service {number}: {error}"))?;
                for FoundRank { rank, trust, depths } in found_ranks(model, &answer) {
                    let of_rank = observed.entry(rank).or_insert(RankObservation { trust, depths: Vec::new() });
                    of_rank.depths.push((at, depths));
                }
            }
        }
        let service = &mut self.services[number];
        observed.keys().for_each(|rank| service.add_named(rank, &self.engines));
        if !observed.keys().eq(service.registered.keys()) {
            let (listed, registered) = (observed.keys(), service.registered.keys());
            let extra: Vec<_> = listed.filter(|rank| !service.registered.contains_key(rank)).collect();
            let missing: Vec<_> = registered.filter(|rank| !observed.contains_key(rank)).collect();
            return Err(format!(
                "service {number}: answers list {extra:?}, which are not registered, and lack {missing:?}"
            ));
        }
        Ok(observed)
    }

    fn check_rank(
        &self,
        service: usize,
        rank: &RankId,
        observed: &RankObservation,
        report: &ListenerReport,
        is_settled: bool,
    ) -> Result<(), String> {
        let engine = self.services[service].registered[rank];
        let links = self.services[service].links.lock();
        let link = &links[engine];
        let of_rank = |dp_rank: &u32| *dp_rank == rank.dp_rank.0;
        let rank = self.engines[engine].spec.dp_ranks.iter().position(of_rank).expect("the engine's rank");
        let newest = self.engines[engine].epoch();
        let depth = |epoch, last, prompt| self.engines[engine].depth(epoch, last, rank, prompt);
        // Equals the engine after a message; while threads have work, it may also be between this message and the next one.
        let equals_after = |epoch: usize, last: Option<u64>| {
            observed.depths.iter().all(|&(prompt, found)| {
                let (before, next) = (depth(epoch, last, prompt), last.map_or(0, |last| last + 1));
                let is_next = || {
                    let least = self.engines[engine].least_depth(epoch, next, rank, prompt);
                    let after = depth(epoch, Some(next), prompt);
                    least
                        .zip(after)
                        .is_some_and(|(least, after)| is_between(found, least, [before.unwrap_or_default(), after]))
                };
                before == Some(found) || (!is_settled && is_next())
            })
        };
        let at = report.last_seq;
        let equals = |epoch: usize| {
            // The ranks of a stream are restored at different positions, and the stream continues from the first of them.
            let imported = self.services[service].imported.get(&engine).map_or(0, |last| last + 1);
            let end = imported.min(self.engines[engine].epochs[epoch].messages.len() as u64);
            let later = at.map_or(0, |at| at + 1)..end;
            equals_after(epoch, at) || later.map(Some).any(|last| equals_after(epoch, last))
        };
        match observed.trust {
            Trust::Cold if observed.depths.iter().any(|&(_, depths)| depths != [0; 2]) => {
                return Err(format!("cold, and holds blocks: {:?}", observed.depths));
            }
            Trust::Exact | Trust::Recovering if !(0..=newest).any(equals) => {
                let truth: Vec<_> =
                    observed.depths.iter().map(|&(prompt, _)| (prompt, depth(newest, at, prompt))).collect();
                return Err(format!(
                    "{} after message {at:?}, and answers {:?}; in the engine's last epoch it held {truth:?}",
                    observed.trust.as_str(),
                    observed.depths
                ));
            }
            Trust::Degraded | Trust::Recovering if report.last_error.is_none() => {
                return Err(format!("{} without a reason", observed.trust.as_str()));
            }
            Trust::Exact if link.known.is_lost || report.status != ConnectionStatus::Connected => {
                return Err(format!("exact while the connection is {:?}", report.status));
            }
            Trust::Exact if is_settled => {
                let ReceivedMessages { epoch: known, live_end, .. } = &link.known;
                let is_known = |epoch: usize| {
                    let end = live_end.get(&epoch).copied().unwrap_or_default();
                    at.map_or(0, |last| last + 1) >= end && equals(epoch)
                };
                if !(known.unwrap_or_default()..=newest).any(is_known) {
                    return Err(format!(
                        "exact after message {at:?}, and the service has received messages of epoch {known:?} up to {live_end:?}"
                    ));
                }
                if link.is_awaiting_reply() {
                    return Err("exact while a replay is requested".to_owned());
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks that live messages which a full queue has dropped since the last check ended `exact` at once. If all threads were
    /// idle since, a replay may have returned them. Late parts of a reply are not needed any more.
    fn check_drops(
        &mut self,
        number: usize,
        rank: &RankId,
        report: &ListenerReport,
        is_settled: bool,
    ) -> Result<(), String> {
        let drops = report.rejected.get("queue_full").copied().unwrap_or_default();
        let before = self.services[number].drops.insert(rank.clone(), drops).unwrap_or_default();
        let engine = self.services[number].registered[rank];
        let may_be_replies = self.services[number].links.lock()[engine].known.has_queued_replies;
        match drops > before && !is_settled && !may_be_replies && report.trust == Trust::Exact {
            true => Err("exact, and messages were just dropped because a queue was full".to_owned()),
            false => Ok(()),
        }
    }

    /// Ranks that must be exact again without a clear: their engines can replay all messages. A reply that seemed to lack the first
    /// one ended the requests, even if its repair was interrupted and is not counted. A rank above 4,096 blocks is dropped for good
    /// if another rank has other content for a sequence hash that it stores.
    pub(crate) fn must_be_exact(&self) -> Vec<(usize, RankId)> {
        let mut ranks = Vec::new();
        for (number, service) in self.services.iter().enumerate() {
            let text = metrics_text(service);
            let has_reached = |limit| Service::metric(&text, "limit_reached_total", limit) > 0;
            if has_reached("waiting_messages") || has_reached("tenant_held_blocks") {
                continue;
            }
            let has_dropped_ranks = has_reached("moved_blocks");
            let links = service.links.lock();
            for (rank, &engine) in &service.registered {
                let (state, known) = (&self.engines[engine], &links[engine].known);
                let is_whole = state.spec.has_replay && state.replayable(0).start == 0;
                let is_damaged = state.epochs.iter().any(|epoch| epoch.is_tainted) || known.has_panicked;
                let is_truncated = known.truncated_epoch == Some(state.epoch());
                let shares_hashes = state.spec.has_fixed_hashes || state.spec.dp_ranks.len() > 1;
                let may_be_dropped = has_dropped_ranks && shares_hashes;
                let is_excepted = is_damaged || is_truncated || may_be_dropped || service.ignored.contains(&engine);
                if is_whole && !is_excepted && !state.current().messages.is_empty() {
                    ranks.push((number, rank.clone()));
                }
            }
        }
        ranks
    }

    /// Checks that no rank waits, that every message is applied, and that every rank that can be exact is exact. `panics`
    /// is the number of panics of each service before the engines published their last messages.
    pub(crate) fn check_healed(&self, has_published: bool, panics: &[u64]) -> Result<(), String> {
        let must_be_exact = self.must_be_exact();
        for (number, service) in self.services.iter().enumerate() {
            for (rank, report) in reports(service) {
                let number_of_engine = service.registered[&rank];
                let engine = &self.engines[number_of_engine];
                let state =
                    || format!("service {number}, {rank} is {}: {:?}", report.trust.as_str(), report.last_error);
                if report.trust == Trust::Recovering {
                    return Err(state());
                }
                // The network may have lost the only messages of an idle engine, for which no replay is requested. A stream that was
                // restarted after another stream's panic on its thread is degraded until its first message.
                let thread_panicked = report.last_error == Some(LossReason::ThreadPanicked.to_string());
                let has_no_message = report.trust == Trust::Cold || (report.last_seq.is_none() && thread_panicked);
                // Numbers of dropped messages do not show their epoch: after a restart the next live message shows it.
                let is_unproven =
                    report.last_error == Some(PendingReason::Unverified.to_string()) && engine.epoch() > 0;
                let is_unaware = (has_no_message || is_unproven) && !has_published;
                let must_be_exact = must_be_exact.contains(&(number, rank.clone()));
                if must_be_exact && report.trust != Trust::Exact && !is_unaware {
                    return Err(format!("{}; its engine can replay everything", state()));
                }
                // A stream whose message caused a panic requests no replay.
                let has_writer_panic = self.plan.faults.contains(&FaultKind::WriterPanic);
                let may_have_panicked = service.links.lock()[number_of_engine].known.has_panicked
                    || (has_writer_panic && engine.epochs.iter().any(|epoch| epoch.is_tainted));
                let waits_for_tail = report.last_error == Some(PendingReason::TailLost.to_string());
                if engine.spec.has_replay && !may_have_panicked && waits_for_tail {
                    return Err(format!("{}; its engine can replay the last messages", state()));
                }
                let last = engine.current().messages.len().checked_sub(1).map(|last| last as u64);
                // The last messages may be lost with an index.
                let has_panicked = service.panics() > panics[number];
                if has_published && !has_panicked && report.last_seq != last {
                    return Err(format!("{}; last message {:?} of {last:?}", state(), report.last_seq));
                }
            }
        }
        Ok(())
    }

    /// Checks that every rank is exact as of the last message of its engine.
    pub(crate) fn check_all_exact(&self) -> Result<(), String> {
        self.inexact_after_clear().into_iter().next().map_or(Ok(()), |(_, why)| Err(why))
    }

    /// Ranks that are not exact as of the last message of their engine: the number of the service, and a description of the error.
    pub(crate) fn inexact_after_clear(&self) -> Vec<(usize, String)> {
        let mut inexact = Vec::new();
        for (number, service) in self.services.iter().enumerate() {
            for (rank, ListenerReport { trust, last_seq, last_error, .. }) in reports(service) {
                let last = self.engines[service.registered[&rank]].current().messages.len() as u64 - 1;
                if trust != Trust::Exact || last_seq != Some(last) {
                    let trust = trust.as_str();
                    let state = format!("service {number}, {rank} is {trust} after message {last_seq:?} of {last}");
                    inexact.push((number, format!("{state}, although its cache was cleared: {last_error:?}")));
                }
            }
        }
        inexact
    }

    /// Checks the counters and gauges of each service once its threads have no work left.
    pub(crate) fn check_counters(&mut self) -> Result<(), String> {
        for (number, service) in self.services.iter().enumerate() {
            let text = metrics_text(service);
            let queued = Service::metric(&text, "ingest_queue_bytes", "");
            if queued > 0 {
                return Err(format!("service {number}: {queued} bytes are queued, and no thread has work"));
            }
            let restarts = Service::metric(&text, "engine_restarts_total", "");
            // A reply that does not begin with the requested message may look like a reply of another epoch.
            let is_truncated = Service::metric(&text, "replays_total", "truncated") > 0;
            let has_lies = self.plan.faults.contains(&FaultKind::Replay) || service.has_imported || is_truncated;
            if restarts > service.engine_restarts && !has_lies {
                let real = service.engine_restarts;
                return Err(format!("service {number} counts {restarts} restarts of engines, and there were {real}"));
            }
            let refused = Service::metric(&text, "limit_reached_total", "tenant_ranks");
            if refused != service.refused_ranks {
                let real = service.refused_ranks;
                return Err(format!("service {number} counts {refused} refused ranks, and there were {real}"));
            }
            self.coverage.refused_ranks += refused;
            self.coverage.refused_blocks += Service::metric(&text, "limit_reached_total", "tenant_held_blocks");
            self.coverage.panics += service.panics();
            self.coverage.dropped += Service::metric(&text, "rejected_total", "queue_full");
            self.coverage.replayed += Service::metric(&text, "replayed_messages_total", "");
            self.coverage.discovered_leaves += Service::metric(&text, "discovery_changes_total", "unregistered");
            self.coverage.imports += u64::from(service.has_imported);
            let links = service.links.lock();
            for (engine, _) in links.iter().enumerate().filter(|(_, link)| link.known.has_corrupt) {
                let is_of_engine = |&(_, of): &(&RankId, &usize)| *of == engine;
                let Some((rank, _)) = service.registered.iter().find(is_of_engine) else { continue };
                let report = &reports(service)[rank];
                if report.rejected.values().sum::<u64>() == 0 {
                    return Err(format!("service {number}, {rank}: a damaged message is not counted"));
                }
            }
        }
        Ok(())
    }

    /// Prints the trust of each rank of a service.
    pub(crate) fn print_state(&self, number: usize) {
        let text = metrics_text(&self.services[number]);
        println!("       service {number}: {} bytes queued", Service::metric(&text, "ingest_queue_bytes", ""));
        for (rank, report) in reports(&self.services[number]) {
            let ListenerReport { trust, last_seq, last_error, .. } = report;
            let Some(&engine) = self.services[number].registered.get(&rank) else { continue };
            let (published, epoch) = (self.engines[engine].current().messages.len(), self.engines[engine].epoch());
            let (trust, why) = (trust.as_str(), last_error.unwrap_or_default());
            println!("       service {number}, {rank}: {trust}, {last_seq:?} of {published} in epoch {epoch}; {why}");
        }
    }
}

/// The ranks of a model in an answer.
pub(crate) fn found_ranks(model: &ModelKey, answer: &Answer) -> impl Iterator<Item = FoundRank> {
    answer.ranks.iter().map(move |found| {
        let (model, instance) = (model.clone(), answer.name(found).id().clone());
        let blocks = |tier| (found.tokens[tier] / u64::from(block_size().tokens())) as u16;
        FoundRank {
            rank: RankId { model, instance, dp_rank: found.dp_rank },
            trust: found.trust,
            depths: [blocks(Tier::Device), blocks(Tier::Host)],
        }
    })
}

/// Whether depths are at least some, and at most those before or after a message.
fn is_between(depths: Depths, least: Depths, [before, after]: [Depths; 2]) -> bool {
    (0..depths.len()).all(|tier| (least[tier]..=before[tier].max(after[tier])).contains(&depths[tier]))
}

fn metrics_text(service: &Service) -> String {
    service.indexer.metrics_text(TextFormat::Classic)
}
