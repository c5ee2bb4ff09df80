//! One model of one tenant: its index and who feeds it.

mod index;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use arc_swap::Guard;
use flash_indexer_core::groups::{GroupChange, GroupedIndex, RankEvent};
use flash_indexer_core::hashing::{BlockSize, HashVariant, TokenWindow, local_hashes};
use flash_indexer_core::{
    Applied, BlockEvent, DpRank, LocalHash, MatchScores, PerTier, RankMatch, RankSize, SharedIndex, WorkerId,
    WorkerRank,
};
use parking_lot::RwLock;
use rustc_hash::FxHashSet;
use tracing::error;

pub(crate) use self::index::ReplaceableIndex;

use crate::answer::{Answer, RankAnswer};
use crate::recent_uses::RecentUses;
use crate::shared_store::PublishedRanks;
use flash_indexer_explain::{History, SeenVariants};
use flash_indexer_ingest::{Decoders, Listener, Maintain, ModelSink};
use flash_indexer_telemetry::metrics::{Bound, Metrics, ModelCounts, ModelState};
use flash_indexer_telemetry::supervision::{ThreadKind, guarded};
use flash_indexer_types::ClearCause;
use flash_indexer_types::Doubt;
use flash_indexer_types::Trust;
use flash_indexer_types::{InstanceId, ModelKey, Ordinal};
use flash_indexer_wire::AdapterSalt;

/// An index and the instances registered for it.
///
/// The writer of the model is the only one that changes `index`, and `shared` with it; what a query may see of an
/// event that is being applied is up to its design.
pub(crate) struct Model {
    pub key: ModelKey,
    pub block_size: BlockSize,
    /// Adapter of queries that name none: the one that every registration names.
    pub lora_name: RwLock<Option<String>>,
    /// To be read through [`Model::index`]; changed by the methods of the model.
    pub replaceable: ReplaceableIndex,
    /// Through which streams are restarted.
    pub decoders: Weak<Decoders>,
    /// The same for the store, if there is one.
    pub shared: Option<PublishedRanks>,
    pub instances: RwLock<BTreeMap<InstanceId, Instance>>,
    pub windows: Windows,
    pub counts: ModelCounts,
    /// Unique in the process.
    pub id: u64,
    /// Where uses of blocks are counted, if they are.
    pub uses: Option<Arc<RecentUses>>,
    pub metrics: Arc<Metrics>,
    /// What happened lately.
    pub history: History,
    pub spaces: SeenVariants,
    /// Which writer applies the model's events.
    pub writer: usize,
}

/// A registered engine instance.
pub(crate) struct Instance {
    pub worker: WorkerId,
    /// Listeners by rank, registered or named by a batch; none if it is known from a dump alone.
    pub listeners: BTreeMap<DpRank, Arc<Listener>>,
}

/// What the streams of a rank have been through.
pub(crate) struct StreamHistory {
    pub trust: Trust,
    /// The last thing that went wrong.
    pub last_error: Option<String>,
    /// What is missing, and from where on.
    pub doubt: Option<Doubt>,
}

impl Instance {
    /// How far the index can be believed about one of its ranks.
    fn trust(&self, dp_rank: DpRank) -> Trust {
        // Nobody listens: what a dump said of it can only get older.
        self.listeners.get(&dp_rank).map_or(Trust::Degraded, |listener| listener.trust(dp_rank))
    }

    /// The same of the one that can be believed least among its ranks that are listened to and that count.
    pub(crate) fn worst_trust(&self, counts: impl Fn(DpRank) -> bool) -> Option<Trust> {
        let counted = self.listeners.keys().filter(|dp_rank| counts(**dp_rank));
        counted.map(|&dp_rank| self.trust(dp_rank)).max()
    }

    /// What is missing of one of its ranks, and from where on.
    fn doubt(&self, dp_rank: DpRank) -> Option<Doubt> {
        self.listeners.get(&dp_rank)?.doubt(dp_rank)
    }

    /// What went wrong last with what feeds the rank.
    fn last_error(&self, dp_rank: DpRank) -> Option<String> {
        self.listeners.get(&dp_rank)?.report(dp_rank).last_error
    }
}

impl Maintain for Model {
    fn maintain(&self) -> bool {
        self.change(|index| index.maintain())
    }
}

