//! Writers: threads that each own the write side of some models' indexes. They apply queued changes in turns.

mod effects;
#[cfg(test)]
mod turns_tests;

use std::cell::RefCell;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use flash_indexer_core::groups::RankEvent;
use flash_indexer_core::{AppliedChanges, BlockEvent, PREFETCH_DISTANCE, ReadingProgress, Tier, WorkerId};
use flash_indexer_telemetry::clock::Clock;
use flash_indexer_telemetry::metrics::Metrics;
use flash_indexer_telemetry::supervision::{Step, Steps, SupervisedThread, Supervisor, ThreadKind, Watch};
use parking_lot::Mutex;

use self::effects::{Context, Target};
use super::change::Change;
use super::event_parts::{EVENT_BLOCKS_MAX, block_count};
use super::listener::{Listener, MaintainedIndex};
use super::resume_point::ReadInParts;
use super::scoped_clear::{ClearPart, PART_BLOCKS_MAX, ScopedClear};
use super::waiting_ranks::WaitingRanks;
use flash_indexer_queues::{ClassedKey, ProcessorTurn, ProcessorTurns, QueueClass, QueuedWork, Queues, TakenEntry};

/// Changes after which a batch ends with the next message.
const BATCH_CHANGES_MAX: usize = 4_096;
/// Blocks and changes of one instance that a writer applies before other instances take their turns, and the rest of one event. An
/// event of at most this size waits for events of that size of the other instances: about 30 ms with 1,000 instances.
const TURN_BLOCKS_MAX: usize = 32;
/// Cost of one part of a read in a writer's turn, in blocks that take as long to apply.
const READ_PART_BLOCKS: usize = EVENT_BLOCKS_MAX;

/// Interval at which an idle writer runs maintenance: other threads clear ranks as well.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);
/// A writer that is never idle runs maintenance after this many entries of its queue. Turns of one batch are one entry, for
/// up to [`EVENT_BLOCKS_MAX`] blocks: turns are short for the sake of other instances, not to do deferred work sooner.
const WORK_BETWEEN_MAINTENANCE: usize = 64;
/// Ranks with waiting blocks that a writer checks with a maintenance call.
const WAITING_RANKS_CHECKED: usize = 64;

/// Indexes of one writer, with the shard that it maintains.
type MaintainedIndexes = Arc<Mutex<Vec<(Weak<dyn MaintainedIndex>, usize)>>>;

/// A function that runs on the writer thread, between two changes.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Bytes of the ingest budget that belong to changes. They are released on drop.
pub(super) type Reservation = Arc<dyn Send + Sync>;

/// Key of a worker's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct WorkerQueue {
    class: QueueClass,
    worker: WorkerId,
}

impl ClassedKey for WorkerQueue {
    fn class(&self) -> QueueClass {
        self.class
    }
}

enum Work {
    Changes(Arc<Listener>, ChangeBatch, Option<Reservation>),
    Job(Job),
    Read(ReadInParts),
}

/// Changes of a stream that are not applied yet.
struct ChangeBatch {
    /// Reading of the index before the next change.
    reading: Option<ReadInParts>,
    /// Clear whose removals are applied before the next change.
    clearing: Option<ScopedClear>,
    changes: std::vec::IntoIter<Change>,
    /// Context of the next change, if others of its message were applied.
    context: Option<Context>,
}

impl QueuedWork for Work {
    fn is_long(&self) -> bool {
        match self {
            Self::Changes(_, batch, _) => batch.is_long(),
            Self::Job(_) => false,
            Self::Read(_) => true,
        }
    }
}

impl ChangeBatch {
    /// Whether its changes exceed one turn. Examines the changes of one turn.
    fn is_long(&self) -> bool {
        let mut blocks = 0;
        self.changes.as_slice().iter().any(|change| {
            blocks += cost_of(change);
            blocks > TURN_BLOCKS_MAX
        })
    }
}

