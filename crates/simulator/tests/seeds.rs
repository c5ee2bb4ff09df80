//! Simulations of fixed seeds. `cargo run -p flash-indexer-simulator -- --help` runs more.

use std::num::NonZero;
use std::panic::resume_unwind;

use flash_indexer_simulator::{Coverage, Plan, run, silence_injected_panics};

const SEEDS: u64 = 300;
const STEPS: usize = 120;

/// Checks the invariants for these seeds.
fn coverage_of(seeds: impl Iterator<Item = u64>) -> Coverage {
    let mut coverage = Coverage::default();
    for seed in seeds {
        match run(&Plan::generate(seed, STEPS), false) {
            Ok(of_seed) => coverage += of_seed,
            Err(failure) => panic!("seed {seed} with {STEPS} steps failed {failure}"),
        }
    }
    coverage
}

#[test]
fn every_invariant_holds_for_every_seed() {
    silence_injected_panics();
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let coverage = std::thread::scope(|scope| {
        let seeds_of = |thread| (0..SEEDS).skip(thread).step_by(threads);
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || coverage_of(seeds_of(thread)))).collect();
        let mut coverage = Coverage::default();
        for thread in threads {
            coverage += thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        }
        coverage
    });
    // The simulations reach the states that they are meant to test.
    let Coverage { exact_answers, healed_ranks, cleared_ranks, panics, dropped, replayed, imports, .. } = coverage;
    let Coverage { exact_remote_answers, healed_remote_ranks, discovered_leaves, .. } = coverage;
    let Coverage { rebuilds, refused_ranks, refused_blocks, .. } = coverage;
    let reached = [exact_answers, healed_ranks, cleared_ranks, panics, dropped, replayed, imports];
    let reached = reached.into_iter().chain([exact_remote_answers, healed_remote_ranks, discovered_leaves]);
    let mut reached = reached.chain([rebuilds, refused_ranks, refused_blocks]);
    assert!(reached.all(|count| count > 0), "{coverage:?}");
}

#[test]
fn a_seed_repeats_exactly() {
    silence_injected_panics();
    for seed in 0..20 {
        let plan = Plan::generate(seed, STEPS);
        assert_eq!(run(&plan, false), run(&plan, false), "seed {seed}");
    }
}
