//! The table of entries by position and local hash.

use dashmap::DashMap;
use dashmap::mapref::entry::Entry as Slot;
use flash_indexer_core::hashing::next_sequence_hash;
use flash_indexer_core::keyed::KeyedState;
use flash_indexer_core::rank_blocks::{Placement, Tiers};
use flash_indexer_core::{LocalHash, SequenceHash, Tier};
use xxhash_rust::xxh3::xxh3_64;

use super::entry::Entry;
use crate::holders::Holders;

/// Entries by position and local hash, in shards with a lock each.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: DashMap<(u32, LocalHash), Entry, KeyedState>,
}

/// The address of a block in the table. It contains the inputs for the addresses of the blocks after it.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockAddress {
    /// Number of blocks up to and including this one; zero before the first block of every sequence.
    depth: u32,
    /// Whether the block is a twin: a second block of one rank for one prefix.
    is_twin: bool,
    local: LocalHash,
    prefix: SequenceHash,
}

impl BlockAddress {
    const ROOT: Self = Self { depth: 0, is_twin: false, local: LocalHash(0), prefix: SequenceHash(0) };

    fn key(self) -> (u32, LocalHash) {
        (self.depth - 1, self.local)
    }

    fn next_prefix(self, local: LocalHash) -> SequenceHash {
        next_sequence_hash((self.depth > 0).then_some(self.prefix), local)
    }
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Runs `read` on the entry of a position under the lock of its shard. `read` must not use the table.
    pub(super) fn read<R>(&self, position: usize, local: LocalHash, read: impl FnOnce(&Entry) -> R) -> Option<R> {
        let entry = self.entries.get(&(u32::try_from(position).ok()?, local))?;
        Some(read(&entry))
    }

    fn change(&self, address: BlockAddress, change: impl FnOnce(&mut Holders)) {
        let mut entry = self.entries.get_mut(&address.key()).expect("an address has an entry");
        change(entry.holders_mut(address.prefix).expect("an address has holders"));
    }

    fn join(
        &self,
        parent: BlockAddress,
        local: LocalHash,
        sequence: SequenceHash,
        slot: u32,
        tiers: Tiers,
    ) -> BlockAddress {
        let prefix = parent.next_prefix(local);
        let mut address = BlockAddress { depth: parent.depth + 1, is_twin: false, local, prefix };
        let mut entry = self.entries.entry(address.key()).or_insert_with(|| Entry::new(prefix));
        if entry.holders(prefix).is_some_and(|holders| holders.contains(slot)) {
            address.is_twin = true;
            address.prefix = twin_prefix(prefix, sequence);
            entry.twin_or_insert(prefix, address.prefix).join(slot, tiers);
        } else {
            entry.holders_or_insert(prefix).join(slot, tiers);
        }
        address
    }

    fn leave(&self, address: BlockAddress, slot: u32) {
        let Slot::Occupied(mut entry) = self.entries.entry(address.key()) else { return };
        let holders = entry.get_mut().holders_mut(address.prefix).expect("an address has holders");
        holders.leave(slot);
        if holders.is_empty() && entry.get_mut().remove(address.prefix) {
            entry.remove();
        }
    }
}

/// The prefix hash of a twin. It depends on the twin's name, so that the blocks after each name have different addresses.
fn twin_prefix(prefix: SequenceHash, name: SequenceHash) -> SequenceHash {
    let mut bytes = *b"twin of ........ named ........";
    bytes[8..16].copy_from_slice(&prefix.0.to_le_bytes());
    bytes[23..31].copy_from_slice(&name.0.to_le_bytes());
    SequenceHash(xxh3_64(&bytes))
}

/// The placement of one rank's blocks in the table. An entry does not link to the entries after it.
pub(super) struct RankEntries<'t> {
    pub(super) table: &'t Table,
    pub(super) slot: u32,
    /// Number of the rank's twins.
    pub(super) twins: &'t mut usize,
}

impl Placement for RankEntries<'_> {
    type Slot = BlockAddress;

    fn root(&self) -> BlockAddress {
        BlockAddress::ROOT
    }

    fn join(&mut self, &parent: &BlockAddress, local: LocalHash, sequence: SequenceHash, tiers: Tiers) -> BlockAddress {
        let address = self.table.join(parent, local, sequence, self.slot, tiers);
        *self.twins += usize::from(address.is_twin);
        address
    }

    fn hold(&mut self, &address: &BlockAddress, tier: Tier) {
        self.table.change(address, |holders| holders.hold(self.slot, tier));
    }

    fn release(&mut self, &address: &BlockAddress, tier: Tier) {
        self.table.change(address, |holders| holders.release(self.slot, tier));
    }

    fn leave(&mut self, &address: &BlockAddress) {
        self.table.leave(address, self.slot);
        *self.twins -= usize::from(address.is_twin);
    }
}
