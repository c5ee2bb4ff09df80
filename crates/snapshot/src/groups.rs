//! Cache groups of a hybrid model's rank in a dump.

use std::collections::BTreeMap;
use std::fmt;

use flash_indexer_core::groups::{AttentionWindow, GroupChange, GroupEvent, GroupId, SecondaryGroup};
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
    pub fn kept(&self) -> Option<SecondaryGroup> {
        match (self.role, self.holds) {
            (RoleRecord::Secondary(needs), Some(_)) => {
                Some(SecondaryGroup { id: GroupId(self.group), window: needs.into() })
            }
            _ => None,
        }
    }

    /// Every group of a rank, by number: groups that its stream has named, and groups that the index holds.
    pub fn all(named: &[KnownGroup], stores: &[GroupChange]) -> Vec<Self> {
        let mut records: BTreeMap<u32, Self> = BTreeMap::new();
        for &KnownGroup { id: GroupId(group), role } in named {
            records.insert(group, Self { group, role: role.into(), holds: None });
        }
        for GroupChange { group: SecondaryGroup { id: GroupId(group), window }, event } in stores {
            let role = RoleRecord::Secondary((*window).into());
            let record = records.entry(*group).or_insert(Self { group: *group, role, holds: None });
            let holds = record.holds.get_or_insert_default();
            if let GroupEvent::Stored { tier, blocks, copies } = event {
                holds.add_sequence_hashes(*tier, *copies, blocks);
            }
        }
        records.into_values().collect()
    }
}

impl From<&GroupRecord> for KnownGroup {
    fn from(record: &GroupRecord) -> Self {
        let role = match record.role {
            RoleRecord::Primary => GroupRole::Primary,
            RoleRecord::Secondary(needs) => GroupRole::Secondary(needs.into()),
            RoleRecord::Unsupported => GroupRole::Unsupported,
        };
        Self { id: GroupId(record.group), role }
    }
}

impl From<GroupRole> for RoleRecord {
    fn from(role: GroupRole) -> Self {
        match role {
            GroupRole::Primary => Self::Primary,
            GroupRole::Secondary(reach) => Self::Secondary(reach.into()),
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
