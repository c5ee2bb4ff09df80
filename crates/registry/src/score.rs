//! Scores of instances: the weighted number of a prompt's blocks that each instance holds or is predicted to hold.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use flash_indexer_core::hashing::sequence_hashes;
use flash_indexer_core::{LocalHash, PerTier, RankMatch, SequenceHash, Tier, WorkerId, WorkerRank};
use flash_indexer_routing::{InstanceFilter, PredictionView, Predictions, TierWeights};
use flash_indexer_traces::{Stage, stage};
use flash_indexer_types::{InstanceId, Trust};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::answer::StoreAnswer;
use crate::model::{Model, SharedDepths};
use crate::search::{RemoteRank, Search};
use crate::shared_store::RemoteListedRank;
use crate::tier_lookups::{TierLookups, slowest_tiers};

/// Selects the instances of a score.
#[derive(Debug, Clone, Default)]
pub struct ScoreOptions {
    /// Filter of the instances.
    pub instances: InstanceFilter,
    /// Maximum number of instances, those with the highest scores. Equal scores are ordered by name.
    pub top_k: Option<NonZeroUsize>,
}

/// The score of one instance for a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct InstanceScore {
    /// The instance.
    pub instance: InstanceId,
    /// Sum of the weights of the held and the predicted blocks.
    pub score: f64,
    /// Leading blocks of the prompt that the instance's best rank holds in any tier, continued by its shared caches.
    pub held_blocks: u32,
    /// Blocks after the held ones that the instance is predicted to hold.
    pub predicted_blocks: u32,
    /// The worst trust among its ranks, and the shared caches that add to their matches.
    pub trust: Trust,
    /// Shared caches that hold more of the prompt than a rank of the instance does itself, with their leading blocks.
    pub shared: Vec<(InstanceId, u32)>,
    /// Whether the bounded index evicted blocks that one of its ranks holds. The score is then a lower bound.
    pub partial: bool,
}

/// The scores of all instances for one prompt, by name.
#[derive(Debug, Clone, Default)]
pub struct Scores {
    /// Instances with at least one held or predicted block.
    pub instances: Vec<InstanceScore>,
    /// Complete blocks of the prompt.
    pub blocks: usize,
    /// Whether the scores include other replicas.
    pub store: StoreAnswer,
}

/// An instance with its score, which may be zero.
pub(crate) struct ScoredInstance {
    pub worker: WorkerId,
    pub score: InstanceScore,
}

/// Inputs of a score other than the search.
pub(crate) struct Scoring<'a> {
    pub weights: TierWeights,
    pub predictions: &'a Predictions,
    pub tier_lookups: &'a TierLookups,
}

/// An instance under scoring.
struct ListedInstance {
    name: InstanceId,
    /// The worst trust among its ranks; none if no rank has a listener.
    trust: Option<Trust>,
    shared: BTreeMap<InstanceId, u32>,
    is_partial: bool,
}

impl ListedInstance {
    /// An instance without ranks.
    fn new(name: &InstanceId) -> Self {
        Self { name: name.clone(), trust: None, shared: BTreeMap::new(), is_partial: false }
    }

    /// Adds the blocks that shared caches hold after the match of one of its ranks.
    fn add_shared(&mut self, depths: &SharedDepths) {
        self.trust = self.trust.max(Some(depths.trust));
        for (cache, blocks) in &depths.caches {
            let known = self.shared.entry(cache.id().clone()).or_default();
            *known = (*known).max(*blocks);
        }
    }
}

/// The blocks of a match in each tier, continued by shared caches that hold the first blocks of the prompt to these depths.
/// Blocks of the match stay in its tiers.
fn extended(mut tiers: PerTier<u32>, shared: &PerTier<u32>) -> PerTier<u32> {
    let mut end: u32 = tiers.0.iter().sum();
    for (tier, depth) in tiers.0.iter_mut().zip(shared.0) {
        *tier += depth.saturating_sub(end);
        end = end.max(depth);
    }
    tiers
}

/// The best rank of an instance.
#[derive(Debug, Clone, Copy, Default)]
struct BestRank {
    score: f64,
    held: u32,
    predicted: u32,
}

impl BestRank {
    /// Replaces this rank if the other one is better.
    fn improve(&mut self, other: Self) {
        if (other.score, other.held) > (self.score, self.held) || self.held + self.predicted == 0 {
            *self = other;
        }
    }
}

