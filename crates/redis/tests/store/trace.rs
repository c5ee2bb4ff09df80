//! A production trace on a fleet whose ranks are divided between two replicas: both give the same answers as a single index.

use std::time::Duration;

use flash_indexer_core::run::RunIndex;
use flash_indexer_core::{SharedIndex, WorkerRank};
use flash_indexer_sim::workload::MooncakeTrace;
use flash_indexer_sim::{Fleet, FleetOptions, FleetStep};
use flash_indexer_test_support::{RedisNode, redis_cluster, redis_server, testdata, wait_for};

use crate::support::{Depths, PATIENCE, Replica, cluster_url, holder, options, single_url};

/// Requests between two comparisons.
const REQUESTS_PER_STEP: usize = 400;

fn expected(index: &dyn SharedIndex, step: &FleetStep) -> Depths {
    index.find(&step.query).ranks.into_iter().map(|found| (holder(found.rank), found.blocks)).collect()
}

/// Plays the whole trace. After each step, both replicas must give the index's answer to every query of the step.
fn play(url: &str) {
    let data = testdata();
    let trace = MooncakeTrace::open(&data.join("mooncake/conversation_trace.jsonl")).expect("a trace");
    // Small caches: blocks are evicted as often as stored.
    let options_of_fleet =
        FleetOptions { workers: 16, blocks: 2_048, blocks_per_hash_id: 1, ..FleetOptions::default() };
    let mut fleet = Fleet::new(options_of_fleet);
    let index = RunIndex::default();
    // Long enough that no confirmation expires on a busy machine.
    let options = || flash_indexer_redis::StoreOptions { time_to_live: Duration::from_secs(60), ..options(url) };
    let replicas = [Replica::start(options()), Replica::start(options())];
    let listens = |rank: WorkerRank| &replicas[(rank.worker.0 % 2) as usize];
    let steps: Vec<FleetStep> = trace.prompts().filter_map(|prompt| fleet.serve(prompt).ok()).collect();
    assert!(steps.len() > 10_000, "most prompts fit into a cache: {}", steps.len());
    let mut found = 0;
    for steps in steps.chunks(REQUESTS_PER_STEP) {
        for step in steps {
            for event in &step.events {
                index.apply(step.rank, event);
                listens(step.rank).apply(step.rank, event);
            }
        }
        for step in steps {
            let expected = expected(&index, step);
            for replica in &replicas {
                let what = "the answer of the index";
                wait_for(what, PATIENCE, || replica.find(&step.query).filter(|depths| *depths == expected));
            }
            found += expected.len();
        }
        // The answers stay equal once everything is published.
        for step in steps {
            let expected = expected(&index, step);
            assert_eq!(replicas[0].find(&step.query).as_ref(), Some(&expected));
        }
    }
    assert!(found > steps.len(), "some blocks were found");
    for replica in replicas {
        let published = replica.store.report().published;
        assert!(published.rewrites <= published.failed_batches, "no write was lost: {published:?}");
        replica.stop();
    }
}

#[test]
fn two_replicas_on_one_redis_answer_as_one_index() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    play(&single_url(&node));
}

#[test]
fn two_replicas_on_a_cluster_answer_as_one_index() {
    let Some(redis) = redis_server() else { return };
    let nodes = redis_cluster(&redis, 3);
    play(&cluster_url(&nodes));
    for node in &nodes {
        assert_ne!(node.command(&["DBSIZE"]), "0", "every node has keys");
    }
}