impl ModelSink for Model {
    fn key(&self) -> &ModelKey {
        &self.key
    }

    fn block_size(&self) -> BlockSize {
        self.block_size
    }

    fn writer(&self) -> usize {
        self.writer
    }

    fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    fn index(&self) -> Arc<GroupedIndex> {
        Guard::into_inner(self.replaceable.load())
    }

    fn write(&self, index: &GroupedIndex, rank: WorkerRank, event: &RankEvent, happened: Instant) -> Applied {
        let applied = self.apply_to(index, rank, event);
        if let RankEvent::Indexed(event) = event {
            self.history.note(rank, event, &applied, happened);
        }
        applied
    }

    fn forget(&self, index: &GroupedIndex, rank: WorkerRank, cause: ClearCause, now: Instant) {
        self.clear_in(index, rank);
        self.history.forgotten(rank, cause, now);
    }

    fn last_event(&self) -> Ordinal {
        self.history.last()
    }

    fn replace_failed_index(&self, failed: &Arc<GroupedIndex>, culprit: Option<u64>) {
        Self::replace_failed_index(self, failed, culprit);
    }

    fn note_variant(&self, window: TokenWindow, adapter_salt: &AdapterSalt) {
        self.windows.note(window);
        self.spaces.note(adapter_salt);
    }

    fn list_rank(&self, listener: &Arc<Listener>, dp_rank: DpRank) {
        if let Some(instance) = self.instances.write().get_mut(&listener.instance)
            && instance.listeners.values().any(|listed| Arc::ptr_eq(listed, listener))
        {
            instance.listeners.entry(dp_rank).or_insert_with(|| Arc::clone(listener));
        }
    }

    fn ranks_of(&self, listener: &Listener) -> Vec<DpRank> {
        let instances = self.instances.read();
        let listed = instances.get(&listener.instance).into_iter().flat_map(|instance| &instance.listeners);
        listed.filter(|(_, other)| other.id == listener.id).map(|(&dp_rank, _)| dp_rank).collect()
    }

    fn remove_worker(&self, worker: WorkerId) {
        Self::remove_worker(self, worker);
    }

    fn generation(&self) -> u64 {
        self.replaceable.generation()
    }

    fn is_partial(&self, rank: WorkerRank) -> bool {
        Self::is_partial(self, rank)
    }
}

impl Model {
    /// The index, to be read.
    pub(crate) fn index(&self) -> Guard<Arc<GroupedIndex>> {
        self.replaceable.load()
    }

    /// Applies one event of a rank to `index`, which is the one of the model, and says what it changed. A panic is for the
    /// caller to catch, and to be followed by [`Model::replace_failed_index`].
    pub(crate) fn apply_to(&self, index: &GroupedIndex, rank: WorkerRank, event: &RankEvent) -> Applied {
        #[cfg(any(test, feature = "fault-injection"))]
        crate::faults::apply(event);
        let applied = index.apply_event(rank, event);
        if let Some(shared) = &self.shared {
            shared.apply(rank, event);
        }
        applied
    }

    /// Applies one event of a rank's indexed group that comes from a dump, and records it for explanations.
    pub(crate) fn restore(&self, rank: WorkerRank, event: BlockEvent) {
        let event = RankEvent::Indexed(event);
        let applied = self.apply(rank, &event);
        if let RankEvent::Indexed(event) = &event {
            self.history.note(rank, event, &applied, Instant::now());
        }
    }

    /// [`Model::apply_to`] with the index of now; nothing is changed by an event that panics.
    fn apply(&self, rank: WorkerRank, event: &RankEvent) -> Applied {
        self.change(|index| self.apply_to(index, rank, event))
    }

    /// Changes the index. If that panics, the index is replaced by an empty one.
    pub(crate) fn change<T: Default>(&self, change: impl FnOnce(&GroupedIndex) -> T) -> T {
        let index = self.index();
        guarded(&self.metrics, ThreadKind::Request, "request", || change(&index)).unwrap_or_else(|| {
            self.replace_failed_index(&index, None);
            T::default()
        })
    }

