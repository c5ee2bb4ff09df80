//! Test fixture: engines, the threads that ingest their events, and one index.

use std::sync::Arc;
use std::time::{Duration, Instant};

use flash_indexer_core::groups::{GroupedIndex, RankEvent};
use flash_indexer_core::hashing::{BlockSize, TokenWindow};
use flash_indexer_core::run::RunIndex;
use flash_indexer_core::{AppliedChanges, DpRank, RemovedCopies, SequenceHash, SharedIndex, WorkerId, WorkerRank};
use flash_indexer_curve::Curve;
use flash_indexer_sim::{Publisher, PublisherOptions};
use flash_indexer_telemetry::metrics::{MetricNames, Metrics};
use flash_indexer_telemetry::supervision::Supervisor;
use flash_indexer_test_support::wait_for;
use flash_indexer_types::networks::EngineNetworks;
use flash_indexer_types::{ClearCause, EventContext, InstanceId, ListenerOptions, ModelKey, Ordinal, Trust};
use flash_indexer_wire::{AdapterSalt, BlockStored, Encoding, EngineEvent, Start, TokenIds, encode_batch};
use parking_lot::Mutex;

use crate::{
    Decoders, EventSource, Listener, ListenerState, MaintainedIndex, ModelSink, QUEUE_BYTES_MIN, RankOwner, Sockets,
    Writers,
};

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const RANK: DpRank = DpRank(0);

/// A model without a registry. Its ranks are the listeners of the test.
pub(crate) struct TestModel {
    key: ModelKey,
    index: Arc<GroupedIndex>,
    metrics: Arc<Metrics>,
    writer: usize,
    listeners: Mutex<Vec<Arc<Listener>>>,
    /// Blocks the writer before an event while it is locked.
    pub(crate) gate: Mutex<()>,
    /// Workers of the applied events, in order.
    pub(crate) applied: Mutex<Vec<WorkerId>>,
}

impl TestModel {
    pub(crate) fn new(writer: usize, metrics: &Arc<Metrics>) -> Self {
        Self {
            key: ModelKey::new(format!("m{writer}"), None),
            index: Arc::new(GroupedIndex::new(Box::<RunIndex>::default())),
            metrics: Arc::clone(metrics),
            writer,
            listeners: Mutex::default(),
            gate: Mutex::default(),
            applied: Mutex::default(),
        }
    }

    /// A further listener of the model, without a decoder.
    pub(crate) fn listener(self: &Arc<Self>) -> Arc<Listener> {
        let number = self.listeners.lock().len() as u64 + 1;
        self.add_listener(number, options("", None, RemovedCopies::One), Start::Immediate, 0)
    }

    fn add_listener(
        self: &Arc<Self>,
        number: u64,
        options: ListenerOptions,
        start: Start,
        decoder: usize,
    ) -> Arc<Listener> {
        let state = ListenerState::new(&options);
        let listener = Arc::new(Listener {
            id: number,
            model: Arc::<Self>::clone(self),
            instance: InstanceId::number(number),
            worker: WorkerId(number),
            dp_rank: RANK,
            options,
            start,
            decoder,
            resume_from: None,
            state,
        });
        self.listeners.lock().push(Arc::clone(&listener));
        listener
    }
}

fn options(endpoint: &str, replay_endpoint: Option<String>, removed_copies: RemovedCopies) -> ListenerOptions {
    ListenerOptions { replay_endpoint, removed_copies, ..ListenerOptions::new(endpoint) }
}

impl MaintainedIndex for TestModel {
    fn maintain(&self, shard: usize) -> bool {
        self.index.maintain_shard(shard)
    }
}

impl ModelSink for TestModel {
    fn key(&self) -> &ModelKey {
        &self.key
    }

    fn block_size(&self) -> BlockSize {
        BlockSize::new(1).expect("one")
    }

    fn writer(&self, _worker: WorkerId) -> usize {
        self.writer
    }

    fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    fn index(&self) -> Arc<GroupedIndex> {
        Arc::clone(&self.index)
    }