/// A fixed number of writer threads. Each shard of a model's index is assigned to one.
///
/// Each instance has its own queue. Models take turns, and so do the instances of a model: a turn is a bounded part of a
/// batch ([`TURN_BLOCKS_MAX`]). Queueing never blocks: the byte budget of the decoders limits the queued changes.
pub struct Writers {
    queues: Arc<Queues<WorkerQueue, Work>>,
    /// Indexes of each writer.
    indexes_by_writer: Vec<MaintainedIndexes>,
    threads: Mutex<Vec<SupervisedThread>>,
    stopping: Arc<AtomicBool>,
    processor_turns: Arc<ProcessorTurns>,
}

impl Writers {
    /// Starts `count` writers.
    ///
    /// # Errors
    ///
    /// When the system refuses a thread.
    pub fn start(count: usize, supervisor: &Arc<Supervisor>) -> std::io::Result<Self> {
        let stopping = Arc::new(AtomicBool::new(false));
        let metrics = supervisor.metrics();
        let clock = supervisor.clock();
        let queues = Arc::new(Queues::new(count, usize::MAX, clock.clone()));
        let processor_turns = Arc::new(ProcessorTurns::new(clock.clone()));
        let mut indexes_by_writer = Vec::new();
        let mut threads = Vec::new();
        for number in 0..count {
            let indexes = MaintainedIndexes::default();
            indexes_by_writer.push(Arc::clone(&indexes));
            let writer = Writer {
                number,
                queues: Arc::clone(&queues),
                indexes,
                stopping: Arc::clone(&stopping),
                metrics: Arc::clone(metrics),
                clock: clock.clone(),
                waiting_ranks: RefCell::default(),
                work_since_maintenance: 0,
                uncounted_blocks: 0,
                turn_blocks: 0,
                wait: Duration::ZERO,
                processor_turn: ProcessorTurn::new(Arc::clone(&processor_turns)),
            };
            let queued = Arc::clone(&queues);
            let queued = move || queued.entries(number);
            threads.push(supervisor.spawn_steps(ThreadKind::Writer, Some(number), queued, writer)?);
        }
        Ok(Self { queues, indexes_by_writer, threads: Mutex::new(threads), stopping, processor_turns })
    }

    /// Turns that the threads of ingestion take at the processors.
    pub(super) const fn processor_turns(&self) -> &Arc<ProcessorTurns> {
        &self.processor_turns
    }

    /// Number of writers.
    pub fn count(&self) -> usize {
        self.queues.count()
    }

    /// Adds a shard of an index to a writer, which maintains it until the index is dropped.
    pub fn add_index(&self, writer: usize, index: Weak<dyn MaintainedIndex>, shard: usize) {
        let mut indexes = self.indexes_by_writer[writer].lock();
        indexes.retain(|(index, _)| index.strong_count() > 0);
        indexes.push((index, shard));
    }

    /// Number of queued batches of each writer.
    pub fn queues(&self) -> Vec<usize> {
        (0..self.queues.count()).map(|writer| self.queues.entries(writer)).collect()
    }

    /// Whether the service is stopping: changes are no longer applied.
    pub fn are_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// Queues changes of a stream. Never blocks. `reservation` is kept until the changes are applied.
    pub(super) fn write(&self, listener: &Arc<Listener>, changes: Vec<Change>, reservation: Option<Reservation>) {
        let queue = |changes: Vec<Change>| {
            let batch = ChangeBatch { reading: None, clearing: None, changes: changes.into_iter(), context: None };
            self.push(listener, Work::Changes(Arc::clone(listener), batch, reservation.clone()));
        };
        if changes.len() <= BATCH_CHANGES_MAX {
            return queue(changes);
        }
        let mut batch = Vec::with_capacity(BATCH_CHANGES_MAX);
        for change in changes {
            // The context of changes ends with their message.
            let ends_message = matches!(change, Change::MessageApplied { .. });
            batch.push(change);
            if ends_message && batch.len() >= BATCH_CHANGES_MAX {
                queue(std::mem::take(&mut batch));
            }
        }
        if !batch.is_empty() {
            queue(batch);
        }
    }

    /// Queues a function after all changes so far.
    pub fn run(&self, listener: &Listener, job: Job) {
        self.push(listener, Work::Job(job));
    }

