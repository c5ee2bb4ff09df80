//! Totals of the blocks read for a rank, checked against the totals in its record.

use std::collections::BTreeMap;

use flash_indexer_core::groups::{GroupBlockSize, GroupId, SecondaryGroup};
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::{SequenceHash, Tier};
use flash_indexer_types::hashes::AnyHash;

use super::entry::{DumpEntry, GroupLinks, RecentBlocks, SecondaryBlocks, StoredBlocks, UnheldAncestors};
use super::error::DumpError;
use super::event::{KeptFields, ReadGroup, ReadTier, RecentFields, StoredFields};
use super::groups::{GroupSizeError, read_size};
use super::record::RankRecord;
use super::tally::Tally;

/// Totals of the blocks read for one rank.
#[derive(Debug, Default)]
pub(super) struct ReceivedTotals {
    /// Blocks of the primary cache group.
    pub(super) blocks: Tally,
    /// Blocks of secondary cache groups, by number.
    groups: BTreeMap<u32, Tally>,
    /// Decoder state.
    contents: Tally,
}

impl ReceivedTotals {
    /// Counts an event, and converts it to an entry.
    pub(super) fn count(
        &mut self,
        tier: Option<ReadTier>,
        stored: StoredFields,
        registered: BlockSize,
    ) -> Result<DumpEntry, GroupSizeError> {
        let tier = tier.map_or(Tier::Device, |tier| tier.0);
        let StoredFields { parent_hash, copies, salt, blocks, remembered, group, gone, kept } = stored;
        let copies = copies.unwrap_or(1);
        let sequence = |hash: AnyHash| SequenceHash(hash.0);
        if let Some(KeptFields { parent_hash, salt, blocks }) = kept {
            return Ok(DumpEntry::Kept(UnheldAncestors { parent: parent_hash.map(sequence), blocks, salt }));
        }
        Ok(match (group, gone) {
            (Some(ReadGroup { group, needs, block_size, blocks: hashes, links }), _) => {
                let size = block_size.map(|tokens| read_size(group, tokens, registered)).transpose()?;
                let total = self.groups.entry(group).or_default();
                // An event has blocks or links. Blocks next to links are not read, so the totals differ from a record that counts them.
                match links.is_empty() {
                    true => total.add_sequence_hashes(tier, copies, &hashes),
                    false => total.add_links(&links),
                }
                let group = SecondaryGroup {
                    id: GroupId(group),
                    window: needs.into(),
                    size: size.unwrap_or(GroupBlockSize::REGISTERED),
                };
                match links.is_empty() {
                    true => DumpEntry::Secondary(SecondaryBlocks { group, tier, copies, hashes }),
                    false => DumpEntry::Links(GroupLinks { group, links }),
                }
            }
            (None, Some(RecentFields { remembered, parent_hash, salt, blocks })) => {
                let (parent, age) = (parent_hash.map(sequence), remembered.into());
                self.contents.add_contents(age, parent, &blocks);
                DumpEntry::Recent(RecentBlocks { parent, blocks, salt, age })
            }
            (None, None) => {
                let (parent, remembered) = (parent_hash.map(sequence), remembered.map(Into::into));
                self.blocks.add(tier, copies, parent, &blocks);
                if let Some(age) = remembered {
                    self.contents.add_contents(age, parent, &blocks);
                }
                DumpEntry::Blocks(StoredBlocks { tier, parent, copies, blocks, salt, remembered })
            }
        })
    }

    /// Checks the totals against a rank's record.
    pub(super) fn check(mut self, record: &RankRecord) -> Result<(), DumpError> {
        let rank = || format!("rank {} of instance {} of {}", record.dp_rank, record.instance_id, record.key());
        if record.holds != self.blocks {
            return Err(DumpError::Incomplete { of: rank(), declared: record.holds, received: self.blocks });
        }
        let declared = record.remembers.unwrap_or_default();
        if declared != self.contents {
            let of = format!("the remembered blocks of {}", rank());
            return Err(DumpError::Incomplete { of, declared, received: self.contents });
        }
        let of_group = |group: u32| format!("cache group {group} of {}", rank());
        for group in record.groups.iter().flatten() {
            let declared = group.holds.unwrap_or_default();
            let received = self.groups.remove(&group.group).unwrap_or_default();
            if declared != received {
                return Err(DumpError::Incomplete { of: of_group(group.group), declared, received });
            }
        }
        match self.groups.pop_first() {
            None => Ok(()),
            Some((group, received)) => {
                Err(DumpError::Incomplete { of: of_group(group), declared: Tally::default(), received })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use flash_indexer_core::groups::BlockLink;

    use super::*;
    use crate::groups::WindowRecord;

    #[test]
    fn blocks_beside_links_are_neither_read_nor_counted() {
        let links = vec![BlockLink { block: SequenceHash(3), before: Some(SequenceHash(2)) }];
        let stored = StoredFields {
            parent_hash: None,
            copies: None,
            salt: None,
            blocks: Vec::new(),
            remembered: None,
            group: Some(ReadGroup {
                group: 1,
                needs: WindowRecord::LastBlocks(2),
                block_size: None,
                blocks: vec![SequenceHash(7)],
                links: links.clone(),
            }),
            gone: None,
            kept: None,
        };
        let mut totals = ReceivedTotals::default();
        let entry = totals.count(None, stored, BlockSize::new(16).expect("a size")).expect("the registered size");
        assert!(matches!(entry, DumpEntry::Links(_)), "{entry:?}");
        let mut read = Tally::default();
        read.add_links(&links);
        assert_eq!(totals.groups[&1], read);
    }
}
