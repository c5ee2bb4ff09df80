//! The choice of an instance for a prompt, by its held blocks and its load.

use flash_indexer_types::{InstanceId, Trust};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::in_flight::InstanceLoad;

/// Limit of a weight: a cost stays finite for every number of blocks and every load.
pub const WEIGHT_MAX: f64 = 1e12;

/// Weights of the terms of a cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostWeights {
    /// Weight of a block that the instance has to compute: of this prompt, and of the requests in flight.
    pub prefill: f64,
    /// Weight of a block in use: of this prompt, and of the requests in flight.
    pub active: f64,
    /// Weight of a request in flight.
    pub requests: f64,
}

impl Default for CostWeights {
    /// Dynamo's weights: one for the blocks to compute, one for the blocks in use.
    fn default() -> Self {
        Self { prefill: 1.0, active: 1.0, requests: 0.0 }
    }
}

/// How an instance is picked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PickOptions {
    /// Weights of the cost.
    pub weights: CostWeights,
    /// Randomness of the choice: 0 picks the lowest cost; with 1, the highest cost is e times less likely than the lowest.
    pub temperature: f64,
    /// Seed of the choice. The same costs, instances, temperature and seed pick the same instance.
    pub seed: u64,
    /// Limit of the requests in flight of an instance. An instance with that number or more is not picked; none means no limit.
    pub requests_max: Option<u32>,
}

/// An instance that may be picked, with everything that its cost depends on.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The instance.
    pub instance: InstanceId,
    /// Weighted number of the prompt's blocks that it holds or is predicted to hold, as in a score.
    pub score: f64,
    /// Leading blocks of the prompt that it holds in any tier.
    pub held_blocks: u32,
    /// Blocks after the held ones that it is predicted to hold.
    pub predicted_blocks: u32,
    /// Worst trust among its ranks.
    pub trust: Trust,
    /// Requests in flight.
    pub load: InstanceLoad,
    /// Whether all of its engines are connected. An instance that is not ready is never picked.
    pub is_ready: bool,
}

impl Candidate {
    /// Whether the instance may be picked.
    fn may_be_picked(&self, options: PickOptions) -> bool {
        self.is_ready && options.requests_max.is_none_or(|max| self.load.requests < max)
    }

    /// Blocks of a prompt of `blocks` blocks that the instance would have to compute.
    #[must_use]
    pub fn new_blocks(&self, blocks: usize) -> f64 {
        (blocks as f64 - self.score).max(0.0)
    }

    /// The cost of a prompt of `blocks` blocks; lower is better.
    #[must_use]
    pub fn cost(&self, blocks: usize, weights: CostWeights) -> f64 {
        let prefill = self.new_blocks(blocks) + self.load.prefill_blocks as f64;
        let active = blocks as f64 + self.load.active_blocks as f64;
        weights.prefill * prefill + weights.active * active + weights.requests * f64::from(self.load.requests)
    }
}

/// Index of the picked candidate; none if none is ready and below the limit of requests. Costs one pass, in any order.
///
/// With a temperature, an instance is picked with a probability proportional to `exp(-n / temperature)`, where `n` is its cost
/// scaled to 0 for the lowest and 1 for the highest cost of a ready candidate. Equal costs are equally likely, also with
/// temperature 0.
#[must_use]
pub fn pick(candidates: &[Candidate], blocks: usize, options: PickOptions) -> Option<usize> {
    let ready = || candidates.iter().enumerate().filter(|(_, candidate)| candidate.may_be_picked(options));
    let costs = || ready().map(|(_, candidate)| candidate.cost(blocks, options.weights));
    let lowest = costs().min_by(f64::total_cmp)?;
    let range = costs().max_by(f64::total_cmp)? - lowest;
    let key = |candidate: &Candidate| {
        let cost = candidate.cost(blocks, options.weights);
        let scaled = if range > 0.0 { (cost - lowest) / range } else { 0.0 };
        let random = uniform(options.seed, &candidate.instance);
        match options.temperature > 0.0 {
            // The lowest of these is distributed as a softmax: the negative logarithm of an exponential variable has a Gumbel distribution.
            true => (scaled / options.temperature + (-random.ln()).ln(), random),
            false => (scaled, random),
        }
    };
    let first = |a: &(f64, f64), b: &(f64, f64)| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1));
    let picked = ready().min_by(|(_, a), (_, b)| first(&key(a), &key(b)).then_with(|| a.instance.cmp(&b.instance)));
    picked.map(|(at, _)| at)
}

