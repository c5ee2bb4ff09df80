//! Scores of pods.

mod pod_filter;
mod predicted_blocks;
mod tier_weights;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use flash_indexer_core::hashing::sequence_hashes;
use flash_indexer_core::{LocalHash, PerTier, RankMatch, SequenceHash, Tier, WorkerId, WorkerRank};
use rustc_hash::{FxHashMap, FxHashSet};

pub use self::pod_filter::PodFilter;
pub use self::predicted_blocks::{Predicted, PredictedBlocks, PredictionLimits};
pub use self::tier_weights::{TierWeights, TierWeightsError};

use crate::answer::StoreAnswer;
use crate::model::Model;
use crate::predictions::{PredictionView, Predictions};
use crate::search::{RemoteRank, Search};
use crate::shared_store::RemoteListedRank;
use crate::tier_lookups::TierLookups;
use flash_indexer_types::InstanceId;
use flash_indexer_types::Trust;

/// Which pods a score is wanted of.
#[derive(Debug, Clone, Default)]
pub struct ScoreOptions {
    /// Only these.
    pub pods: PodFilter,
    /// Only so many with the highest scores; of equals, the first by name.
    pub top_k: Option<NonZeroUsize>,
}

/// What one pod's cache is worth to a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct PodScore {
    /// The pod: an engine instance.
    pub pod: InstanceId,
    /// Sum of the weights of the blocks below.
    pub score: f64,
    /// Leading blocks of the prompt that its best rank holds in any tier.
    pub held_blocks: u32,
    /// Blocks after those that it is predicted to hold soon.
    pub predicted_blocks: u32,
    /// How far the index can be believed about it: the worst of its ranks.
    pub trust: Trust,
    /// Whether the index has had to forget some of what one of its ranks holds: then the score may be too low.
    pub partial: bool,
}

/// The pods that hold something of a prompt, by name.
#[derive(Debug, Clone, Default)]
pub struct Scores {
    /// Pods with at least one block.
    pub pods: Vec<PodScore>,
    /// Complete blocks of the prompt.
    pub blocks: usize,
    /// What the shared index had to say.
    pub store: StoreAnswer,
}

/// What scores are made with.
pub(crate) struct Scoring<'a> {
    pub weights: TierWeights,
    pub predictions: &'a Predictions,
    pub lookups: &'a TierLookups,
}

/// A pod that is asked about.
struct Pod {
    name: InstanceId,
    /// The worst of its ranks; none if nobody listens to any.
    trust: Option<Trust>,
    is_partial: bool,
}

/// The best that a pod has to offer.
#[derive(Debug, Clone, Copy, Default)]
struct BestRank {
    score: f64,
    held: u32,
    predicted: u32,
}

impl BestRank {
    fn improve(&mut self, other: Self) {
        if (other.score, other.held) > (self.score, self.held) || self.held + self.predicted == 0 {
            *self = other;
        }
    }
}

impl Scoring<'_> {
    /// What each pod's cache is worth to a prompt.
    pub(crate) async fn score(&self, search: &Search<'_>, options: &ScoreOptions) -> Scores {
        let elsewhere = RemoteRanks::of(search);
        let pods = elsewhere.pods(search.here.as_deref(), &options.pods);
        let mut best: FxHashMap<WorkerId, BestRank> = FxHashMap::default();
        let found = search.find_here();
        if let Some(model) = &search.here {
            model.note_query(&found);
        }
        let is_asked = |rank: &WorkerRank| pods.contains_key(&rank.worker);
        for (form, query) in search.forms.iter().enumerate() {
            let found = found.get(form).into_iter().flat_map(|(_, found)| &found.ranks);
            let counts = |found: &&RankMatch| is_asked(&found.rank) && !elsewhere.ranks.contains_key(&found.rank);
            let found: Vec<RankMatch> = found.filter(counts).copied().collect();
            let tiers = match &search.here {
                Some(model) => self.lookups.fastest_tiers(model, query, &found).await,
                None => Vec::new(),
            };
            let here = found.iter().map(|found| found.rank.worker).zip(tiers);
            let others = elsewhere.ranks.iter().filter(|(rank, _)| is_asked(rank));
            let others = others.map(|(rank, other)| (rank.worker, slowest_tiers(&other.blocks(form))));
            self.score_form(query, here.chain(others), &pods, &mut best);
        }
        let pods = pods.into_iter().filter_map(|(worker, pod)| {
            let BestRank { score, held, predicted } = *best.get(&worker)?;
            let score = PodScore {
                pod: pod.name,
                score,
                held_blocks: held,
                predicted_blocks: predicted,
                trust: pod.trust.unwrap_or(Trust::Degraded),
                partial: pod.is_partial,
            };
            (held + predicted > 0).then_some(score)
        });
        let mut pods: Vec<PodScore> = pods.collect();
        pods.sort_by(|a, b| a.pod.cmp(&b.pod));
        if let Some(top_k) = options.top_k {
            pods.sort_by(|a, b| b.score.total_cmp(&a.score));
            pods.truncate(top_k.get());
            pods.sort_by(|a, b| a.pod.cmp(&b.pod));
        }
        let blocks = search.forms.iter().map(|form| form.len()).max().unwrap_or(0);
        Scores { pods, blocks, store: search.store }
    }

    /// Takes in what workers hold of one form of a prompt, by tier, and what is predicted to follow that.
    fn score_form(
        &self,
        query: &[LocalHash],
        held: impl Iterator<Item = (WorkerId, PerTier<u32>)>,
        pods: &BTreeMap<WorkerId, Pod>,
        best: &mut FxHashMap<WorkerId, BestRank>,
    ) {
        let ahead = PredictedPrefixes::of(self.predictions.look(), query);
        for (worker, tiers) in held {
            best.entry(worker).or_default().improve(ahead.from(worker, &tiers, self.weights));
        }
        if ahead.view.is_some() {
            for &worker in pods.keys() {
                let nothing = ahead.from(worker, &PerTier::default(), self.weights);
                best.entry(worker).or_default().improve(nothing);
            }
        }
    }
}

