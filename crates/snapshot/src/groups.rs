//! What a dump says of the cache groups of a rank of a hybrid model.

use std::collections::BTreeMap;
use std::fmt;

use flash_indexer_core::groups::{AttentionWindow, GroupChange, GroupEvent, GroupId, SecondaryGroup};
use flash_indexer_wire::{GroupRole, KnownGroup};
use serde::{Deserialize, Serialize};

use super::tally::Tally;

/// A cache group of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord {
    /// Its number inside its engine.
    pub group: u32,
    /// What it is to an index.
    pub role: RoleRecord,
    /// Its blocks, counted and digested; nothing of the indexed group, whose blocks are the rank's, and of groups
    /// that are not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holds: Option<Tally>,
}

/// A [`GroupRole`] in a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoleRecord {
    /// It tells what blocks contain.
    Indexed,
    /// It is told by names, and limits what is usable.
    Further(ReachRecord),
    /// It is not understood.
    SetAside,
}

impl fmt::Display for RoleRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Indexed => f.write_str("primary"),
            Self::Further(ReachRecord::Whole) => f.write_str("secondary, needs the whole prefix"),
            Self::Further(ReachRecord::LastBlocks(blocks)) => write!(f, "secondary, needs the last {blocks} blocks"),
            Self::SetAside => f.write_str("not understood"),
        }
    }
}

/// A [`AttentionWindow`] in a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReachRecord {
    /// The whole prefix.
    Whole,
    /// So many blocks at its end.
    LastBlocks(u32),
}

impl GroupRecord {
    /// The group as an index keeps it, if it does.
    pub fn kept(&self) -> Option<SecondaryGroup> {
        match (self.role, self.holds) {
            (RoleRecord::Further(needs), Some(_)) => {
                Some(SecondaryGroup { id: GroupId(self.group), window: needs.into() })
            }
            _ => None,
        }
    }

    /// Every group of a rank, by number: those that its stream has named, and those that the index keeps.
    pub fn all(named: &[KnownGroup], stores: &[GroupChange]) -> Vec<Self> {
        let mut records: BTreeMap<u32, Self> = BTreeMap::new();
        for &KnownGroup { id: GroupId(group), role } in named {
            records.insert(group, Self { group, role: role.into(), holds: None });
        }
        for GroupChange { group: SecondaryGroup { id: GroupId(group), window: reach }, event } in stores {
            let role = RoleRecord::Further((*reach).into());
            let record = records.entry(*group).or_insert(Self { group: *group, role, holds: None });
            let holds = record.holds.get_or_insert_default();
            if let GroupEvent::Stored { tier, blocks, copies } = event {
                holds.add_names(*tier, *copies, blocks);
            }
        }
        records.into_values().collect()
    }
}

impl From<&GroupRecord> for KnownGroup {
    fn from(record: &GroupRecord) -> Self {
        let role = match record.role {
            RoleRecord::Indexed => GroupRole::Primary,
            RoleRecord::Further(needs) => GroupRole::Secondary(needs.into()),
            RoleRecord::SetAside => GroupRole::Unsupported,
        };
        Self { id: GroupId(record.group), role }
    }
}

impl From<GroupRole> for RoleRecord {
    fn from(role: GroupRole) -> Self {
        match role {
            GroupRole::Primary => Self::Indexed,
            GroupRole::Secondary(reach) => Self::Further(reach.into()),
            GroupRole::Unsupported => Self::SetAside,
        }
    }
}

impl From<AttentionWindow> for ReachRecord {
    fn from(reach: AttentionWindow) -> Self {
        match reach {
            AttentionWindow::Full => Self::Whole,
            AttentionWindow::LastBlocks(blocks) => Self::LastBlocks(blocks),
        }
    }
}

impl From<ReachRecord> for AttentionWindow {
    fn from(needs: ReachRecord) -> Self {
        match needs {
            ReachRecord::Whole => Self::Full,
            ReachRecord::LastBlocks(blocks) => Self::LastBlocks(blocks),
        }
    }
}
