//! Invariants of answers about ranks of other services, found in the shared store.

use std::collections::{BTreeMap, BTreeSet};

use flash_indexer_ingest::ListenerReport;
use flash_indexer_registry::{Answer, QueryOptions};
use flash_indexer_types::{InstanceId, ModelKey, RankId, Trust};

use crate::check::{FoundRank, found_ranks};
use crate::engine::{Depths, Engine};
use crate::service::{model, reports};
use crate::sharing::{Span, TIME_TO_LIVE};
use crate::world::World;

/// Number of prompts queried after each step.
const PROMPTS_PER_STEP: usize = 3;

impl World {
    /// Records the positions of a service's streams.
    pub(crate) fn record_positions(&mut self, number: usize, reports: &BTreeMap<RankId, ListenerReport>) {
        let Some(sharing) = &mut self.sharing else { return };
        let links = self.services[number].links.lock();
        for (rank, report) in reports {
            let Some(&engine) = self.services[number].registered.get(rank) else { continue };
            let epochs = (links[engine].known.epoch.unwrap_or_default(), self.engines[engine].epoch());
            sharing.record(number, rank, report, epochs);
        }
    }

    /// Checks a service's answers about ranks of other services.
    pub(crate) fn check_shared(&mut self, number: usize) -> Result<(), String> {
        if self.sharing.is_none() {
            return Ok(());
        }
        let (first, count) = (self.random.within(0..self.prompts.len()), self.prompts.len());
        let local = reports(&self.services[number]);
        let models: BTreeSet<ModelKey> = self.engines.iter().map(|engine| model(&engine.spec)).collect();
        for at in (first..first + PROMPTS_PER_STEP.min(count)).map(|at| at % count) {
            for FoundRank { rank, trust, depths } in self.remote_ranks(number, &models, at, &local) {
                self.coverage.remote_answers += 1;
                if trust == Trust::Exact {
                    self.coverage.exact_remote_answers += 1;
                    self.check_remote(number, &rank, at, depths)
                        .map_err(|broken| format!("service {number} about {rank} of another service: {broken}"))?;
                }
            }
        }
        Ok(())
    }

