//! Which cache groups a rank has, and what each is to an index.

use flash_indexer_core::groups::{GROUPS_MAX, GroupId, AttentionWindow, SecondaryGroup};
use flash_indexer_core::hashing::BlockSize;
use rustc_hash::FxHashMap;

use super::Unusable;
use crate::event::{BlockStored, CacheGroup, FULL_ATTENTION};

/// The cache groups of one rank, learned from its stores.
///
/// The first full-attention group is the indexed one: its stores tell what blocks contain. Removals and
/// offloads name their group by number alone.
#[derive(Debug, Default)]
pub(super) struct Groups {
    roles: FxHashMap<u32, GroupRole>,
    indexed: Option<u32>,
}

/// A cache group that a rank has named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownGroup {
    /// Its number.
    pub id: GroupId,
    /// What it is to an index.
    pub role: GroupRole,
}

/// What a cache group is to an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupRole {
    /// It tells what blocks contain, and is indexed.
    Indexed,
    /// It is told by names, and limits what is usable.
    Further(AttentionWindow),
    /// Nobody knows what it must hold for a prefix to be usable.
    SetAside,
}

/// Groups that are remembered by number: all that an index keeps, and some that are set aside.
const ROLES_MAX: usize = 2 * (GROUPS_MAX + 1);
const GROUP_KIND_CHARS_MAX: usize = 64;

impl Groups {
    pub(super) fn iter(&self) -> impl Iterator<Item = KnownGroup> {
        self.roles.iter().map(|(&idx, &role)| KnownGroup { id: GroupId(idx), role })
    }

    pub(super) fn learn(&mut self, group: KnownGroup) {
        if self.roles.len() < ROLES_MAX {
            let GroupId(idx) = group.id;
            self.roles.insert(idx, group.role);
            self.indexed = self.indexed.or((group.role == GroupRole::Indexed).then_some(idx));
        }
    }

    /// Whether some group was set aside.
    pub(super) fn ignores_some(&self) -> bool {
        self.roles.values().any(|role| *role == GroupRole::SetAside)
    }

    /// Whether there are groups, and none of them tells what blocks contain.
    pub(super) fn lack_content(&self) -> bool {
        self.indexed.is_none() && !self.roles.is_empty()
    }

    /// The group that a store is about; none for the indexed one.
    pub(super) fn of_store(
        &mut self,
        event: &BlockStored<'_>,
        block_size: BlockSize,
    ) -> Result<Option<SecondaryGroup>, Unusable> {
        let Some(idx) = event.group.idx else { return self.unnamed() };
        let known = self.roles.get(&idx).copied();
        let role = match event.group.kind {
            None => known.unwrap_or(if self.indexed.is_none() { GroupRole::Indexed } else { GroupRole::SetAside }),
            Some(kind) => self.role_of(idx, kind, event.group.sliding_window, block_size),
        };
        match role {
            // It becomes the indexed one when its tokens fit.
            GroupRole::Indexed => return Ok(None),
            GroupRole::SetAside if known.is_none() || known == Some(GroupRole::Indexed) => self.set_aside(idx),
            GroupRole::Further(_) if known == Some(GroupRole::Indexed) => self.set_aside(idx),
            GroupRole::Further(_) if known.is_none() && self.roles.len() >= ROLES_MAX => {}
            GroupRole::Further(_) if known != Some(GroupRole::SetAside) => drop(self.roles.insert(idx, role)),
            _ => {}
        }
        self.further(idx, event.group)
    }

    /// The group that a removal is about; none for the indexed one.
    pub(super) fn of_removal(&self, idx: Option<u32>) -> Result<Option<SecondaryGroup>, Unusable> {
        let Some(idx) = idx else { return self.unnamed() };
        match self.roles.get(&idx) {
            Some(GroupRole::Indexed) => Ok(None),
            None if self.indexed.is_none() => Ok(None),
            _ => self.further(idx, CacheGroup { kind: Some("removal"), ..CacheGroup::default() }),
        }
    }

    /// A store of this group fits: it is the one that is indexed.
    pub(super) fn claim(&mut self, group: CacheGroup<'_>) {
        if let (Some(idx), None) = (group.idx, self.indexed) {
            self.indexed = Some(idx);
            self.roles.insert(idx, GroupRole::Indexed);
        }
    }

    /// A store of this group has another number of tokens than full attention has: if the group does
    /// not say what it is, it is something else.
    pub(super) fn doubt(&mut self, group: CacheGroup<'_>) {
        if let CacheGroup { idx: Some(idx), kind: None, .. } = group {
            self.set_aside(idx);
        }
    }

    /// An event without a group is about the only one there is.
    fn unnamed(&self) -> Result<Option<SecondaryGroup>, Unusable> {
        match self.roles.values().all(|role| *role == GroupRole::Indexed) {
            true => Ok(None),
            false => Err(Unusable::UnnamedGroup),
        }
    }

    fn further(&self, idx: u32, group: CacheGroup<'_>) -> Result<Option<SecondaryGroup>, Unusable> {
        match self.roles.get(&idx) {
            Some(&GroupRole::Further(reach)) => Ok(Some(SecondaryGroup { id: GroupId(idx), window: reach })),
            _ => {
                let kind = group.kind.unwrap_or("of unknown kind").chars().take(GROUP_KIND_CHARS_MAX).collect();
                Err(Unusable::HybridGroup { group: idx, kind })
            }
        }
    }

    fn role_of(&self, idx: u32, kind: &str, window: Option<u32>, block_size: BlockSize) -> GroupRole {
        match (kind, window) {
            (kind, _) if FULL_ATTENTION.contains(&kind) => match self.indexed.is_none_or(|indexed| indexed == idx) {
                true => GroupRole::Indexed,
                false => GroupRole::Further(AttentionWindow::Full),
            },
            ("sliding_window" | "sliding_window_mla", Some(tokens)) => {
                GroupRole::Further(AttentionWindow::sliding_window(tokens, block_size))
            }
            // A recurrent state stands for all that was before it.
            ("mamba", _) => GroupRole::Further(AttentionWindow::LastBlocks(1)),
            // Chunks of unknown size, caches that no other request can use, and kinds to come.
            _ => GroupRole::SetAside,
        }
    }

    fn set_aside(&mut self, idx: u32) {
        self.indexed = self.indexed.filter(|&indexed| indexed != idx);
        if self.roles.len() < ROLES_MAX || self.roles.contains_key(&idx) {
            self.roles.insert(idx, GroupRole::SetAside);
        }
    }
}