    fn write(
        &self,
        index: &GroupedIndex,
        rank: WorkerRank,
        event: &RankEvent,
        _context: EventContext,
    ) -> AppliedChanges {
        drop(self.gate.lock());
        self.applied.lock().push(rank.worker);
        index.apply_event(rank, event)
    }

    fn forget(&self, index: &GroupedIndex, rank: WorkerRank, _cause: ClearCause, _now: Instant) {
        index.clear_rank(rank);
    }

    fn last_event(&self) -> Ordinal {
        0
    }

    fn replace_failed_index(&self, _failed: &Arc<GroupedIndex>, _culprit: Option<u64>) {
        panic!("no change of these tests panics");
    }

    fn record_variant(&self, _window: TokenWindow, _adapter_salt: &AdapterSalt) {}

    fn list_rank(&self, _listener: &Arc<Listener>, _dp_rank: DpRank) -> RankOwner {
        RankOwner::SameStream
    }

    fn ranks_of(&self, listener: &Listener) -> Vec<DpRank> {
        let listeners = self.listeners.lock();
        listeners.iter().filter(|listed| listed.id == listener.id).map(|listed| listed.dp_rank).collect()
    }

    fn remove_worker(&self, worker: WorkerId) {
        self.index.remove_worker(worker);
    }

    fn generation(&self) -> u64 {
        0
    }

    fn is_full(&self) -> bool {
        false
    }

    fn is_partial(&self, _rank: WorkerRank) -> bool {
        false
    }
}

/// Engines, with the threads that ingest their events.
pub(crate) struct Fixture {
    pub(crate) engines: Vec<Publisher>,
    pub(crate) decoders: Arc<Decoders>,
    pub(crate) writers: Arc<Writers>,
    /// Each model has its own writer.
    pub(crate) models: Vec<Arc<TestModel>>,
    pub(crate) sockets: Sockets,
    listeners: Mutex<Vec<Arc<Listener>>>,
}

impl Fixture {
    /// Starts engines of one model. Each is exact after its first message, which stores one block.
    pub(crate) fn start(engines: usize, has_replay: bool) -> Self {
        Self::start_models(1, engines, has_replay, QUEUE_BYTES_MIN)
    }

    /// Starts engines, which belong to the models in turn.
    pub(crate) fn start_models(models: usize, engines: usize, has_replay: bool, queue_bytes_max: usize) -> Self {
        let mut fixture = Self::without_engines(models, queue_bytes_max, None);
        for _ in 0..engines {
            let engine = Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
            let replay_endpoint = has_replay.then(|| engine.replay_endpoint().to_owned());
            fixture.listen(engine.endpoint(), replay_endpoint);
            assert!(engine.wait_for_subscriber(PATIENCE).expect("a socket"), "no subscription");
            engine.publish(0, &payload(1)).expect("published");
            fixture.engines.push(engine);
        }
        (0..engines).for_each(|at| fixture.wait(at, 0, Trust::Exact));
        fixture
    }

    /// Starts the threads, without engines.
    pub(crate) fn without_engines(models: usize, queue_bytes_max: usize, curve: Option<Arc<Curve>>) -> Self {
        let metrics = Arc::new(Metrics::new(MetricNames::Own));
        let supervisor = Supervisor::start(&metrics).expect("a thread");
        let writers = Arc::new(Writers::start(models, &supervisor).expect("a thread"));
        let decoders = Arc::new(Decoders::start(Some(1), queue_bytes_max, &writers, &supervisor).expect("a thread"));
        let networks = EngineNetworks::default();
        let sockets = Sockets::start(Arc::clone(&decoders), &networks, curve, &supervisor).expect("threads");
        let models: Vec<_> = (0..models).map(|writer| Arc::new(TestModel::new(writer, &metrics))).collect();
        for (writer, model) in models.iter().enumerate() {
            let index: Arc<dyn MaintainedIndex> = Arc::<TestModel>::clone(model);
            writers.add_index(writer, Arc::downgrade(&index), 0);
        }
        Self { engines: Vec::new(), decoders, writers, models, sockets, listeners: Mutex::default() }
    }

    /// Starts a listener of a further engine.
    pub(crate) fn listen(&self, endpoint: &str, replay_endpoint: Option<String>) -> Arc<Listener> {
        let listener = self.unconnected(endpoint, replay_endpoint);
        self.sockets.open(Arc::clone(&listener)).expect("a subscription");
        listener
    }