    /// Queues a reading of the index after all changes so far.
    pub(super) fn read(&self, listener: &Listener, reading: ReadInParts) {
        self.push(listener, Work::Read(reading));
    }

    fn push(&self, listener: &Listener, work: Work) {
        let key = WorkerQueue { class: listener.queue_class(), worker: listener.worker };
        // Only the decoders' queues start periods: changes are not live messages.
        self.queues.push(&key, listener.model.writer(listener.worker), work, |_| {});
    }

    /// Discards all changes from now on.
    pub fn stop_applying(&self) {
        self.stopping.store(true, Relaxed);
    }

    /// Stops every writer. A writer that does not end by `deadline` is abandoned. Call it after the decoders have stopped.
    pub fn stop(&self, deadline: Instant) {
        self.stop_applying();
        self.queues.stop();
        for thread in self.threads.lock().drain(..) {
            thread.join_by(deadline);
        }
    }
}

/// Blocks of a change; one if it has none.
fn cost_of(change: &Change) -> usize {
    match change {
        Change::Event(_, event) | Change::Refresh(_, event) | Change::MoveLastCopy(_, event) => {
            block_count(event).max(1)
        }
        _ => 1,
    }
}

/// Reads a part of the index. It changes no index, so a panic leaves the index valid and ends the reading.
fn read_part(watch: &Watch, reading: &mut ReadInParts) -> ReadingProgress {
    watch.guarded(reading).unwrap_or(ReadingProgress::Complete)
}

/// State of a writer thread.
struct Writer {
    number: usize,
    queues: Arc<Queues<WorkerQueue, Work>>,
    indexes: MaintainedIndexes,
    stopping: Arc<AtomicBool>,
    metrics: Arc<Metrics>,
    clock: Clock,
    waiting_ranks: RefCell<WaitingRanks>,
    /// Entries of the queue since the last maintenance.
    work_since_maintenance: usize,
    /// Blocks of turns that ended no batch and do not count as work yet.
    uncounted_blocks: usize,
    /// Blocks and changes that it applied or read in its last turn.
    turn_blocks: usize,
    /// How long it waits for work before it runs maintenance.
    wait: Duration,
    processor_turn: ProcessorTurn,
}

impl Steps for Writer {
    /// Waits for the next entry of the queues and does a bounded part of it, or else runs maintenance.
    fn step(&mut self, watch: &Arc<Watch>) -> Step {
        let last_work = std::mem::take(&mut self.turn_blocks);
        match self.queues.take(self.number, last_work, Some(self.clock.now() + self.wait), || {}) {
            TakenEntry::Work { key, work, .. } => {
                self.wait = Duration::ZERO;
                self.take_turn(watch, &key, work);
                self.processor_turn.yield_if_over();
                Step::Worked
            }
            TakenEntry::Stopped => Step::Ended,
            TakenEntry::Timeout if !self.stopping.load(Relaxed) && self.run_maintenance(watch) => {
                self.wait = Duration::ZERO;
                self.processor_turn.yield_if_over();
                Step::Worked
            }
            TakenEntry::Timeout => {
                self.wait = MAINTENANCE_INTERVAL;
                Step::Idle
            }
        }
    }
}

impl Writer {
    /// Does a bounded part of an entry of the queues.
    fn take_turn(&mut self, watch: &Watch, key: &WorkerQueue, work: Work) {
        self.work_since_maintenance += 1;
        if self.work_since_maintenance >= WORK_BETWEEN_MAINTENANCE {
            self.work_since_maintenance = 0;
            self.run_maintenance(watch);
        }
        match work {
            Work::Changes(listener, mut batch, reservation) => {
                watch.begin(Some(Arc::clone(&listener) as _));
                if !self.stopping.load(Relaxed) {
                    let (is_more, blocks) = self.apply_part(watch, &listener, &mut batch);
                    self.turn_blocks = blocks;
                    let is_part = is_more && batch.reading.is_none() && batch.clearing.is_none();
                    self.uncounted_blocks = if is_part { self.uncounted_blocks + blocks } else { 0 };
                    if is_part && self.uncounted_blocks < EVENT_BLOCKS_MAX {
                        self.work_since_maintenance = self.work_since_maintenance.saturating_sub(1);
                    } else {
                        self.uncounted_blocks = 0;
                    }
                    if is_more {
                        self.queues.put_back(key, self.number, Work::Changes(listener, batch, reservation));
                    }
                }
            }
            Work::Read(mut reading) => {
                watch.begin(None);
                self.turn_blocks = READ_PART_BLOCKS;
                if read_part(watch, &mut reading) == ReadingProgress::More {
                    self.queues.put_back(key, self.number, Work::Read(reading));
                }
            }
            Work::Job(job) => {
                watch.begin(None);
                watch.guarded(job);
            }
        }
        watch.end();
    }

