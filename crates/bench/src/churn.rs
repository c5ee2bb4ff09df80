//! A large fleet under churn: ranks fill their caches, replace prompts, leave, and most of them leave at once.
//!
//! Each of these makes an index grow, split, release or compact something. Prompts are random; one in five starts with
//! one of a few prefixes that the whole fleet shares.

use std::collections::VecDeque;

use flash_indexer_core::hashing::sequence_hashes;
use flash_indexer_core::{Block, BlockEvent, LocalHash, RemovedCopies, SequenceHash, Tier};
use flash_indexer_sim::rank_of;

use crate::backend::WorkerEvent;
use crate::workload::{Play, PlayedRequest};

/// Blocks of a shared prefix, and their number.
const PREFIX_BLOCKS: u64 = 64;
const PREFIXES: u64 = 20;
/// Maximum number of blocks of a prompt's own part. The minimum is 8.
const OWN_BLOCKS_MAX: u64 = 192;
/// After one in this number of replaced prompts, its rank leaves.
const LEAVING: u64 = 200;
/// One in this number of ranks stays at the end.
const STAYING: usize = 10;
/// Prompts that are replaced for each block that a rank holds at first.
const REPLACED_SHARE: usize = 400;
/// Prompts that are queried.
const QUERIES: usize = 512;

/// The events of `workers` ranks that hold `blocks` blocks together at first, and queries of their prompts.
pub(crate) fn churn(workers: usize, blocks: usize) -> Play {
    let mut fleet =
        Churn { ranks: vec![VecDeque::new(); workers], held: 0, prompts: 0, state: 1, play: Play::default() };
    while fleet.held < blocks {
        for worker in 0..workers {
            fleet.store(worker);
        }
    }
    let replaced = blocks / REPLACED_SHARE;
    for _ in 0..replaced {
        let worker = fleet.below(workers as u64) as usize;
        if fleet.below(LEAVING) == 0 {
            fleet.clear(worker);
        }
        fleet.remove_oldest(worker);
        fleet.store(worker);
    }
    for worker in (0..workers).filter(|worker| worker % STAYING != 0) {
        fleet.clear(worker);
    }
    for step in 0..replaced {
        let worker = step * STAYING % workers.next_multiple_of(STAYING);
        fleet.remove_oldest(worker.min(workers - 1));
        fleet.store(worker.min(workers - 1));
    }
    fleet.play
}

struct Churn {
    /// The prompts of each rank, oldest first: their number and the blocks of their prefix.
    ranks: Vec<VecDeque<Prompt>>,
    held: usize,
    prompts: u64,
    state: u64,
    play: Play,
}

#[derive(Debug, Clone, Copy)]
struct Prompt {
    number: u64,
    own: u64,
    prefix: Option<u64>,
}

impl Prompt {
    fn locals(self) -> Vec<LocalHash> {
        let prefix = self.prefix.into_iter().flat_map(|prefix| (0..PREFIX_BLOCKS).map(move |at| (prefix, at)));
        let own = (0..self.own).map(|at| (self.number, at));
        prefix.chain(own).map(|(text, at)| LocalHash(mixed(text << 16 | at))).collect()
    }
}

impl Churn {
    fn below(&mut self, end: u64) -> u64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) % end
    }

    fn event(&mut self, worker: usize, event: BlockEvent) {
        self.play.events.push(WorkerEvent { rank: rank_of(worker), event });
    }

    fn store(&mut self, worker: usize) {
        self.prompts += 1;
        let prefix = self.below(5 * PREFIXES);
        let prompt = Prompt {
            number: PREFIXES + self.prompts,
            own: 8 + self.below(OWN_BLOCKS_MAX - 8),
            prefix: (prefix < PREFIXES).then_some(prefix),
        };
        let locals = prompt.locals();
        self.held += prompt.own as usize;
        self.ranks[worker].push_back(prompt);
        let blocks =
            sequence_hashes(&locals).zip(&locals).map(|(sequence, &local)| Block { sequence, local }).collect();
        self.event(worker, BlockEvent::Stored { tier: Tier::Device, parent: None, blocks, copies: 1 });
        if self.play.requests.len() < QUERIES {
            let (rank, events) = (rank_of(worker), self.play.events.len()..self.play.events.len());
            self.play.requests.push(PlayedRequest { at_ms: 0, rank, query: locals, reused: 0, events });
        }
    }

    /// Removes the own blocks of a rank's oldest prompt, last first.
    fn remove_oldest(&mut self, worker: usize) {
        let Some(prompt) = self.ranks[worker].pop_front() else { return };
        let locals = prompt.locals();
        self.held -= prompt.own as usize;
        let sequences: Vec<SequenceHash> = sequence_hashes(&locals).collect();
        let blocks = sequences[locals.len() - prompt.own as usize..].iter().rev().copied().collect();
        self.event(worker, BlockEvent::Removed { tier: Tier::Device, blocks, copies: RemovedCopies::All });
    }

    fn clear(&mut self, worker: usize) {
        self.held -= self.ranks[worker].drain(..).map(|prompt| prompt.own as usize).sum::<usize>();
        self.event(worker, BlockEvent::Cleared);
    }
}

fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (number ^ (number >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}