impl Scoring<'_> {
    /// Scores the instances that hold a part of the prompt of a search.
    pub(crate) async fn score(&self, search: &Search<'_>, options: &ScoreOptions) -> Scores {
        let scored = self.score_all(search, &options.instances).await.into_iter().map(|scored| scored.score);
        let holds = |scored: &InstanceScore| scored.held_blocks + scored.predicted_blocks > 0;
        let mut instances: Vec<InstanceScore> = scored.filter(holds).collect();
        if let Some(top_k) = options.top_k {
            instances.sort_by(|a, b| b.score.total_cmp(&a.score));
            instances.truncate(top_k.get());
            instances.sort_by(|a, b| a.instance.cmp(&b.instance));
        }
        Scores { instances, blocks: search.blocks(), store: search.store }
    }

    /// Scores all instances that the filter admits, by name.
    pub(crate) async fn score_all(&self, search: &Search<'_>, filter: &InstanceFilter) -> Vec<ScoredInstance> {
        let _lookup = stage(Stage::Lookup);
        let remote = remote_ranks(search);
        let mut instances = listed_instances(&remote, search.local.as_deref(), filter);
        let mut best: FxHashMap<WorkerId, BestRank> = FxHashMap::default();
        let found = search.find_local();
        if let Some(model) = &search.local {
            model.record_query(&found);
        }
        for (variant, query) in search.variants.iter().enumerate() {
            let shared = search.local.as_ref().zip(found.get(variant));
            let mut shared = shared.map(|(model, (_, found))| model.shared_depths(query, found)).unwrap_or_default();
            shared.retain(|rank, _| instances.contains_key(&rank.worker) && !remote.contains_key(rank));
            for (rank, depths) in &shared {
                instances.entry(rank.worker).and_modify(|instance| instance.add_shared(depths));
            }
            let is_scored = |rank: &WorkerRank| instances.contains_key(&rank.worker);
            let found = found.get(variant).into_iter().flat_map(|(_, found)| &found.ranks);
            let counts = |found: &&RankMatch| is_scored(&found.rank) && !remote.contains_key(&found.rank);
            let found: Vec<RankMatch> = found.filter(counts).copied().collect();
            let tiers = match &search.local {
                Some(model) => self.tier_lookups.fastest_tiers(model, query, &found).await,
                None => Vec::new(),
            };
            let own = found.iter().map(|found| found.rank).zip(tiers);
            let own = own.map(|(rank, tiers)| {
                (rank.worker, shared.remove(&rank).map_or(tiers, |depths| extended(tiers, &depths.blocks)))
            });
            let remote = remote.iter().filter(|(rank, _)| is_scored(rank));
            let remote = remote.map(|(rank, remote)| (rank.worker, slowest_tiers(&remote.blocks(variant))));
            self.score_variant(query, own.chain(remote), &instances, &mut best);
            if !shared.is_empty() {
                // Attached ranks that hold nothing of the prompt themselves.
                let held = shared.iter().map(|(rank, it)| (rank.worker, extended(PerTier::default(), &it.blocks)));
                self.score_variant(query, held, &instances, &mut best);
            }
        }
        let scored = instances.into_iter().map(|(worker, listed)| {
            let BestRank { score, held, predicted } = best.get(&worker).copied().unwrap_or_default();
            let score = InstanceScore {
                instance: listed.name,
                score,
                held_blocks: held,
                predicted_blocks: predicted,
                trust: listed.trust.unwrap_or(Trust::Degraded),
                shared: listed.shared.into_iter().collect(),
                partial: listed.is_partial,
            };
            ScoredInstance { worker, score }
        });
        let mut scored: Vec<ScoredInstance> = scored.collect();
        scored.sort_by(|a, b| a.score.instance.cmp(&b.score.instance));
        search.describe_match(|| scored.iter().map(|scored| scored.score.held_blocks).max().unwrap_or(0));
        scored
    }

    /// Scores one hash variant of a prompt: the blocks that workers hold in each tier, and the blocks predicted after them.
    fn score_variant(
        &self,
        query: &[LocalHash],
        held: impl Iterator<Item = (WorkerId, PerTier<u32>)>,
        instances: &BTreeMap<WorkerId, ListedInstance>,
        best: &mut FxHashMap<WorkerId, BestRank>,
    ) {
        let predicted = PredictedPrefixes::new(self.predictions.view(), query);
        for (worker, tiers) in held {
            best.entry(worker).or_default().improve(predicted.best_rank(worker, &tiers, self.weights));
        }
        if predicted.view.is_some() {
            for &worker in instances.keys() {
                let without_blocks = predicted.best_rank(worker, &PerTier::default(), self.weights);
                best.entry(worker).or_default().improve(without_blocks);
            }
        }
    }
}

/// Remote ranks of a search, by their ids in the local index.
type RemoteRanks<'s> = FxHashMap<WorkerRank, RemoteRank<'s>>;

