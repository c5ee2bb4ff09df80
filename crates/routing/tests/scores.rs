//! Scores equal the scores in another system's tests, and predicted entries equal those of a plain list.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use flash_indexer_core::oracle::Oracle;
use flash_indexer_core::{
    Block, BlockEvent, DpRank, LocalHash, LockedIndex, SequenceHash, SharedIndex, Tier, WorkerId, WorkerRank,
};
use flash_indexer_designs::Design;
use flash_indexer_routing::{InstanceFilter, PredictedBlocks, TierWeights};
use flash_indexer_test_support::testdata;
use flash_indexer_types::InstanceId;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::subsequence;
use serde_json::{Value, json};

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn numbers(value: &Value) -> Vec<u64> {
    list(value).iter().map(|number| number.as_u64().expect("a number")).collect()
}

/// Stores the blocks that the pods of a case hold. Returns the pods by name.
fn filled<'c>(case: &'c Value, index: &dyn SharedIndex) -> BTreeMap<&'c str, WorkerRank> {
    let keys = numbers(&case["keys"]);
    let mut pods = BTreeMap::new();
    for (at, &key) in keys.iter().enumerate() {
        for hit in case["hits"].get(key.to_string()).map(list).unwrap_or_default() {
            let (pod, tier) = (hit[0].as_str().expect("a pod"), hit[1].as_str().expect("a tier"));
            let worker = WorkerId(pods.len() as u64);
            let rank = *pods.entry(pod).or_insert(WorkerRank { worker, dp_rank: DpRank(0) });
            let tier = if tier == "gpu" { Tier::Device } else { Tier::Host };
            let parent = at.checked_sub(1).map(|before| SequenceHash(keys[before]));
            let blocks = vec![Block { sequence: SequenceHash(key), local: LocalHash(key) }];
            index.apply(rank, &BlockEvent::Stored { tier, parent, blocks, copies: 1 });
        }
    }
    pods
}

fn check(case: &Value, weights: TierWeights, index: &dyn SharedIndex) {
    let pods = filled(case, index);
    let query: Vec<LocalHash> = numbers(&case["keys"]).into_iter().map(LocalHash).collect();
    let instance = |pod: &str| InstanceId::parse(pod).expect("a name");
    let filter = case["pods"].as_array().into_iter().flatten();
    let filter: InstanceFilter = filter.map(|pod| instance(pod.as_str().expect("a pod"))).collect();
    let found = index.find(&query).ranks;
    let tiers = index.fastest_tiers(&query, &found);
    let mut scores = BTreeMap::new();
    for (found, tiers) in found.iter().zip(&tiers) {
        let pod = pods.iter().find(|&(_, rank)| *rank == found.rank).expect("a pod of the case").0;
        if filter.admits(&instance(pod)) {
            scores.insert(*pod, weights.score(tiers));
        }
    }
    let expected = if case["scores"].is_null() { json!({}) } else { case["scores"].clone() };
    assert_eq!(json!(scores), expected, "{case}");
}

#[test]
fn scores_are_those_of_the_vectors() {
    let data = testdata();
    let vectors = std::fs::read_to_string(data.join("vectors/llm-d.json")).expect("the vectors");
    let vectors: Value = serde_json::from_str(&vectors).expect("JSON");
    let mut checked = 0;
    for (section, weights) in [("default_weights", ""), ("weights_gpu1_cpu05", "gpu=1.0,cpu=0.5")] {
        let weights = weights.parse().expect("weights");
        for case in list(&vectors["scoring"][section]) {
            let oracle: Box<dyn SharedIndex> = Box::new(LockedIndex::<Oracle>::default());
            for index in [oracle, Design::Run.build(), Design::Positional.build()] {
                check(case, weights, &*index);
            }
            checked += 1;
        }
    }
    assert_eq!(checked, 10);
}

#[test]
fn each_block_counts_with_its_own_fastest_tier() {
    let (pod, keys) = ("pod-a", [1, 2, 3]);
    let hits = json!({ "1": [[pod, "gpu"]], "2": [[pod, "cpu"]], "3": [[pod, "gpu"], [pod, "cpu"]] });
    for index in [Design::Run.build(), Design::RadixTree.build()] {
        let case = json!({ "keys": keys, "hits": hits, "scores": { pod: 2.8 } });
        check(&case, TierWeights::default(), &*index);
    }
    let case = json!({ "keys": keys, "hits": hits, "scores": { pod: 3.0 } });
    let longest_prefix = "gpu=1,cpu=1,disk=1,external=1".parse().expect("weights");
    check(&case, longest_prefix, &*Design::Run.build());
}

#[derive(Debug, Clone)]
enum Step {
    Wait(u64),
    Predict(u64, Vec<u64>, u64),
    Confirm(u64, Vec<u64>),
}