/// Ranks that count as other replicas have published them, by their names here.
struct RemoteRanks<'s> {
    ranks: FxHashMap<WorkerRank, RemoteRank<'s>>,
}

impl<'s> RemoteRanks<'s> {
    fn of(search: &'s Search<'_>) -> Self {
        let ranks = search.elsewhere().into_iter().map(|elsewhere| {
            let RemoteListedRank { instance, dp_rank, worker, .. } = elsewhere.rank;
            let here = search.here.as_ref().and_then(|model| model.worker(instance));
            (WorkerRank { worker: here.unwrap_or(*worker), dp_rank: *dp_rank }, elsewhere)
        });
        Self { ranks: ranks.collect() }
    }

    /// Instances that are asked about, with what is to be said of all of their ranks.
    fn pods(&self, here: Option<&Model>, filter: &PodFilter) -> BTreeMap<WorkerId, Pod> {
        let mut pods = here.map(|model| self.pods_here(model, filter)).unwrap_or_default();
        for (rank, RemoteRank { rank: listed, trust, .. }) in &self.ranks {
            if filter.admits(listed.instance.as_key()) {
                let new = || Pod { name: listed.instance.clone(), trust: None, is_partial: false };
                let pod = pods.entry(rank.worker).or_insert_with(new);
                pod.trust = pod.trust.max(Some(*trust));
            }
        }
        pods
    }

    fn pods_here(&self, model: &Model, filter: &PodFilter) -> BTreeMap<WorkerId, Pod> {
        let partial = model.partial_ranks();
        let partial = partial.iter().flat_map(|ranks| ranks.iter()).filter(|rank| !self.ranks.contains_key(rank));
        let partial: FxHashSet<WorkerId> = partial.map(|rank| rank.worker).collect();
        let instances = model.instances.read();
        let asked = instances.iter().filter(|(name, _)| filter.admits(name.as_key()));
        let pods = asked.map(|(name, instance)| {
            let counts = |dp_rank| !self.ranks.contains_key(&WorkerRank { worker: instance.worker, dp_rank });
            let trust = instance.worst_trust(counts);
            (instance.worker, Pod { name: name.clone(), trust, is_partial: partial.contains(&instance.worker) })
        });
        pods.collect()
    }
}

/// How many blocks count in each tier, of a prefix of which only is known how far it goes when a tier and the faster ones are
/// used together. A block counts in the slowest tier that is needed for what is before it, if that is slower than its own:
/// so a score is never too high, and exact where no block lies in a faster tier than one before it.
pub(crate) fn slowest_tiers(depths: &PerTier<u32>) -> PerTier<u32> {
    let mut tiers = *depths;
    for tier in (1..tiers.0.len()).rev() {
        tiers.0[tier] -= tiers.0[tier - 1];
    }
    tiers
}

/// What is predicted of a query's prefixes, if anything is.
struct PredictedPrefixes<'a> {
    view: Option<PredictionView<'a>>,
    prefixes: Vec<SequenceHash>,
}

impl<'a> PredictedPrefixes<'a> {
    fn of(view: Option<PredictionView<'a>>, query: &[LocalHash]) -> Self {
        let prefixes = if view.is_some() { sequence_hashes(query).collect() } else { Vec::new() };
        Self { view, prefixes }
    }

    /// What a rank offers that holds so many blocks in each tier, with what is predicted to follow them.
    fn from(&self, worker: WorkerId, tiers: &PerTier<u32>, weights: TierWeights) -> BestRank {
        let held = tiers.0.iter().sum();
        let mut predicted = 0;
        if let Some(view) = &self.view {
            let (here, ahead) = self.prefixes.split_at(self.prefixes.len().min(held as usize));
            predicted = view.following(worker, here, ahead);
        }
        // What is computed or fetched for the prompt goes into device memory.
        let score = weights.score(tiers) + weights.of(Tier::Device) * f64::from(predicted);
        BestRank { score, held, predicted }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn depths_never_tell_more_than_each_blocks_tier(
            tiers in proptest::collection::vec(0..Tier::ALL.len(), 0..20),
            mut weights in proptest::array::uniform4(0.0_f64..4.0),
        ) {
            weights.sort_by(|a, b| b.total_cmp(a));
            let weights = TierWeights::new(PerTier(weights)).expect("they fall");
            let (mut each, mut depths) = (PerTier::default(), PerTier::default());
            for &tier in &tiers {
                each.0[tier] += 1;
            }
            for slowest in Tier::ALL {
                depths[slowest] = tiers.iter().take_while(|tier| **tier <= slowest as usize).count() as u32;
            }
            let (exact, told) = (weights.score(&each), weights.score(&slowest_tiers(&depths)));
            prop_assert!(told <= exact + 1e-9, "{told} is more than {exact}");
            if tiers.is_sorted() {
                prop_assert_eq!(told, exact);
            }
        }
    }
}
