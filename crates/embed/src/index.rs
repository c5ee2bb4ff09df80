//! The index: registrations, changes, messages and sizes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use flash_indexer_core::groups::GroupedIndex;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::run::RunIndex;
use flash_indexer_core::{AppliedChanges, BlockEvent, RankSize, SharedIndex, TokenWindows, WorkerId, WorkerRank};
use flash_indexer_wire::{LiveMessage, ReplayReply};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use crate::error::EmbedError;
use crate::instance::{Input, Instance};
use crate::listed::ListedRanks;
use crate::options::EngineOptions;
use crate::report::MessageReport;
use crate::state::{IndexState, RANKS_MAX};
use crate::trust::RankTrust;

/// The index of a fleet that serves one model with blocks of one size.
///
/// Changes come from engine messages ([`EmbeddedIndex::apply_frames`], with sequence numbers, cache groups, salts and
/// adapters), or from the caller ([`EmbeddedIndex::apply`]). Each rank has one source.
///
/// # Consistency
///
/// Every method may be called from any thread. The changes of one instance are applied one call after the other; those of
/// one rank must be passed in the order in which its engine made them. Queries take no lock that a change holds, and the
/// blocks of a change become visible one after the other, as [`RunIndex`] documents; ranks of hybrid models, and queries
/// right after a registration, wait for short moments. When no change is under way, answers are exact for ranks that are
/// [`Exact`](crate::TrustState::Exact).
///
/// # Panics
///
/// A panic during a change is a defect of this library. All later calls then return [`EmbedError::Abandoned`].
pub struct EmbeddedIndex {
    pub(crate) shared: IndexState,
    instances: RwLock<FxHashMap<WorkerId, Arc<Mutex<Instance>>>>,
    is_abandoned: AtomicBool,
}

impl fmt::Debug for EmbeddedIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedIndex").field("block_size", &self.shared.block_size).finish_non_exhaustive()
    }
}

impl EmbeddedIndex {
    /// An index without instances, for blocks of this size.
    #[must_use]
    pub fn new(block_size: BlockSize) -> Self {
        let shared = IndexState {
            block_size,
            index: GroupedIndex::new(Box::<RunIndex>::default()),
            listed: ListedRanks::default(),
            windows: TokenWindows::default(),
        };
        Self { shared, instances: RwLock::default(), is_abandoned: AtomicBool::new(false) }
    }