/// A number between 0 and 1, exclusive, that depends on the seed and the instance alone.
fn uniform(seed: u64, instance: &InstanceId) -> f64 {
    let bits = xxh3_64_with_seed(instance.as_key().as_bytes(), seed) >> 11;
    (bits as f64 + 0.5) / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(name: &str, score: f64, load: InstanceLoad) -> Candidate {
        Candidate {
            instance: InstanceId::parse(name).expect("a name"),
            score,
            held_blocks: score as u32,
            predicted_blocks: 0,
            trust: Trust::Exact,
            load,
            is_ready: true,
        }
    }

    fn options(temperature: f64, seed: u64) -> PickOptions {
        PickOptions { weights: CostWeights::default(), temperature, seed, requests_max: None }
    }

    const BUSY: InstanceLoad = InstanceLoad { requests: 2, prefill_blocks: 6, active_blocks: 20 };

    #[test]
    fn the_cost_weighs_new_blocks_against_the_load() {
        let (idle, holder) = (candidate("idle", 0.0, InstanceLoad::default()), candidate("holder", 8.0, BUSY));
        let weights = CostWeights { requests: 3.0, ..CostWeights::default() };
        assert_eq!(idle.cost(10, weights), 10.0 + 10.0);
        assert_eq!(holder.cost(10, weights), (2.0 + 6.0) + (10.0 + 20.0) + 3.0 * 2.0);
        let more_than_the_prompt = candidate("weights", 30.0, InstanceLoad::default());
        assert_eq!(more_than_the_prompt.cost(10, weights), 10.0, "no less than nothing is to be computed");
        let both = [idle, holder];
        assert_eq!(pick(&both, 10, options(0.0, 7)), Some(0));
        let prefill_only = CostWeights { active: 0.0, ..CostWeights::default() };
        assert_eq!(pick(&both, 10, PickOptions { weights: prefill_only, ..options(0.0, 7) }), Some(1));
    }

    #[test]
    fn an_instance_at_the_limit_of_requests_is_not_picked() {
        let candidates = [candidate("holder", 9.0, BUSY), candidate("idle", 0.0, InstanceLoad { requests: 1, ..BUSY })];
        let limited = |max| PickOptions { requests_max: Some(max), ..options(0.0, 1) };
        assert_eq!(pick(&candidates, 10, limited(3)), Some(0));
        assert_eq!(pick(&candidates, 10, limited(2)), Some(1), "the holder has 2");
        assert_eq!(pick(&candidates, 10, limited(1)), None);
    }

    #[test]
    fn an_instance_that_is_not_ready_is_never_picked() {
        let mut candidates = [candidate("a", 9.0, InstanceLoad::default()), candidate("b", 0.0, BUSY)];
        candidates[0].is_ready = false;
        for seed in 0..100 {
            assert_eq!(pick(&candidates, 10, options(5.0, seed)), Some(1));
        }
        candidates[1].is_ready = false;
        assert_eq!(pick(&candidates, 10, options(0.0, 0)), None);
        assert_eq!(pick(&[], 10, options(0.0, 0)), None);
    }

    #[test]
    fn the_temperature_gives_the_probabilities_of_a_softmax() {
        // Costs 10, 15 and 20: scaled 0, 0.5 and 1.
        let candidates =
            [10.0, 5.0, 0.0].map(|score| candidate(&format!("pod-{score}"), score, InstanceLoad::default()));
        let temperature = 0.5;
        let mut picked = [0.0; 3];
        const PICKS: u32 = 20_000;
        for seed in 0..u64::from(PICKS) {
            picked[pick(&candidates, 10, options(temperature, seed)).expect("a pick")] += 1.0 / f64::from(PICKS);
        }
        let weights = [0.0_f64, 0.5, 1.0].map(|scaled| (-scaled / temperature).exp());
        let sum: f64 = weights.iter().sum();
        for (picked, weight) in picked.into_iter().zip(weights) {
            // Five standard deviations.
            assert!((picked - weight / sum).abs() < 0.018, "{picked} instead of {}", weight / sum);
        }
    }

    #[test]
    fn a_seed_picks_the_same_instance_in_any_order_and_equal_costs_are_equally_likely() {
        let mut candidates: Vec<_> =
            (0..4).map(|at| candidate(&format!("pod-{at}"), 0.0, InstanceLoad::default())).collect();
        let mut picked = [0; 4];
        for seed in 0..4_000 {
            let name = candidates[pick(&candidates, 3, options(0.0, seed)).expect("a pick")].instance.clone();
            candidates.rotate_left(1);
            assert_eq!(candidates[pick(&candidates, 3, options(0.0, seed)).expect("a pick")].instance, name);
            picked[name.as_key()[4..].parse::<usize>().expect("a number")] += 1;
        }
        assert!(picked.iter().all(|&count| (850..1_150).contains(&count)), "{picked:?}");
    }
}