    /// A further listener without a subscription.
    pub(crate) fn unconnected(&self, endpoint: &str, replay_endpoint: Option<String>) -> Arc<Listener> {
        self.started(endpoint, replay_endpoint, Start::Immediate, RemovedCopies::One)
    }

    /// A further listener without a subscription, whose rank [`RANK`] is held.
    pub(crate) fn held(&self, endpoint: &str) -> Arc<Listener> {
        let listener = self.started(endpoint, None, Start::Paused, RemovedCopies::One);
        listener.hold().hold(RANK);
        listener
    }

    /// A further listener without a subscription, of an engine that publishes the removal of the last copy only.
    pub(crate) fn of_last_copies(&self, endpoint: &str) -> Arc<Listener> {
        self.started(endpoint, None, Start::Immediate, RemovedCopies::All)
    }

    fn started(
        &self,
        endpoint: &str,
        replay_endpoint: Option<String>,
        start: Start,
        removed_copies: RemovedCopies,
    ) -> Arc<Listener> {
        let number = self.listeners.lock().len() as u64 + 1;
        let model = &self.models[(number as usize - 1) % self.models.len()];
        let options = options(endpoint, replay_endpoint, removed_copies);
        let listener = model.add_listener(number, options, start, self.decoders.assign());
        self.listeners.lock().push(Arc::clone(&listener));
        listener
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.models[0].metrics
    }

    pub(crate) fn listener(&self, at: usize) -> Arc<Listener> {
        Arc::clone(&self.listeners.lock()[at])
    }

    /// Waits until a rank has this trust state as of this message.
    pub(crate) fn wait(&self, at: usize, last_seq: u64, trust: Trust) {
        let listener = self.listener(at);
        wait_for("a message", PATIENCE, || {
            let report = listener.report(RANK);
            (report.last_seq == Some(last_seq) && report.trust == trust).then_some(())
        });
    }

    /// Blocks that all ranks hold.
    pub(crate) fn held_blocks(&self) -> usize {
        let sizes = self.models.iter().flat_map(|model| model.index.sizes());
        sizes.map(|(_, size)| size.blocks).sum()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        self.writers.stop_applying();
        self.sockets.stop(deadline);
        self.decoders.stop(deadline);
        self.writers.stop(deadline);
    }
}

/// A message that stores one block.
pub(crate) fn payload(hash: u64) -> Vec<u8> {
    chain_payload(hash, 1)
}

/// A message that stores a chain of blocks, whose hashes count from `hash`.
pub(crate) fn chain_payload(hash: u64, blocks: u64) -> Vec<u8> {
    chain_after(None, hash, blocks)
}

/// A message that stores a chain of blocks after a parent.
pub(crate) fn chain_after(parent: Option<u64>, hash: u64, blocks: u64) -> Vec<u8> {
    encode_batch(hash as f64, &[chain_stored(parent, hash, blocks)], None, Encoding::Map)
}

/// An event that stores a chain of blocks after a parent.
pub(crate) fn chain_stored(parent: Option<u64>, hash: u64, blocks: u64) -> EngineEvent<'static> {
    let hashes = hash..hash + blocks;
    EngineEvent::Stored(BlockStored {
        block_hashes: hashes.clone().map(SequenceHash).collect(),
        parent_block_hash: parent.map(SequenceHash),
        token_ids: TokenIds::Plain(hashes.map(|hash| hash as u32).collect()),
        block_size: 1,
        ..BlockStored::default()
    })
}

/// A copy of a listener that is assigned to the first decoder, with fresh state.
pub(crate) fn listener_of_first_decoder(listener: &Arc<Listener>) -> Arc<Listener> {
    Arc::new(Listener {
        id: listener.id,
        model: Arc::clone(&listener.model),
        instance: listener.instance.clone(),
        worker: listener.worker,
        dp_rank: listener.dp_rank,
        options: listener.options.clone(),
        start: listener.start,
        decoder: 0,
        resume_from: None,
        state: ListenerState::new(&listener.options),
    })
}