    /// Replaces an index in which a change panicked by an empty one, and has all streams of the model start over: no rank is
    /// exact from now on until its stream has shown again what the rank holds. The stream of the listener `culprit`, whose
    /// event it was, does so without a replay, which would bring the event again.
    pub(crate) fn replace_failed_index(&self, failed: &Arc<GroupedIndex>, culprit: Option<u64>) {
        let why = "a change of the index panicked, a fault of the program: the index starts over";
        let await_restarts = || {
            let mut listeners: BTreeMap<u64, Arc<Listener>> = BTreeMap::new();
            for listener in self.instances.read().values().flat_map(|instance| instance.listeners.values()) {
                if listener.require_restart(why) {
                    listeners.insert(listener.id, Arc::clone(listener));
                }
            }
            listeners
        };
        // At once; and again for those that were registered meanwhile.
        let mut listeners = await_restarts();
        if self.replaceable.replace(failed) {
            self.metrics.index_replaced();
            let (model, tenant) = (&self.key.model_name, &self.key.tenant_id);
            error!(model, tenant, "index replaced by an empty one; its streams start over");
            if let Some(shared) = &self.shared {
                shared.clear_all();
            }
            listeners.append(&mut await_restarts());
        }
        if let Some(decoders) = self.decoders.upgrade() {
            decoders.restart_streams(listeners.into_values(), culprit);
        }
    }

    /// Streams that still have to start over.
    pub(crate) fn awaited_restarts(&self) -> usize {
        let instances = self.instances.read();
        instances.values().flat_map(|instance| instance.listeners.values()).filter(|it| it.needs_restart()).count()
    }

    /// Applies one event of a rank's further groups.
    pub(crate) fn apply_group(&self, rank: WorkerRank, change: GroupChange) -> Applied {
        self.apply(rank, &RankEvent::Secondary(change))
    }

    /// Forgets what was restored of a rank.
    pub(crate) fn clear_restored(&self, rank: WorkerRank) {
        self.clear_rank(rank);
        self.history.forgotten(rank, ClearCause::Service, Instant::now());
    }

    /// Forgets everything that a rank holds.
    pub(crate) fn clear_rank(&self, rank: WorkerRank) {
        self.change(|index| self.clear_in(index, rank));
    }

    /// The same in `index`, as [`Model::apply_to`].
    pub(crate) fn clear_in(&self, index: &GroupedIndex, rank: WorkerRank) {
        index.clear_rank(rank);
        if let Some(shared) = &self.shared {
            shared.clear(rank);
        }
    }

    /// Forgets every rank of a worker.
    pub(crate) fn remove_worker(&self, worker: WorkerId) {
        self.change(|index| index.remove_worker(worker));
        if let Some(shared) = &self.shared {
            shared.remove_worker(worker);
        }
    }

    /// Where content of this adapter and salt is hashed: without an adapter, that of all registrations.
    pub(crate) fn hash_variant(&self, lora_name: Option<&str>, cache_salt: Option<&str>) -> HashVariant {
        match lora_name {
            Some(name) => HashVariant::new(Some(name), cache_salt),
            None => HashVariant::new(self.lora_name.read().as_deref(), cache_salt),
        }
    }

    /// A prompt's blocks, for each token window that the model's engines use.
    pub(crate) fn forms(&self, space: HashVariant, tokens: &[u32]) -> impl Iterator<Item = Vec<LocalHash>> {
        self.windows.in_use().map(move |window| local_hashes(space, tokens, self.block_size, window))
    }

    /// How far a rank of a registered instance can be believed, and what went wrong last.
    pub(crate) fn standing(&self, instance: &InstanceId, dp_rank: DpRank) -> StreamHistory {
        let instances = self.instances.read();
        let instance = instances.get(instance);
        StreamHistory {
            trust: instance.map_or(Trust::Cold, |instance| instance.trust(dp_rank)),
            last_error: instance.and_then(|instance| instance.last_error(dp_rank)),
            doubt: instance.and_then(|instance| instance.doubt(dp_rank)),
        }
    }

    /// How far a rank of a registered instance can be believed, without what went wrong.
    pub(crate) fn listed_trust(&self, instance: &InstanceId, dp_rank: DpRank) -> Trust {
        self.instances.read().get(instance).map_or(Trust::Cold, |instance| instance.trust(dp_rank))
    }

    /// What the index calls an instance, if it is registered.
    pub(crate) fn worker(&self, instance: &InstanceId) -> Option<WorkerId> {
        self.instances.read().get(instance).map(|instance| instance.worker)
    }

