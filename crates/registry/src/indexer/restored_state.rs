//! State of a restored rank besides its blocks: the position of its stream, and the state of the stream's decoder.

use flash_indexer_core::groups::{GroupChange, GroupEvent, RankEvent};
use flash_indexer_core::hashing::Salt;
use flash_indexer_core::{Block, BlockEvent, RemovedCopies, SequenceHash, Tier, WorkerRank};
use flash_indexer_ingest::{DecoderState, ModelSink};
use flash_indexer_snapshot::{DumpEntry, RankRecord, StreamRecord, UnheldAncestors, recent_blocks};
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_types::{RankPosition, Trust};
use flash_indexer_wire::{Age, RECENT_BLOCKS_MAX, SaltedBlock, SaltedCopies};

use crate::model::Model;

/// State of a restored rank besides its blocks.
#[derive(Debug, Default)]
pub(super) struct RestoredState {
    /// Position of its stream, if the dump has it.
    stream: Option<StreamRecord>,
    /// State that the decoder of its stream needs.
    pub(super) decoder_state: DecoderState,
    /// Blocks, cache groups and contents that exceeded a limit.
    rejected: u64,
    /// Generation of the index that the blocks were restored into, if any were.
    generation: Option<u64>,
    /// Blocks that are stored only while their descendants are restored. The rank does not hold them.
    kept: Vec<SequenceHash>,
}

/// Maximum number of blocks in one change of an index.
const EVENT_BLOCKS_MAX: usize = 4_096;

impl RestoredState {
    /// Applies one entry of the dump.
    pub(super) fn apply_entry(&mut self, model: &Model, rank: WorkerRank, entry: DumpEntry) {
        self.generation.get_or_insert_with(|| model.replaceable.generation());
        match entry {
            DumpEntry::Blocks(stored) => {
                let mut copies = SaltedCopies::default();
                copies[stored.tier] = u16::try_from(stored.copies).unwrap_or(u16::MAX);
                self.record_salt(stored.salt, copies, &stored.blocks);
                self.record_contents(stored.remembered, stored.parent, &stored.blocks);
                model.restore(rank, BlockEvent::from(stored));
            }
            DumpEntry::Secondary(change) => self.apply_group_change(model, rank, change),
            DumpEntry::Recent(gone) => {
                self.record_salt(gone.salt, SaltedCopies::default(), &gone.blocks);
                self.record_contents(Some(gone.age), gone.parent, &gone.blocks);
            }
            DumpEntry::Kept(UnheldAncestors { parent, blocks, salt }) => {
                self.record_salt(salt, SaltedCopies::default(), &blocks);
                self.kept.extend(blocks.iter().map(|block| block.sequence));
                let stored = BlockEvent::Stored { tier: Tier::Device, parent, blocks, copies: 1 };
                model.apply(rank, &RankEvent::Primary(stored));
            }
        }
    }

    /// Completes the restored rank, once all entries of the dump are applied. `lists_other_ranks` is true if the dump lists ranks of the
    /// instance whose state does not continue from it.
    pub(super) fn complete(&mut self, model: &Model, rank: WorkerRank, lists_other_ranks: bool) {
        // Blocks that the rank does not hold, now that all of their descendants are restored. The index keeps them as it did before.
        for blocks in std::mem::take(&mut self.kept).chunks(EVENT_BLOCKS_MAX) {
            let removed =
                BlockEvent::Removed { tier: Tier::Device, blocks: blocks.to_vec(), copies: RemovedCopies::One };
            model.apply(rank, &RankEvent::Primary(removed));
        }
        if lists_other_ranks && let Some(stream) = &mut self.stream {
            stream.unlisted_degraded = true;
        }
    }

    /// Records the salt of blocks, which the decoder of the stream needs.
    fn record_salt(&mut self, salt: Option<Salt>, copies: SaltedCopies, blocks: &[Block]) {
        let Some(salt) = salt else { return };
        let salted = blocks.iter().map(|block| SaltedBlock { sequence: block.sequence, salt, copies });
        self.decoder_state.block_state.salts.extend(salted);
    }

    /// Records the contents of blocks, which the decoder of the stream needs.
    fn record_contents(&mut self, age: Option<Age>, parent: Option<SequenceHash>, blocks: &[Block]) {
        if let Some(age) = age {
            let contents = self.decoder_state.block_state.contents.get_or_insert_default();
            let room = RECENT_BLOCKS_MAX.saturating_sub(contents.len());
            contents.extend(recent_blocks(parent, blocks, age).take(room));
            self.rejected += blocks.len().saturating_sub(room) as u64;
        }
    }

    /// Applies blocks or links of a secondary cache group.
    fn apply_group_change(&mut self, model: &Model, rank: WorkerRank, change: GroupChange) {
        let rejected = model.apply(rank, &RankEvent::Secondary(change)).refused;
        if rejected > 0 {
            model.metrics.limit_reached_by(Limit::CacheGroups, rejected);
            self.rejected += rejected;
        }
    }

    /// Applies the record of the rank, which precedes its entries.
    pub(super) fn apply_record(&mut self, model: &Model, rank: WorkerRank, record: &RankRecord) {
        self.generation.get_or_insert_with(|| model.replaceable.generation());
        record.windows.iter().for_each(|&window| model.windows.record(window.into()));
        self.stream = record.stream;
        let registered = model.block_size;
        let known = record.groups.as_ref().map(|groups| groups.iter().map(|group| group.known(registered)));
        self.decoder_state.groups = known.map(Iterator::collect);
        if record.remembers.is_some() {
            // The engine offloads, even if there are no contents yet.
            self.decoder_state.block_state.contents.get_or_insert_default();
        }
        for group in record.groups.iter().flatten().filter_map(|group| group.kept(registered)) {
            // An empty group limits the usable blocks as well.
            let event = GroupEvent::Stored { tier: Tier::Device, blocks: Vec::new(), copies: 1 };
            self.apply_group_change(model, rank, GroupChange { group, event });
        }
    }

    /// Whether the index that the blocks were restored into has been replaced since.
    pub(super) fn is_index_replaced(&self, model: &dyn ModelSink) -> bool {
        self.generation.is_some_and(|generation| generation != model.generation())
    }

    /// The position in the rank's stream at which its blocks are valid.
    pub(super) fn position(&self) -> RankPosition {
        match self.stream {
            Some(StreamRecord { cursor, epoch, trust, unlisted_degraded }) => {
                let trust = if self.rejected > 0 { Trust::Degraded } else { trust };
                RankPosition { cursor: cursor.map(Into::into), epoch, trust, unlisted_degraded }
            }
            None => RankPosition::UNKNOWN,
        }
    }
}