/// Blocks of a prompt: no two are alike, because each represents the whole prefix before it.
fn prompt() -> impl Strategy<Value = Vec<u64>> {
    subsequence((0..6u64).collect::<Vec<_>>(), 0..5).prop_shuffle()
}

fn prediction() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..200u64).prop_map(Step::Wait),
        3 => (0..2u64, prompt(), 0..400u64).prop_map(|(worker, blocks, ttl)| Step::Predict(worker, blocks, ttl)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => prediction(),
        1 => (0..2u64, prompt()).prop_map(|(worker, blocks)| Step::Confirm(worker, blocks)),
    ]
}

fn hashes(blocks: &[u64]) -> Vec<SequenceHash> {
    blocks.iter().copied().map(SequenceHash).collect()
}

/// Every prediction ever made and not confirmed, scanned for every query.
#[derive(Default)]
struct Plain {
    now: u64,
    predicted: Vec<(u64, u64, u64)>,
}

impl Plain {
    fn apply(&mut self, step: &Step, blocks: &mut PredictedBlocks) -> u64 {
        let now = Duration::from_millis(self.now);
        match step {
            Step::Wait(ms) => self.now += ms,
            Step::Predict(worker, names, ttl) => {
                self.predicted.extend(names.iter().map(|&name| (*worker, name, self.now + ttl)));
                return blocks.predict(WorkerId(*worker), &hashes(names), Duration::from_millis(*ttl), now).evicted;
            }
            Step::Confirm(worker, names) => {
                // The bookkeeping of ended entries changes no answer.
                let is_known = |name: &&u64| self.counts(*worker, **name);
                let confirmed: BTreeSet<u64> = names.iter().rev().take_while(is_known).copied().collect();
                self.predicted.retain(|&(other, name, _)| other != *worker || !confirmed.contains(&name));
                blocks.expire(now);
                blocks.confirm(WorkerId(*worker), &hashes(names), now);
            }
        }
        0
    }

    fn counts(&self, worker: u64, name: u64) -> bool {
        self.predicted.iter().any(|&(of, known, end)| (of, known) == (worker, name) && self.now < end)
    }

    fn following(&self, worker: u64, names: &[u64]) -> usize {
        names.iter().take_while(|&&name| self.counts(worker, name)).count()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn predictions_count_until_they_end(steps in vec(step(), 1..40), asked in vec(vec(0..6u64, 0..4), 4)) {
        let (mut plain, mut blocks) = (Plain::default(), PredictedBlocks::new(1 << 20));
        for step in &steps {
            prop_assert_eq!(plain.apply(step, &mut blocks), 0);
            for (worker, names) in (0..2).flat_map(|worker| asked.iter().map(move |names| (worker, names))) {
                let now = Duration::from_millis(plain.now);
                let following = blocks.predicted_depth(WorkerId(worker), &hashes(names), now);
                prop_assert_eq!(following, plain.following(worker, names), "{:?} of {}", names, worker);
            }
        }
        blocks.expire(Duration::from_millis(plain.now + 1_000));
        prop_assert!(blocks.is_empty());
    }

    #[test]
    fn a_bound_forgets_and_never_makes_up(steps in vec(prediction(), 1..60), asked in vec(vec(0..6u64, 0..4), 4)) {
        let (mut plain, mut blocks) = (Plain::default(), PredictedBlocks::new(4));
        for step in &steps {
            plain.apply(step, &mut blocks);
            prop_assert!(blocks.len() <= 4);
            for (worker, names) in (0..2).flat_map(|worker| asked.iter().map(move |names| (worker, names))) {
                let now = Duration::from_millis(plain.now);
                let following = blocks.predicted_depth(WorkerId(worker), &hashes(names), now);
                prop_assert!(following <= plain.following(worker, names), "{:?} of {}", names, worker);
            }
        }
    }
}

#[test]
fn the_prediction_that_would_end_soonest_makes_room() {
    let mut blocks = PredictedBlocks::new(4);
    let (worker, second) = (WorkerId(1), Duration::from_secs(1));
    assert_eq!(blocks.predict(worker, &hashes(&[1, 2]), 2 * second, Duration::ZERO).evicted, 0);
    assert_eq!(blocks.predict(worker, &hashes(&[3, 4]), second, Duration::ZERO).evicted, 0);
    assert_eq!(blocks.predict(worker, &hashes(&[5]), second, Duration::ZERO).evicted, 2);
    let following = |names: &[u64]| blocks.predicted_depth(worker, &hashes(names), Duration::ZERO);
    assert_eq!([following(&[1, 2]), following(&[3]), following(&[5])], [2, 0, 1]);
    let large = blocks.predict(worker, &hashes(&[11, 12, 13, 14, 15, 16]), second, Duration::ZERO);
    assert_eq!((large.blocks, large.evicted), (4, 2 + 3));
}