    /// How far a rank can be believed, if it is registered or holds something.
    pub(crate) fn trust(&self, instance: &InstanceId, dp_rank: DpRank) -> Option<Trust> {
        let instances = self.instances.read();
        let instance = instances.get(instance)?;
        let rank = WorkerRank { worker: instance.worker, dp_rank };
        let is_known = instance.listeners.contains_key(&dp_rank) || self.index().size(rank).blocks > 0;
        is_known.then(|| instance.trust(dp_rank))
    }

    /// Every rank that is registered or that the index has seen of a registered instance, with its
    /// name.
    pub(crate) fn ranks(&self) -> Vec<(InstanceId, WorkerRank)> {
        let instances = self.instances.read();
        let by_worker: BTreeMap<WorkerId, &InstanceId> =
            instances.iter().map(|(name, instance)| (instance.worker, name)).collect();
        let registered = instances.iter().flat_map(|(name, instance)| {
            let worker = instance.worker;
            instance.listeners.keys().map(move |&dp_rank| (name.clone(), WorkerRank { worker, dp_rank }))
        });
        let indexed = self.index().ranks().into_iter();
        let indexed = indexed.filter_map(|rank| Some((InstanceId::clone(by_worker.get(&rank.worker)?), rank)));
        let mut ranks: Vec<_> = registered.chain(indexed).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Looks anew which adapter every registration names. Called when registrations change.
    pub(crate) fn update_lora_name(&self) {
        let instances = self.instances.read();
        let mut names = instances.values().flat_map(|instance| instance.listeners.values());
        let first = names.next().and_then(|listener| listener.options.lora_name.clone());
        let agreed = first.filter(|first| names.all(|listener| listener.options.lora_name.as_ref() == Some(first)));
        *self.lora_name.write() = agreed;
    }

    /// What all ranks hold together.
    pub(crate) fn size(&self) -> RankSize {
        self.index().sizes().into_iter().map(|(_, size)| size).sum()
    }

    /// Whether a rank holds more than its index has room for: then what it says is a lower bound.
    pub(crate) fn is_partial(&self, rank: WorkerRank) -> bool {
        self.partial_ranks().is_some_and(|ranks| ranks.contains(&rank))
    }

    /// All such ranks; none where memory is not bounded.
    pub(crate) fn partial_ranks(&self) -> Option<Arc<FxHashSet<WorkerRank>>> {
        self.index().memory_bound().map(|bound| bound.partial_ranks)
    }

    /// What metrics tell about the model.
    pub(crate) fn state(&self) -> ModelState {
        let sizes = self.index().sizes();
        ModelState {
            key: self.key.clone(),
            instances: self.instances.read().len(),
            ranks: sizes.len(),
            size: sizes.into_iter().map(|(_, size)| size).sum(),
            bytes: self.index().memory_bytes(),
            twins_passed_over: self.index().twins_passed_over(),
            bound: self.index().memory_bound(),
            counts: self.counts.clone(),
        }
    }

    /// What each rank holds of a prompt of so many tokens, whose blocks have these hashes.
    pub(crate) fn find_prompt(&self, locals: &[LocalHash], tokens: usize) -> MatchScores {
        if self.ends_with_block(locals, tokens) { self.index().find_prompt(locals) } else { self.index().find(locals) }
    }

    /// Whether a prompt of so many tokens, whose blocks have these hashes, ends with the last of them.
    pub(crate) fn ends_with_block(&self, locals: &[LocalHash], tokens: usize) -> bool {
        locals.len() * self.block_size.token_count() == tokens
    }

    /// The answer for every rank; of several queries the deepest match counts.
    pub(crate) fn answer(&self, found: &[(&[LocalHash], MatchScores)]) -> Answer {
        let mut ranks: BTreeMap<WorkerRank, (PerTier<u32>, RankSize)> = BTreeMap::new();
        for (rank, size) in self.index().sizes() {
            ranks.insert(rank, (PerTier::default(), size));
        }
        for &RankMatch { rank, blocks } in found.iter().flat_map(|(_, scores)| &scores.ranks) {
            let (deepest, _) = ranks.entry(rank).or_default();
            for (deepest, blocks) in deepest.0.iter_mut().zip(blocks.0) {
                *deepest = blocks.max(*deepest);
            }
        }
        Answer { ranks: self.name_ranks(&ranks), frequencies: self.note_query(found), ..Answer::default() }
    }

    /// A query was asked in these forms: counts it, and a use of each block, and says how many uses there were before.
    pub(crate) fn note_query(&self, found: &[(&[LocalHash], MatchScores)]) -> Vec<u32> {
        let reached = deepest(found.iter().map(|(query, scores)| (*query, scores)));
        self.counts.query(reached.asked, reached.found.len());
        self.count_uses(reached.found)
    }

    /// Counts a use of each block and says how many there were before.
    fn count_uses(&self, prefix: &[LocalHash]) -> Vec<u32> {
        let Some(uses) = &self.uses else { return Vec::new() };
        let uses = uses.count(self.id, prefix, Instant::now());
        self.metrics.bounded(Bound::RecentUses, uses.forgotten);
        uses.before
    }

    /// Puts names to what the index says; ranks without a registered instance are left out.
    fn name_ranks(&self, found: &BTreeMap<WorkerRank, (PerTier<u32>, RankSize)>) -> Vec<RankAnswer> {
        let block_tokens = u64::from(self.block_size.tokens());
        let partial = self.partial_ranks();
        let is_partial = |rank: &WorkerRank| partial.as_ref().is_some_and(|ranks| ranks.contains(rank));
        let mut answers = Vec::new();
        for (name, instance) in self.instances.read().iter() {
            let every_rank = |dp_rank| WorkerRank { worker: instance.worker, dp_rank };
            let seen = found.range(every_rank(DpRank(0))..=every_rank(DpRank(u32::MAX)));
            let mut ranks: BTreeMap<DpRank, (PerTier<u32>, RankSize)> =
                instance.listeners.keys().map(|&dp_rank| (dp_rank, Default::default())).collect();
            ranks.extend(seen.map(|(rank, found)| (rank.dp_rank, *found)));
            for (dp_rank, (blocks, size)) in ranks {
                answers.push(RankAnswer {
                    instance: name.clone(),
                    dp_rank,
                    tokens: PerTier(blocks.0.map(|blocks| u64::from(blocks) * block_tokens)),
                    blocks_held: size.blocks,
                    trust: instance.trust(dp_rank),
                    partial: is_partial(&WorkerRank { worker: instance.worker, dp_rank }),
                });
            }
        }
        answers
    }
}

/// How deep a query went.
#[derive(Default)]
struct QueryDepth<'q> {
    /// Blocks asked for.
    asked: usize,
    /// Leading blocks that some rank holds in any tier.
    found: &'q [LocalHash],
}

