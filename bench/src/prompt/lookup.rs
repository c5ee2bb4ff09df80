//! One pod with a long chain of blocks: storing it and finding it.

use flash_indexer_bench::{Backend, Contender, DesignContender, MatchTotals, Setup, WorkerEvent};
use flash_indexer_core::hashing::sequence_hashes;
use flash_indexer_core::{Block, BlockEvent, DpRank, LocalHash, Tier, WorkerId, WorkerRank};
use flash_indexer_designs::Design;

use super::{LOOKUP_BLOCKS, Line, Part, line, time, time_prepared};
use crate::peers::TwoLevelLruPeer;

const FOUND: &str = "179 ms, later 6.5 ms; cost-aware 13.9 ms";
const ADDED: &str = "10.4 ms; cost-aware 8.7 ms";

pub(super) fn measure(rounds: usize) -> Part {
    let locals: Vec<LocalHash> = (0..LOOKUP_BLOCKS as u64).map(|block| LocalHash(block << 20 | 1)).collect();
    let blocks = locals.iter().zip(sequence_hashes(&locals));
    let event = WorkerEvent {
        rank: WorkerRank { worker: WorkerId(0), dp_rank: DpRank(0) },
        event: BlockEvent::Stored {
            tier: Tier::Device,
            parent: None,
            copies: 1,
            blocks: blocks.map(|(&local, sequence)| Block { sequence, local }).collect(),
        },
    };
    let mut lines = of(&DesignContender(Design::DEFAULT), &locals, &event, rounds);
    lines.extend(of(&TwoLevelLruPeer, &locals, &event, rounds));
    Part {
        title: "Ten thousand blocks of one pod".to_owned(),
        about: "Stored in one event, and found by one query. Keys are computed before the timing.".to_owned(),
        lines,
    }
}

fn of(contender: &dyn Contender, locals: &[LocalHash], event: &WorkerEvent, rounds: usize) -> Vec<Line> {
    let build = || contender.build(Setup { workers: 1, event_threads: 1 });
    let store = |backend: Box<dyn Backend>| {
        let mut lane = backend.lane(vec![event]);
        lane.apply(1);
        lane.settle();
        drop(lane);
        backend
    };
    let stored = time_prepared(rounds, build, store);
    let backend = store(build());
    let mut finder = backend.finder();
    finder.load(locals);
    let found = time(rounds, || finder.find());
    let expected = MatchTotals { workers: 1, blocks: locals.len() as u64 };
    assert_eq!(finder.totals(), expected, "{} finds the stored blocks", contender.name());
    vec![
        line(&format!("{}: store", contender.name()), stored, Some(ADDED)),
        line(&format!("{}: find", contender.name()), found, Some(FOUND)),
    ]
}