    /// Size of the blocks.
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        self.shared.block_size
    }

    /// Registers an instance. Its ranks are known from their first message or change.
    ///
    /// # Errors
    ///
    /// When it is registered already.
    pub fn register(&self, worker: WorkerId, options: EngineOptions) -> Result<(), EmbedError> {
        self.check()?;
        let mut instances = self.instances.write();
        if instances.contains_key(&worker) {
            return Err(EmbedError::AlreadyRegistered(worker));
        }
        if instances.len() >= RANKS_MAX {
            return Err(EmbedError::TooManyRanks { max: RANKS_MAX });
        }
        instances.insert(worker, Arc::new(Mutex::new(Instance::new(worker, options))));
        Ok(())
    }

    /// Removes an instance with all of its blocks. No answer includes it after the call returns. Waits for a running
    /// change of the instance; changes of other instances wait meanwhile.
    ///
    /// # Errors
    ///
    /// When it is not registered.
    pub fn unregister(&self, worker: WorkerId) -> Result<(), EmbedError> {
        self.check()?;
        // Held until the blocks are removed: a new registration must not lose its own blocks.
        let mut instances = self.instances.write();
        let instance = instances.remove(&worker).ok_or(EmbedError::NotRegistered(worker))?;
        let mut instance = instance.lock();
        instance.is_ended = true;
        self.shared.listed.remove_worker(worker);
        let _guard = AbandonOnPanic(self);
        self.shared.index.remove_worker(worker);
        Ok(())
    }

    /// The registered instances, in ascending order.
    #[must_use]
    pub fn instances(&self) -> Vec<WorkerId> {
        let mut workers: Vec<WorkerId> = self.instances.read().keys().copied().collect();
        workers.sort_unstable();
        workers
    }

    /// Applies a change of a rank, and returns what it changed. Linear in its blocks.
    ///
    /// # Errors
    ///
    /// When the instance is not registered, or there are too many ranks.
    pub fn apply(&self, rank: WorkerRank, event: &BlockEvent) -> Result<AppliedChanges, EmbedError> {
        self.change(rank.worker, |instance| instance.apply(&self.shared, rank.dp_rank, event))
    }

    /// Applies the frames of one multipart message of an engine: `[topic, sequence, payload]`. `stream` is the rank of the
    /// endpoint that sent it; the batch may name another one. Linear in the payload.
    ///
    /// Events that cannot be applied are in the report, and degrade their rank.
    ///
    /// # Errors
    ///
    /// When the instance is not registered, or the stream cannot be one of it.
    pub fn apply_frames<F: AsRef<[u8]>>(
        &self,
        stream: WorkerRank,
        frames: &[F],
        now: Instant,
    ) -> Result<MessageReport, EmbedError> {
        let input = match LiveMessage::from_frames(frames) {
            Ok(LiveMessage { sequence, payload, .. }) => Input::Live { sequence, payload },
            Err(error) => Input::BadFrames(error),
        };
        self.receive(stream, input, now)
    }

    /// Applies one message, given as its sequence number and its batch.
    ///
    /// # Errors
    ///
    /// As [`EmbeddedIndex::apply_frames`].
    pub fn apply_payload(
        &self,
        stream: WorkerRank,
        sequence: impl Into<Option<u64>>,
        payload: &[u8],
        now: Instant,
    ) -> Result<MessageReport, EmbedError> {
        self.receive(stream, Input::Live { sequence: sequence.into(), payload }, now)
    }

    /// Applies the frames of one message of a reply to [`MessageReport::replay`], or its end.
    ///
    /// # Errors
    ///
    /// As [`EmbeddedIndex::apply_frames`].
    pub fn apply_replayed<F: AsRef<[u8]>>(
        &self,
        stream: WorkerRank,
        attempt: u32,
        frames: &[F],
        now: Instant,
    ) -> Result<MessageReport, EmbedError> {
        self.receive(stream, Input::Replayed { attempt, reply: ReplayReply::from_frames(frames) }, now)
    }

    /// Handles an established connection to a stream's endpoint. All messages are requested immediately from an engine
    /// that replays, instead of with its first live message.
    ///
    /// # Errors
    ///
    /// As [`EmbeddedIndex::apply_frames`].
    pub fn connected(&self, stream: WorkerRank, now: Instant) -> Result<MessageReport, EmbedError> {
        self.receive(stream, Input::Connected, now)
    }

    /// Handles a lost connection to a stream's endpoint: the engine may restart before the next one, so its ranks are not
    /// exact until a replay shows that it did not.
    ///
    /// # Errors
    ///
    /// As [`EmbeddedIndex::apply_frames`].
    pub fn disconnected(&self, stream: WorkerRank, now: Instant) -> Result<MessageReport, EmbedError> {
        self.receive(stream, Input::Disconnected, now)
    }

    /// Handles the passing of time for a stream whose replay is under way: a request without a reply is repeated.
    ///
    /// # Errors
    ///
    /// As [`EmbeddedIndex::apply_frames`].
    pub fn tick(&self, stream: WorkerRank, now: Instant) -> Result<MessageReport, EmbedError> {
        self.receive(stream, Input::Tick, now)
    }

    /// Trust in a rank, and its reason unless it is exact or cold; none if the index has no such rank.
    ///
    /// # Errors
    ///
    /// When the instance is not registered.
    pub fn trust(&self, rank: WorkerRank) -> Result<Option<RankTrust>, EmbedError> {
        self.with_instance(rank.worker, |instance| Ok(instance.trust(&self.shared, rank.dp_rank)))
    }

    /// Number of blocks of a rank; zero of one that the index does not have. Takes no lock.
    ///
    /// # Errors
    ///
    /// When a change has panicked.
    pub fn size(&self, rank: WorkerRank) -> Result<RankSize, EmbedError> {
        self.check()?;
        Ok(self.shared.index.size(rank))
    }

    /// Every rank with its number of blocks, by instance and number. Costs the number of ranks.
    ///
    /// # Errors
    ///
    /// When a change has panicked.
    pub fn sizes(&self) -> Result<Vec<(WorkerRank, RankSize)>, EmbedError> {
        self.check()?;
        let sized = |rank| (rank, self.shared.index.size(rank));
        Ok(self.shared.listed.ranks().into_iter().map(sized).collect())
    }

    /// Bytes that the index takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.shared.index.memory_bytes().unwrap_or_default()
    }

    /// Does a bounded part of the work that changes have deferred, and returns whether more is left. Each change does such a
    /// part as well, so only an idle caller needs it, to free memory. No answer depends on it, except for ranks with blocks
    /// that wait for a parent.
    ///
    /// # Errors
    ///
    /// When a change has panicked.
    pub fn maintain(&self) -> Result<bool, EmbedError> {
        self.check()?;
        let _guard = AbandonOnPanic(self);
        Ok(self.shared.index.maintain())
    }

    /// Fails if a change has panicked.
    pub(crate) fn check(&self) -> Result<(), EmbedError> {
        match self.is_abandoned.load(Ordering::Acquire) {
            true => Err(EmbedError::Abandoned),
            false => Ok(()),
        }
    }

    fn receive(&self, stream: WorkerRank, input: Input<'_>, now: Instant) -> Result<MessageReport, EmbedError> {
        self.change(stream.worker, |instance| instance.receive(&self.shared, stream.dp_rank, input, now))
    }

    /// Makes a change of an instance, and does a part of the deferred work: no thread does it while the index is idle.
    fn change<T>(
        &self,
        worker: WorkerId,
        change: impl FnOnce(&mut Instance) -> Result<T, EmbedError>,
    ) -> Result<T, EmbedError> {
        let result = self.with_instance(worker, change)?;
        self.maintain()?;
        Ok(result)
    }

    fn with_instance<T>(
        &self,
        worker: WorkerId,
        call: impl FnOnce(&mut Instance) -> Result<T, EmbedError>,
    ) -> Result<T, EmbedError> {
        self.check()?;
        let instance = self.instances.read().get(&worker).cloned().ok_or(EmbedError::NotRegistered(worker))?;
        let mut instance = instance.lock();
        if instance.is_ended {
            return Err(EmbedError::NotRegistered(worker));
        }
        let _guard = AbandonOnPanic(self);
        call(&mut instance)
    }
}

/// Abandons the index when a panic unwinds through a change: a query would wait for the broken change to end.
struct AbandonOnPanic<'a>(&'a EmbeddedIndex);

impl Drop for AbandonOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.is_abandoned.store(true, Ordering::Release);
            self.0.shared.index.abandon();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use flash_indexer_core::LocalHash;

    use super::*;

    #[test]
    fn every_call_fails_after_a_change_panicked() {
        let index = EmbeddedIndex::new(BlockSize::new(1).expect("not zero"));
        let worker = WorkerId(1);
        index.register(worker, EngineOptions::default()).expect("registered");
        let change = || index.with_instance::<()>(worker, |_| panic!("panic of the test"));
        assert!(catch_unwind(AssertUnwindSafe(change)).is_err());
        assert_eq!(index.find_hashes(&[LocalHash(1)], None), Err(EmbedError::Abandoned));
        assert_eq!(index.register(WorkerId(2), EngineOptions::default()), Err(EmbedError::Abandoned));
        assert_eq!(index.maintain(), Err(EmbedError::Abandoned));
    }
}