/// Of several forms of one query, the one that goes deepest.
fn deepest<'q, 's>(found: impl Iterator<Item = (&'q [LocalHash], &'s MatchScores)>) -> QueryDepth<'q> {
    let reached = found.map(|(query, scores)| {
        let longest = scores.ranks.iter().map(RankMatch::longest).max().unwrap_or(0) as usize;
        QueryDepth { asked: query.len(), found: &query[..longest.min(query.len())] }
    });
    reached.max_by_key(|reached| (reached.found.len(), reached.asked)).unwrap_or_default()
}

/// Which token windows the model's engines have hashed so far.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    blocks: AtomicBool,
    blocks_and_next: AtomicBool,
}

impl Windows {
    /// An engine uses this window. Relaxed: a query that comes before the first block of a new kind
    /// is visible finds nothing of it either way.
    pub(crate) fn note(&self, window: TokenWindow) {
        let flag = match window {
            TokenWindow::Block => &self.blocks,
            TokenWindow::BlockAndNext => &self.blocks_and_next,
        };
        if !flag.load(Ordering::Relaxed) {
            flag.store(true, Ordering::Relaxed);
        }
    }

    /// The windows to try for a query; plain blocks unless engines use nothing but the other.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = TokenWindow> {
        let next = self.blocks_and_next.load(Ordering::Relaxed);
        let blocks = !next || self.blocks.load(Ordering::Relaxed);
        let windows = [(blocks, TokenWindow::Block), (next, TokenWindow::BlockAndNext)];
        windows.into_iter().filter_map(|(used, window)| used.then_some(window))
    }
}