    /// Ranks of other services in the answers of a service to a prompt for some models.
    fn remote_ranks<'m>(
        &self,
        number: usize,
        models: impl IntoIterator<Item = &'m ModelKey>,
        prompt: usize,
        local: &BTreeMap<RankId, ListenerReport>,
    ) -> Vec<FoundRank> {
        let mut remote = Vec::new();
        for key in models {
            let Some(answer) = self.query(number, key, prompt) else { continue };
            let is_remote = |found: &FoundRank| local.get(&found.rank).is_none_or(|report| found.trust < report.trust);
            remote.extend(found_ranks(key, &answer).filter(is_remote));
        }
        remote
    }

    /// A service's answer; none if it has no such model.
    fn query(&self, number: usize, key: &ModelKey, prompt: usize) -> Option<Answer> {
        let query = self.prompts[prompt].query();
        let answering = self.services[number].indexer.query(key, query, QueryOptions::default());
        let answer = self.sharing.as_ref()?.wait_for(answering).ok();
        self.synchronize();
        answer
    }

    /// Checks the depths of a rank that another service has published as exact.
    fn check_remote(&self, number: usize, rank: &RankId, prompt: usize, found: Depths) -> Result<(), String> {
        let Some(sharing) = &self.sharing else { return Ok(()) };
        let since = sharing.window_start();
        let recent = sharing.positions_of_others(number, rank, since);
        let window = sharing.now() - since;
        if !recent.iter().any(|position| position.trust == Trust::Exact) {
            return Err(format!("exact, and no service was exact in the last {window:?}: {recent:?}"));
        }
        if recent.iter().any(|position| position.trust != Trust::Exact) {
            // Before its status was read, the service may have published blocks that it held when it was not exact.
            return Ok(());
        }
        let (engine, at) = self.engine_of(rank).ok_or("no engine has it")?;
        let spans = recent.iter().flat_map(|position| &position.spans);
        let truths: Vec<Depths> = spans.flat_map(|span| depths_in(engine, *span, at, prompt)).collect();
        let bound = |tier: usize| {
            let depths = truths.iter().map(move |depths| depths[tier]);
            (depths.clone().min().unwrap_or_default(), depths.max().unwrap_or_default())
        };
        let may_lack = sharing.store.may_lack_since(since - TIME_TO_LIVE);
        for (tier, &depth) in found.iter().enumerate() {
            let (least, most) = bound(tier);
            if depth > most || (depth < least && !may_lack) {
                return Err(format!(
                    "exact with {found:?} blocks of prompt {prompt}; in the last {window:?} it held {truths:?}: {recent:?}"
                ));
            }
        }
        Ok(())
    }

    /// The engine of a rank, and the rank's number there.
    fn engine_of(&self, rank: &RankId) -> Option<(&Engine, usize)> {
        self.engines.iter().find_map(|engine| {
            let is_instance = InstanceId::number(engine.spec.instance) == rank.instance;
            let at = engine.spec.dp_ranks.iter().position(|&dp_rank| dp_rank == rank.dp_rank.0)?;
            is_instance.then_some((engine, at))
        })
    }

    /// Ranks that only one service has registered, and that are exact there as of the last message: numbers of the
    /// other services, and the rank.
    pub(crate) fn shared_ranks(&self) -> Vec<(usize, RankId)> {
        let mut shared = Vec::new();
        for (number, service) in self.services.iter().enumerate() {
            let others = || (0..self.services.len()).filter(|&other| other != number);
            for (rank, report) in reports(service) {
                let is_alone = others().all(|other| !self.services[other].registered.contains_key(&rank));
                let engine = &self.engines[service.registered[&rank]];
                let last = engine.current().messages.len().checked_sub(1).map(|last| last as u64);
                let known = service.links.lock()[service.registered[&rank]].known.epoch;
                let is_newest = known == Some(engine.epoch()) && report.last_seq == last;
                if is_alone && report.trust == Trust::Exact && is_newest {
                    shared.extend(others().map(|other| (other, rank.clone())));
                }
            }
        }
        shared
    }

    /// Checks that the answers of every service about the ranks of other services equal what their engines hold.
    pub(crate) fn check_store_healed(&self) -> Result<(), String> {
        if self.sharing.is_none() {
            return Ok(());
        }
        for (number, rank) in self.shared_ranks() {
            let (engine, at) = self.engine_of(&rank).ok_or("no engine has it")?;
            let last = engine.current().messages.len().checked_sub(1).map(|last| last as u64);
            let local = reports(&self.services[number]);
            for prompt in 0..self.prompts.len() {
                let truth = engine.depth(engine.epoch(), last, at, prompt).unwrap_or_default();
                let remote = self.remote_ranks(number, [&rank.model], prompt, &local);
                let found = remote.into_iter().find(|found| found.rank == rank);
                if !found.as_ref().is_some_and(|found| found.trust == Trust::Exact && found.depths == truth) {
                    return Err(format!(
                        "service {number} answers {found:?} about {rank} and prompt {prompt}, of which it holds {truth:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Depths of a prompt while and after each message of a span is applied.
fn depths_in(engine: &Engine, span: Span, rank: usize, prompt: usize) -> Vec<Depths> {
    let end = engine.epochs[span.epoch].messages.len() as u64;
    let first = span.first.unwrap_or_default();
    let of_message = |number| {
        let least = engine.least_depth(span.epoch, number, rank, prompt);
        [least, engine.depth(span.epoch, Some(number), rank, prompt)].into_iter().flatten()
    };
    let after = (first..=span.last.min(end)).flat_map(of_message);
    let empty = span.first.is_none().then_some([0; 2]);
    empty.into_iter().chain(after).collect()
}