    /// Applies a bounded part of a batch of changes. Returns whether more is left, and the blocks and changes of the part. If a
    /// change panics, the rest of the batch is dropped with the index.
    fn apply_part(&self, watch: &Watch, listener: &Arc<Listener>, batch: &mut ChangeBatch) -> (bool, usize) {
        if let Some(reading) = &mut batch.reading {
            if read_part(watch, reading) == ReadingProgress::More {
                return (true, READ_PART_BLOCKS);
            }
            batch.reading = None;
        }
        let index = listener.model.index();
        let mut blocks = 0;
        // A restart of the stream removes all blocks.
        let clearing = batch.clearing.take().filter(|_| !listener.needs_restart());
        let applied = watch.guarded(|| {
            let now = self.clock.now();
            let mut context = batch.context.take().unwrap_or_else(|| Context::new(now));
            if let Some(clearing) = clearing {
                let dp_rank = clearing.dp_rank();
                blocks = PART_BLOCKS_MAX;
                let ClearPart { removals, rest } = clearing.next_part(&index);
                for removal in removals {
                    self.apply_change(&index, listener, Change::Event(dp_rank, removal), now, &mut context);
                }
                watch.step();
                (batch.clearing, batch.context) = (rest, Some(context));
                return;
            }
            let changes = &mut batch.changes;
            while let Some(change) = changes.next() {
                if let Some(Change::Event(dp_rank, event)) = changes.as_slice().get(PREFETCH_DISTANCE - 1) {
                    index.prefetch_event(listener.rank(*dp_rank), event);
                }
                blocks += cost_of(&change);
                match change {
                    Change::Read(reading) => batch.reading = Some(reading),
                    Change::Event(dp_rank, ref event @ RankEvent::ClearedScope(scope)) if !listener.needs_restart() => {
                        self.metrics.event_applied(event, &AppliedChanges::default());
                        batch.clearing = Some(ScopedClear::new(&index, listener.rank(dp_rank), scope));
                    }
                    // Changes sent before the stream restarted are void. The blocks of an unregistered rank are removed all the
                    // same: its stream may be closed, and never restart.
                    change if matches!(change, Change::Restarted | Change::Forget(_)) || !listener.needs_restart() => {
                        self.apply_change(&index, listener, change, now, &mut context);
                    }
                    _ => {}
                }
                watch.step();
                if batch.reading.is_some() || batch.clearing.is_some() || blocks >= TURN_BLOCKS_MAX {
                    break;
                }
            }
            batch.context = Some(context);
        });
        if applied.is_none() {
            listener.model.replace_failed_index(&index, Some(listener.id));
        }
        let is_more = batch.reading.is_some() || batch.clearing.is_some() || batch.changes.len() > 0;
        (applied.is_some() && is_more, blocks)
    }

    /// Runs a bounded part of the deferred work of the first index that has any, and updates some ranks with waiting blocks.
    /// Returns whether any work is left.
    fn run_maintenance(&self, watch: &Watch) -> bool {
        let indexes = self.indexes.lock().clone();
        watch.begin(None);
        let is_more = indexes.iter().any(|(index, shard)| index.upgrade().is_some_and(|index| index.maintain(*shard)));
        self.check_waiting_ranks(watch);
        watch.end();
        is_more
    }

