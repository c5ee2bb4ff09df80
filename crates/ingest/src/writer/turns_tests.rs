//! Turns of a writer, counted in its steps.

use std::sync::Arc;

use flash_indexer_core::groups::{
    AttentionWindow, ClearScope, ClearedGroups, GroupBlockSize, GroupChange, GroupEvent, GroupId, RankEvent,
    SecondaryGroup,
};
use flash_indexer_core::{Block, BlockEvent, LocalHash, SequenceHash, SharedIndex, Tier, WorkerRank};
use flash_indexer_telemetry::clock::SimulatedTime;
use flash_indexer_telemetry::metrics::{MetricNames, Metrics};
use flash_indexer_telemetry::supervision::Supervisor;

use super::Writers;
use crate::ModelSink;
use crate::change::Change;
use crate::listener::{Listener, MaintainedIndex};
use crate::tests::fixture::{RANK, TestModel};

/// Blocks of each rank in each of its groups: several parts of a clear.
const BLOCKS: u64 = 600;

/// A writer that a test runs step by step.
struct SteppedWriter {
    supervisor: Arc<Supervisor>,
    writers: Writers,
    model: Arc<TestModel>,
}

impl SteppedWriter {
    fn start() -> Self {
        let metrics = Arc::new(Metrics::new(MetricNames::Own));
        let supervisor = Supervisor::simulated(&metrics, SimulatedTime::starting_at(0), Box::new(|_| 0));
        let writers = Writers::start(1, &supervisor).expect("no thread");
        let model = Arc::new(TestModel::new(0, &metrics));
        let index: Arc<dyn MaintainedIndex> = Arc::<TestModel>::clone(&model);
        writers.add_index(0, Arc::downgrade(&index), 0);
        Self { supervisor, writers, model }
    }

    fn step(&self) -> bool {
        self.supervisor.stepper().expect("a simulation").step()
    }

    fn write(&self, listener: &Arc<Listener>, event: RankEvent) {
        self.writers.write(listener, vec![Change::Event(RANK, event)], None);
    }

    fn held_blocks(&self, listener: &Listener) -> usize {
        self.model.index().size(WorkerRank { worker: listener.worker, dp_rank: RANK }).blocks
    }

    /// A rank with its own blocks in the primary group and in a secondary one.
    fn hybrid_rank(&self) -> Arc<Listener> {
        let listener = self.model.listener();
        self.write(&listener, stored(&listener, BLOCKS));
        let group =
            SecondaryGroup { id: GroupId(1), window: AttentionWindow::LastBlocks(2), size: GroupBlockSize::REGISTERED };
        let blocks = (0..BLOCKS).map(SequenceHash).collect();
        let event = GroupEvent::Stored { tier: Tier::Device, blocks, copies: 1 };
        self.write(&listener, RankEvent::Secondary(GroupChange { group, event }));
        listener
    }
}

/// An event that stores a chain of blocks, which no other rank has.
fn stored(listener: &Listener, blocks: u64) -> RankEvent {
    let local = |at| LocalHash(listener.id << 32 | at);
    let blocks = (0..blocks).map(|at| Block { sequence: SequenceHash(at), local: local(at) }).collect();
    RankEvent::Primary(BlockEvent::Stored { tier: Tier::Device, parent: None, blocks, copies: 1 })
}

/// Steps until each of several events of other ranks is applied, one after the other, while `clears` ranks are cleared.
fn steps_of_probes(clears: usize, scope: ClearScope) -> Vec<usize> {
    const PROBES: usize = 20;
    let writer = SteppedWriter::start();
    let cleared: Vec<_> = (0..clears).map(|_| writer.hybrid_rank()).collect();
    while writer.step() {}
    for listener in &cleared {
        assert_eq!(writer.held_blocks(listener), BLOCKS as usize);
        writer.write(listener, RankEvent::ClearedScope(scope));
    }
    // Each clear begins.
    (0..clears).for_each(|_| assert!(writer.step()));
    let steps_of_probe = |_| {
        let probe = writer.model.listener();
        writer.write(&probe, stored(&probe, 1));
        let mut steps = 0;
        while writer.held_blocks(&probe) == 0 {
            assert!(writer.step(), "the event is lost");
            steps += 1;
        }
        steps
    };
    let steps = (0..PROBES).map(steps_of_probe).collect();
    if clears * 3 > PROBES {
        assert!(cleared.iter().any(|listener| writer.held_blocks(listener) > 0), "no clear is in progress any more");
    }
    while writer.step() {}
    assert!(cleared.iter().all(|listener| writer.held_blocks(listener) == 0), "a clear is not complete");
    steps
}

#[test]
fn a_short_event_waits_for_one_long_one_however_many_ranks_store_at_the_same_moment() {
    for ranks in [1, 10, 1_000] {
        let writer = SteppedWriter::start();
        let storing: Vec<_> = (0..ranks).map(|_| writer.model.listener()).collect();
        storing.iter().for_each(|listener| writer.write(listener, stored(listener, BLOCKS)));
        for _ in 0..10 {
            let probe = writer.model.listener();
            writer.write(&probe, stored(&probe, 1));
            let mut steps = 0;
            while writer.held_blocks(&probe) == 0 {
                assert!(writer.step(), "the event is lost");
                steps += 1;
            }
            assert!(steps <= 2, "{steps} steps beside {ranks} ranks");
        }
        let stored = storing.iter().filter(|listener| writer.held_blocks(listener) == BLOCKS as usize).count();
        assert!((ranks.min(9)..=20).contains(&stored), "{stored} of {ranks} long events are applied meanwhile");
        while writer.step() {}
        assert!(storing.iter().all(|listener| writer.held_blocks(listener) == BLOCKS as usize));
    }
}

#[test]
fn an_event_waits_for_one_part_of_scoped_clears_however_many_are_in_progress() {
    let scope = ClearScope { tier: None, groups: ClearedGroups::All };
    for clears in [1, 10, 300] {
        let steps = steps_of_probes(clears, scope);
        assert!(steps.iter().all(|&steps| steps <= 2), "{clears} clears: {steps:?}");
    }
}
