//! Scores of pods.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use flash_indexer_core::hashing::sequence_hashes;
use flash_indexer_core::{LocalHash, MatchScores, PerTier, RankMatch, SequenceHash, SharedIndex, Tier, WorkerId};
use flash_indexer_prompt::score::{PodFilter, TierWeights};
use rustc_hash::FxHashMap;

use crate::ingest::Trust;
use crate::instance::InstanceId;
use crate::model::Model;
use crate::predictions::{Outlook, Predictions};

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
}

/// The pods that hold something of a prompt, by name.
#[derive(Debug, Clone, Default)]
pub struct Scores {
    /// Pods with at least one block.
    pub pods: Vec<PodScore>,
    /// Complete blocks of the prompt.
    pub blocks: usize,
}

/// What scores are made with.
pub(crate) struct Scoring<'a> {
    pub(crate) weights: TierWeights,
    pub(crate) predictions: &'a Predictions,
}

/// The best that a pod has to offer.
#[derive(Debug, Clone, Copy, Default)]
struct Best {
    score: f64,
    held: u32,
    predicted: u32,
}

impl Best {
    fn improve(&mut self, other: Self) {
        if (other.score, other.held) > (self.score, self.held) || self.held + self.predicted == 0 {
            *self = other;
        }
    }
}

impl Model {
    /// What each pod's cache is worth to a prompt, given as queries in the forms that engines use.
    pub(crate) fn score(
        &self,
        queries: &[(Vec<LocalHash>, MatchScores)],
        options: &ScoreOptions,
        scoring: &Scoring<'_>,
    ) -> Scores {
        let pods = self.pods(&options.pods);
        let mut best: FxHashMap<WorkerId, Best> = FxHashMap::default();
        for (query, found) in queries {
            self.score_query(query, found, &pods, scoring, &mut best);
        }
        let pods = pods.into_iter().filter_map(|(worker, (pod, trust))| {
            let Best { score, held, predicted } = *best.get(&worker)?;
            let score = PodScore { pod, score, held_blocks: held, predicted_blocks: predicted, trust };
            (held + predicted > 0).then_some(score)
        });
        let mut pods: Vec<PodScore> = pods.collect();
        pods.sort_by(|a, b| a.pod.cmp(&b.pod));
        if let Some(top_k) = options.top_k {
            pods.sort_by(|a, b| b.score.total_cmp(&a.score));
            pods.truncate(top_k.get());
            pods.sort_by(|a, b| a.pod.cmp(&b.pod));
        }
        let predicted = pods.iter().map(|pod| u64::from(pod.predicted_blocks)).sum();
        self.metrics.scored(pods.len(), predicted);
        Scores { pods, blocks: queries.iter().map(|(query, _)| query.len()).max().unwrap_or(0) }
    }

    /// Registered instances that are asked about.
    fn pods(&self, filter: &PodFilter) -> BTreeMap<WorkerId, (InstanceId, Trust)> {
        let instances = self.instances.read();
        let asked = instances.iter().filter(|(name, _)| filter.admits(name.as_key()));
        asked.map(|(name, instance)| (instance.worker, (name.clone(), instance.worst_trust()))).collect()
    }

    fn score_query(
        &self,
        query: &[LocalHash],
        found: &MatchScores,
        pods: &BTreeMap<WorkerId, (InstanceId, Trust)>,
        scoring: &Scoring<'_>,
        best: &mut FxHashMap<WorkerId, Best>,
    ) {
        let is_asked = |found: &&RankMatch| pods.contains_key(&found.rank.worker);
        let found: Vec<RankMatch> = found.ranks.iter().filter(is_asked).copied().collect();
        let tiers = self.index.fastest_tiers(query, &found);
        let mut ahead = Ahead::of(scoring.predictions.look(), query);
        for (found, tiers) in found.iter().zip(&tiers) {
            let worker = found.rank.worker;
            let held = tiers.0.iter().sum();
            best.entry(worker).or_default().improve(ahead.from(worker, held, tiers, scoring.weights));
        }
        if ahead.outlook.is_some() {
            for &worker in pods.keys() {
                let nothing = ahead.from(worker, 0, &PerTier::default(), scoring.weights);
                best.entry(worker).or_default().improve(nothing);
            }
        }
    }
}

/// What is predicted of a query's prefixes, if anything is.
struct Ahead<'a> {
    outlook: Option<Outlook<'a>>,
    prefixes: Vec<SequenceHash>,
}

impl<'a> Ahead<'a> {
    fn of(outlook: Option<Outlook<'a>>, query: &[LocalHash]) -> Self {
        let prefixes = if outlook.is_some() { sequence_hashes(query).collect() } else { Vec::new() };
        Self { outlook, prefixes }
    }

    /// What a rank offers that holds so many blocks, with what is predicted to follow them.
    fn from(&mut self, worker: WorkerId, held: u32, tiers: &PerTier<u32>, weights: TierWeights) -> Best {
        let mut predicted = 0;
        if let Some(outlook) = &mut self.outlook {
            let (here, ahead) = self.prefixes.split_at(self.prefixes.len().min(held as usize));
            outlook.confirm(worker, here);
            predicted = outlook.following(worker, ahead);
        }
        // What is computed or fetched for the prompt goes into device memory.
        let score = weights.score(tiers) + weights.of(Tier::Device) * f64::from(predicted);
        Best { score, held, predicted }
    }
}
