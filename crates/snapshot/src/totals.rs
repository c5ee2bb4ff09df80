//! Totals of the blocks read for a rank, checked against the totals in its record.

use std::collections::BTreeMap;

use flash_indexer_core::Tier;
use flash_indexer_core::groups::{GroupBlockSize, GroupChange, GroupEvent, GroupId, SecondaryGroup};
use flash_indexer_core::hashing::BlockSize;

use super::entry::{DumpEntry, StoredBlocks};
use super::error::DumpError;
use super::event::{ReadGroup, ReadTier, StoredFields};
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
        let StoredFields { parent, copies, salt, blocks, remembered, group, gone, kept } = stored;
        let copies = copies.unwrap_or(1);
        if let Some(kept) = kept {
            return Ok(DumpEntry::Kept(kept));
        }
        Ok(match (group, gone) {
            (Some(ReadGroup { group, needs, block_size, blocks, links }), _) => {
                let size = block_size.map(|tokens| read_size(group, tokens, registered)).transpose()?;
                let size = size.unwrap_or(GroupBlockSize::REGISTERED);
                let total = self.groups.entry(group).or_default();
                // An event has blocks or links. Blocks next to links are not read, so the totals differ from a record that counts them.
                let event = if links.is_empty() {
                    total.add_sequence_hashes(tier, copies, &blocks);
                    GroupEvent::Stored { tier, blocks, copies }
                } else {
                    total.add_links(&links);
                    GroupEvent::Linked(links)
                };
                let group = SecondaryGroup { id: GroupId(group), window: needs.into(), size };
                DumpEntry::Secondary(GroupChange { group, event })
            }
            (None, Some(recent)) => {
                self.contents.add_contents(recent.age, recent.parent, &recent.blocks);
                DumpEntry::Recent(recent)
            }
            (None, None) => {
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
    use flash_indexer_core::SequenceHash;
    use flash_indexer_core::groups::BlockLink;

    use super::*;
    use crate::groups::WindowRecord;

    #[test]
    fn blocks_beside_links_are_neither_read_nor_counted() {
        let links = vec![BlockLink { block: SequenceHash(3), before: Some(SequenceHash(2)) }];
        let stored = StoredFields {
            parent: None,
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
        let are_links = matches!(&entry, DumpEntry::Secondary(change) if matches!(change.event, GroupEvent::Linked(_)));
        assert!(are_links, "{entry:?}");
        let mut read = Tally::default();
        read.add_links(&links);
        assert_eq!(totals.groups[&1], read);
    }
}