    /// Updates the waiting blocks of some ranks: deferred work may have indexed or lost them.
    fn check_waiting_ranks(&self, watch: &Watch) {
        let ranks = self.waiting_ranks.borrow().len();
        for _ in 0..ranks.min(WAITING_RANKS_CHECKED) {
            let next = self.waiting_ranks.borrow_mut().take_next();
            let Some((dp_rank, listener)) = next.and_then(|(dp_rank, listener)| Some((dp_rank, listener.upgrade()?)))
            else {
                continue;
            };
            if listener.waiting(dp_rank) == 0 || listener.needs_restart() || self.stopping.load(Relaxed) {
                continue;
            }
            let index = listener.model.index();
            let target = Target { index: &index, listener: &listener, rank: listener.rank(dp_rank) };
            // An event without blocks returns what deferred work has lost.
            let event = RankEvent::Primary(BlockEvent::Copied { tier: Tier::Device, blocks: Vec::new() });
            match watch.guarded(|| index.apply_event(target.rank, &event)) {
                Some(applied) => self.record_effects(target, &event, &applied),
                None => listener.model.replace_failed_index(&index, Some(listener.id)),
            }
            if listener.waiting(dp_rank) > 0 {
                self.waiting_ranks.borrow_mut().insert(&listener, dp_rank);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use flash_indexer_core::SequenceHash;
    use flash_indexer_telemetry::metrics::MetricNames;
    use flash_indexer_test_support::wait_for;
    use flash_indexer_types::Trust;
    use flash_indexer_wire::{BlockRemoved, Encoding, EngineEvent, encode_batch};

    use super::*;
    use crate::tests::fixture::{Fixture, chain_after, chain_stored, payload};

    /// An index with deferred work, in turns.
    struct MaintenanceTurns(AtomicUsize);

    impl MaintainedIndex for MaintenanceTurns {
        fn maintain(&self, _shard: usize) -> bool {
            let left = self.0.load(Relaxed);
            self.0.store(left.saturating_sub(1), Relaxed);
            left > 1
        }
    }

    #[test]
    fn an_idle_writer_runs_the_deferred_work_of_every_index() {
        let supervisor = Supervisor::start(&Arc::new(Metrics::new(MetricNames::Own))).expect("a thread");
        let writers = Writers::start(1, &supervisor).expect("a thread");
        let indexes = [700, 300].map(|turns| Arc::new(MaintenanceTurns(AtomicUsize::new(turns))));
        for index in &indexes {
            let index: Arc<dyn MaintainedIndex> = Arc::<MaintenanceTurns>::clone(index);
            writers.add_index(0, Arc::downgrade(&index), 0);
        }
        let is_done = || indexes.iter().all(|index| index.0.load(Relaxed) == 0).then_some(());
        wait_for("the end of the deferred work", Duration::from_secs(30), is_done);
        writers.stop(Instant::now() + Duration::from_secs(30));
    }

    #[test]
    fn an_idle_rank_is_exact_again_once_its_waiting_blocks_are_indexed() {
        let fixture = Fixture::start(1, false);
        let engine = &fixture.engines[0];
        engine.publish(1, &chain_after(Some(10), 11, 40_000)).expect("published");
        fixture.wait(0, 1, Trust::Degraded);
        engine.publish(2, &payload(10)).expect("published");
        fixture.wait(0, 2, Trust::Exact);
        assert_eq!(fixture.held_blocks(), 1 + 40_000 + 1);
    }

    #[test]
    fn a_removal_beside_deferred_indexing_is_no_loss() {
        let fixture = Fixture::start(1, false);
        let engine = &fixture.engines[0];
        engine.publish(1, &chain_after(Some(10), 11, 40_000)).expect("published");
        fixture.wait(0, 1, Trust::Degraded);
        // The removed block never waited; the waiting ones are being indexed.
        let removed = BlockRemoved { block_hashes: vec![SequenceHash(1)], ..BlockRemoved::default() };
        let events = [chain_stored(None, 10, 1), EngineEvent::Removed(removed)];
        engine.publish(2, &encode_batch(2.0, &events, None, Encoding::Map)).expect("published");
        fixture.wait(0, 2, Trust::Exact);
        assert_eq!(fixture.held_blocks(), 40_000 + 1);
    }
}
