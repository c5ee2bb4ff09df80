//! Cache groups of a hybrid model's rank in a dump.

use std::collections::BTreeMap;
use std::fmt;

use flash_indexer_core::groups::{AttentionWindow, GroupBlockSize, GroupChange, GroupEvent, GroupId, SecondaryGroup};
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_wire::{GroupRole, KnownGroup};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::tally::Tally;

/// Cache group of a rank in a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupRecord {
    /// Number of the group in its engine.
    pub group: u32,
    /// Role of the group in an index.
    pub role: RoleRecord,
    /// Tokens in a block of the group, a multiple or a part of the registered size; absent if that is the registered size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub block_size: Option<u32>,
    /// Count and digest of the group's blocks. Absent for the primary group, whose blocks are the rank's, and for groups
    /// that are not indexed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holds: Option<Tally>,
}

/// [`GroupRole`] in a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RoleRecord {
    /// Primary group: its events carry the tokens of blocks.
    #[serde(rename = "indexed")]
    Primary,
    /// Secondary group: its events carry sequence hashes only, and it limits the usable prefix.
    #[serde(rename = "further")]
    Secondary(WindowRecord),
    /// Group of an unsupported kind.
    #[serde(rename = "set_aside")]
    Unsupported,
}

impl fmt::Display for RoleRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Primary => f.write_str("primary"),
            Self::Secondary(WindowRecord::Whole) => f.write_str("secondary, needs the whole prefix"),
            Self::Secondary(WindowRecord::LastBlocks(blocks)) => write!(f, "secondary, needs the last {blocks} blocks"),
            Self::Unsupported => f.write_str("not understood"),
        }
    }
}

/// [`AttentionWindow`] in a dump: the part of a prefix that a group needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WindowRecord {
    /// The whole prefix.
    Whole,
    /// This number of blocks at the end of the prefix.
    LastBlocks(u32),
}

impl GroupRecord {
    /// The secondary group to index, if it is one.
    pub fn kept(&self, registered: BlockSize) -> Option<SecondaryGroup> {
        match (self.role, self.holds) {
            (RoleRecord::Secondary(needs), Some(_)) => {
                let size = self.size(registered).unwrap_or(GroupBlockSize::REGISTERED);
                Some(SecondaryGroup { id: GroupId(self.group), window: needs.into(), size })
            }
            _ => None,
        }
    }

    /// The group as decoder state.
    pub fn known(&self, registered: BlockSize) -> KnownGroup {
        let role = match self.role {
            RoleRecord::Primary => GroupRole::Primary,
            RoleRecord::Secondary(needs) => {
                // The size of a group that holds blocks is known. Otherwise a partial entry could pass for one of its blocks.
                let has_blocks = self.holds.is_some_and(|holds| holds.blocks > 0);
                let size = self.size(registered).or(has_blocks.then_some(GroupBlockSize::REGISTERED));
                GroupRole::Secondary { window: needs.into(), size }
            }
            RoleRecord::Unsupported => GroupRole::Unsupported,
        };
        KnownGroup { id: GroupId(self.group), role }
    }

    /// The block size, if it differs from the registered one.
    fn size(&self, registered: BlockSize) -> Option<GroupBlockSize> {
        read_size(self.group, self.block_size?, registered).ok()
    }

    /// Rejects a block size that no group of a model with this size can have.
    pub(super) fn check(&self, registered: BlockSize) -> Result<(), GroupSizeError> {
        self.block_size.map_or(Ok(()), |tokens| read_size(self.group, tokens, registered).map(drop))
    }

    /// Every group of a rank of a model with this block size, by number: groups that its stream has named, and groups that the
    /// index holds.
    pub fn all(registered: BlockSize, named: &[KnownGroup], stores: &[GroupChange]) -> Vec<Self> {
        let mut records: BTreeMap<u32, Self> = BTreeMap::new();
        for &KnownGroup { id: GroupId(group), role } in named {
            let block_size = match role {
                GroupRole::Secondary { size: Some(size), .. } => size_record(size, registered),
                _ => None,
            };
            records.insert(group, Self { group, role: role.into(), block_size, holds: None });
        }
        for GroupChange { group: SecondaryGroup { id: GroupId(group), window, size }, event } in stores {
            let (role, block_size) = (RoleRecord::Secondary((*window).into()), size_record(*size, registered));
            let record = records.entry(*group).or_insert(Self { group: *group, role, block_size, holds: None });
            let holds = record.holds.get_or_insert_default();
            match event {
                GroupEvent::Stored { tier, blocks, copies } => holds.add_sequence_hashes(*tier, *copies, blocks),
                GroupEvent::Linked(links) => holds.add_links(links),
                GroupEvent::Removed { .. } => {}
            }
        }
        records.into_values().collect()
    }
}

/// Block size in a dump that no cache group of the model can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "cache group {group} has blocks of {tokens} tokens, neither a multiple nor a divisor of the registered {registered}"
)]
pub(super) struct GroupSizeError {
    group: u32,
    tokens: u32,
    registered: u32,
}

/// Tokens in a block of a group as a dump has them: none for the registered size.
pub(super) fn size_record(size: GroupBlockSize, registered: BlockSize) -> Option<u32> {
    (size != GroupBlockSize::REGISTERED).then(|| size.tokens(registered))
}

/// The size of a group's blocks of `tokens` tokens.
pub(super) fn read_size(group: u32, tokens: u32, registered: BlockSize) -> Result<GroupBlockSize, GroupSizeError> {
    let error = GroupSizeError { group, tokens, registered: registered.tokens() };
    GroupBlockSize::of(tokens, registered).ok_or(error)
}

impl From<GroupRole> for RoleRecord {
    fn from(role: GroupRole) -> Self {
        match role {
            GroupRole::Primary => Self::Primary,
            GroupRole::Secondary { window, .. } => Self::Secondary(window.into()),
            GroupRole::Unsupported => Self::Unsupported,
        }
    }
}

impl From<AttentionWindow> for WindowRecord {
    fn from(reach: AttentionWindow) -> Self {
        match reach {
            AttentionWindow::Full => Self::Whole,
            AttentionWindow::LastBlocks(blocks) => Self::LastBlocks(blocks),
        }
    }
}

impl From<WindowRecord> for AttentionWindow {
    fn from(needs: WindowRecord) -> Self {
        match needs {
            WindowRecord::Whole => Self::Full,
            WindowRecord::LastBlocks(blocks) => Self::LastBlocks(blocks),
        }
    }
}
