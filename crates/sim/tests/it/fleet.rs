//! A fleet's events describe its caches: the oracle, after applying them, predicts every reuse.

use std::collections::BTreeSet;

use flash_indexer_core::oracle::Oracle;
use flash_indexer_core::run::RunIndex;
use flash_indexer_core::{BlockEvent, LocalHash, LockedIndex, SequenceHash, SharedIndex, Tier, WorkerRank};
use flash_indexer_sim::workload::HashedPrompt;
use flash_indexer_sim::{Fleet, FleetOptions, FleetStep, HashSeeds, HoleShare, Routing};

/// Conversations that grow turn by turn over a shared prefix, some of them repeated unchanged.
fn prompts() -> Vec<Vec<u64>> {
    let mut open: Vec<Vec<u64>> = (0..4).map(|chat| vec![0, 100 + chat]).collect();
    let mut prompts = Vec::new();
    for turn in 0..40u64 {
        let chat = (turn * 7 % 4) as usize;
        open[chat].push(1_000 + turn);
        if open[chat].len() > 6 {
            open[chat].truncate(2);
        }
        prompts.push(open[chat].clone());
        if turn % 3 == 0 {
            prompts.push(open[(chat + 1) % 4].clone());
        }
    }
    prompts
}

fn options() -> FleetOptions {
    FleetOptions { workers: 3, blocks: 20, blocks_per_hash_id: 2, ..FleetOptions::default() }
}

fn play(options: FleetOptions) -> Vec<FleetStep> {
    let mut fleet = Fleet::new(options);
    let prompts = prompts();
    let hashed = prompts.iter().zip(0..).map(|(hash_ids, at_ms)| HashedPrompt { at_ms, hash_ids, output_ids: &[] });
    hashed.map(|prompt| fleet.serve(prompt).expect("the caches are large enough")).collect()
}

fn depth(index: &dyn SharedIndex, query: &[LocalHash], rank: WorkerRank) -> usize {
    index.find(query).get(rank).map_or(0, |found| found.blocks[Tier::Device] as usize)
}

/// Applies the steps to the oracle and to a design; before each step both must predict the worker's reuse.
fn check(options: FleetOptions) -> Vec<FleetStep> {
    let steps = play(options);
    let oracle = LockedIndex::<Oracle>::default();
    let design = RunIndex::default();
    let mut reused = 0;
    for step in &steps {
        assert_eq!(depth(&oracle, &step.query, step.rank), step.reused);
        assert_eq!(depth(&design, &step.query, step.rank), step.reused);
        reused += step.reused;
        for event in &step.events {
            let (applied, expected) = (design.apply(step.rank, event), oracle.apply(step.rank, event));
            assert_eq!((applied.unknown, applied.removed), (0, expected.removed), "{event:?}");
        }
    }
    assert!(reused > 0, "something is reused");
    steps
}

fn removed(steps: &[FleetStep]) -> usize {
    let events = steps.iter().flat_map(|step| &step.events);
    events.map(|event| if let BlockEvent::Removed { blocks, .. } = event { blocks.len() } else { 0 }).sum()
}

fn hashes(steps: &[FleetStep], worker: u64) -> BTreeSet<SequenceHash> {
    let own = steps.iter().filter(|step| step.rank.worker.0 == worker).flat_map(|step| &step.events);
    let stored =
        own.filter_map(|event| if let BlockEvent::Stored { blocks, .. } = event { Some(blocks) } else { None });
    stored.flatten().map(|block| block.sequence).collect()
}

#[test]
fn events_describe_every_cache() {
    let steps = check(options());
    assert!(removed(&steps) > 0, "small caches evict");
    assert!(!hashes(&steps, 0).is_disjoint(&hashes(&steps, 1)), "equal prefixes have equal hashes");
    assert_eq!(steps, play(options()), "the same options play the same");
}

#[test]
fn nothing_is_evicted_from_a_cache_that_is_large_enough() {
    assert_eq!(removed(&check(FleetOptions { blocks: 10_000, ..options() })), 0);
}

#[test]
fn private_seeds_share_no_hash_and_change_no_reuse() {
    let steps = check(FleetOptions { hash_seeds: HashSeeds::Private, ..options() });
    assert!(hashes(&steps, 0).is_disjoint(&hashes(&steps, 1)));
    let reused = |steps: &[FleetStep]| steps.iter().map(|step| step.reused).collect::<Vec<_>>();
    assert_eq!(reused(&steps), reused(&play(options())));
}

#[test]
fn holes_are_removed_from_the_cache_too() {
    let holes = HoleShare::percent(10.0).expect("a share");
    for blocks in [20, 10_000] {
        let steps = check(FleetOptions { holes, blocks, ..options() });
        let removed_after_storing =
            steps.iter().any(|step| matches!(step.events.last(), Some(BlockEvent::Removed { .. })));
        assert!(removed_after_storing, "some hole was opened");
    }
    assert_eq!(HoleShare::percent(-1.0), None);
    assert_eq!(HoleShare::percent(f64::NAN), None);
}

#[test]
fn prefix_affinity_reuses_more_than_round_robin() {
    let reused = |routing| {
        check(FleetOptions { routing, blocks: 60, ..options() }).iter().map(|step| step.reused).sum::<usize>()
    };
    assert!(reused(Routing::PrefixAffinity) > reused(Routing::RoundRobin));
}

#[test]
fn a_prompt_larger_than_the_cache_is_rejected() {
    let mut fleet = Fleet::new(options());
    let hash_ids: Vec<u64> = (0..11).collect();
    let prompt = HashedPrompt { at_ms: 0, hash_ids: &hash_ids, output_ids: &[] };
    let error = fleet.serve(prompt).expect_err("22 blocks do not fit into 20");
    assert_eq!((error.needed, error.capacity), (22, 20));
}