fn remote_ranks<'s>(search: &'s Search<'_>) -> RemoteRanks<'s> {
    let ranks = search.remote_ranks().into_iter().map(|remote| {
        let RemoteListedRank { instance, dp_rank, worker, .. } = remote.rank;
        let local = search.local.as_ref().and_then(|model| model.worker(instance));
        (WorkerRank { worker: local.unwrap_or(*worker), dp_rank: *dp_rank }, remote)
    });
    ranks.collect()
}

/// Instances that the filter admits, with the worst trust among their local and remote ranks.
fn listed_instances(
    remote: &RemoteRanks<'_>,
    local: Option<&Model>,
    filter: &InstanceFilter,
) -> BTreeMap<WorkerId, ListedInstance> {
    let mut instances = local.map(|model| local_instances(remote, model, filter)).unwrap_or_default();
    for (rank, RemoteRank { rank: listed, trust, .. }) in remote {
        if filter.admits(&listed.instance) {
            let new = || ListedInstance::new(&listed.instance);
            let instance = instances.entry(rank.worker).or_insert_with(new);
            instance.trust = instance.trust.max(Some(*trust));
        }
    }
    instances
}

fn local_instances(
    remote: &RemoteRanks<'_>,
    model: &Model,
    filter: &InstanceFilter,
) -> BTreeMap<WorkerId, ListedInstance> {
    let partial = model.partial_ranks();
    let partial = partial.iter().flat_map(|ranks| ranks.iter()).filter(|rank| !remote.contains_key(rank));
    let partial: FxHashSet<WorkerId> = partial.map(|rank| rank.worker).collect();
    let instances = model.instances.read();
    let targets = instances.iter().filter(|(name, _)| name.shared_cache().is_none());
    let admitted = targets.filter(|(name, _)| filter.admits(name));
    let listed = admitted.map(|(name, instance)| {
        let counts = |dp_rank| !remote.contains_key(&WorkerRank { worker: instance.worker, dp_rank });
        let trust = instance.worst_trust(counts);
        let is_partial = partial.contains(&instance.worker);
        (instance.worker, ListedInstance { trust, is_partial, ..ListedInstance::new(name) })
    });
    listed.collect()
}

/// Predictions of a query's prefixes, if there are any predictions.
struct PredictedPrefixes<'a> {
    view: Option<PredictionView<'a>>,
    prefixes: Vec<SequenceHash>,
}

impl<'a> PredictedPrefixes<'a> {
    fn new(view: Option<PredictionView<'a>>, query: &[LocalHash]) -> Self {
        let prefixes = if view.is_some() { sequence_hashes(query).collect() } else { Vec::new() };
        Self { view, prefixes }
    }

    /// A rank that holds `tiers` blocks in each tier, with the blocks predicted after them.
    fn best_rank(&self, worker: WorkerId, tiers: &PerTier<u32>, weights: TierWeights) -> BestRank {
        let held: u32 = tiers.0.iter().sum();
        let mut predicted = 0;
        if let Some(view) = &self.view {
            let (held, next) = self.prefixes.split_at(self.prefixes.len().min(held as usize));
            predicted = view.predicted_depth(worker, held, next);
        }
        // Predicted blocks count as device memory, where an engine computes or loads them.
        let score = weights.score(tiers) + weights.of(Tier::Device) * f64::from(predicted);
        BestRank { score, held, predicted }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn shared_caches_continue_a_match_behind_its_end() {
        let own = PerTier([2, 1, 0, 0]);
        assert_eq!(extended(own, &PerTier([0, 5, 5, 9])), PerTier([2, 3, 0, 4]));
        assert_eq!(extended(own, &PerTier([0, 2, 3, 3])), own, "what the rank holds itself stays in its tiers");
        assert_eq!(extended(PerTier::default(), &PerTier([0, 0, 4, 4])), PerTier([0, 0, 4, 0]));
    }

    proptest! {
        #[test]
        fn a_score_from_depths_never_exceeds_the_score_from_exact_tiers(
            tiers in proptest::collection::vec(0..Tier::ALL.len(), 0..20),
            mut weights in proptest::array::uniform4(0.0_f64..4.0),
        ) {
            weights.sort_by(|a, b| b.total_cmp(a));
            let weights = TierWeights::new(PerTier(weights)).expect("weights fall from tier to tier");
            let (mut each, mut depths) = (PerTier::default(), PerTier::default());
            for &tier in &tiers {
                each.0[tier] += 1;
            }
            for slowest in Tier::ALL {
                depths[slowest] = tiers.iter().take_while(|tier| **tier <= slowest as usize).count() as u32;
            }
            let (exact, lower_bound) = (weights.score(&each), weights.score(&slowest_tiers(&depths)));
            prop_assert!(lower_bound <= exact + 1e-9, "{lower_bound} is more than {exact}");
            if tiers.is_sorted() {
                prop_assert_eq!(lower_bound, exact);
            }
        }
    }
}
