//! What has come of a rank, to be held against what its record says.

use std::collections::BTreeMap;

use flash_indexer_core::groups::{GroupId, SecondaryGroup};
use flash_indexer_core::{SequenceHash, Tier};

use super::event::{ReadGroup, ReadRecent, ReadStored, ReadTier};
use super::read::{DumpEntry, DumpError, RecentBlocks, StoredBlocks, StoredNames};
use super::record::RankRecord;
use super::tally::Tally;
use flash_indexer_types::hashes::AnyHash;

#[derive(Debug, Default)]
pub(super) struct ReceivedTotals {
    /// Of the indexed cache group.
    pub(super) blocks: Tally,
    /// Of others, by number.
    groups: BTreeMap<u32, Tally>,
    /// Contents that its stream remembers.
    contents: Tally,
}

impl ReceivedTotals {
    /// What an event that was read says, counted.
    pub(super) fn take(&mut self, tier: Option<ReadTier>, stored: ReadStored) -> DumpEntry {
        let tier = tier.map_or(Tier::Device, |tier| tier.0);
        let ReadStored { parent_hash, copies, salt, blocks, remembered, group, gone } = stored;
        let copies = copies.unwrap_or(1);
        let name = |hash: AnyHash| SequenceHash(hash.0);
        match (group, gone) {
            (Some(ReadGroup { group, needs, blocks: names }), _) => {
                self.groups.entry(group).or_default().add_names(tier, copies, &names);
                let group = SecondaryGroup { id: GroupId(group), window: needs.into() };
                DumpEntry::Names(StoredNames { group, tier, copies, names })
            }
            (None, Some(ReadRecent { remembered, parent_hash, salt, blocks })) => {
                let (parent, age) = (parent_hash.map(name), remembered.into());
                self.contents.add_contents(age, parent, &blocks);
                DumpEntry::Gone(RecentBlocks { parent, blocks, salt, age })
            }
            (None, None) => {
                let (parent, remembered) = (parent_hash.map(name), remembered.map(Into::into));
                self.blocks.add(tier, copies, parent, &blocks);
                if let Some(age) = remembered {
                    self.contents.add_contents(age, parent, &blocks);
                }
                DumpEntry::Blocks(StoredBlocks { tier, parent, copies, blocks, salt, remembered })
            }
        }
    }

    /// Whether a rank came as its record says.
    pub(super) fn check(mut self, record: &RankRecord) -> Result<(), DumpError> {
        let rank = || format!("rank {} of instance {} of {}", record.dp_rank, record.instance_id, record.key());
        if record.holds != self.blocks {
            return Err(DumpError::Incomplete { of: rank(), told: record.holds, came: self.blocks });
        }
        let told = record.remembers.unwrap_or_default();
        if told != self.contents {
            let of = format!("what is remembered of {}", rank());
            return Err(DumpError::Incomplete { of, told, came: self.contents });
        }
        let of_group = |group: u32| format!("cache group {group} of {}", rank());
        for group in record.groups.iter().flatten() {
            let told = group.holds.unwrap_or_default();
            let came = self.groups.remove(&group.group).unwrap_or_default();
            if told != came {
                return Err(DumpError::Incomplete { of: of_group(group.group), told, came });
            }
        }
        match self.groups.pop_first() {
            None => Ok(()),
            Some((group, came)) => Err(DumpError::Incomplete { of: of_group(group), told: Tally::default(), came }),
        }
    }
}
