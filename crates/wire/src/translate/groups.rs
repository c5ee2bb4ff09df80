//! Cache groups of a rank and their roles in an index.

use flash_indexer_core::Tier;
use flash_indexer_core::groups::{AttentionWindow, ClearedGroups, GROUPS_MAX, GroupBlockSize, GroupId, SecondaryGroup};
use flash_indexer_core::hashing::BlockSize;
use rustc_hash::FxHashMap;

use super::TranslateError;
use crate::event::{BlockStored, CacheGroup, FULL_ATTENTION};

/// The cache groups of one rank, discovered from its stores.
///
/// The first full-attention group is the primary group: its stores carry the tokens from which local hashes are
/// computed. Removals and offloads name their group by number only.
#[derive(Debug, Default)]
pub(super) struct CacheGroups {
    roles: FxHashMap<u32, GroupRole>,
    primary: Option<u32>,
}

/// A cache group that a rank has named, with its role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownGroup {
    /// The group's number.
    pub id: GroupId,
    /// The group's role.
    pub role: GroupRole,
}

/// Role of a cache group in an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupRole {
    /// Primary group: its stores carry tokens, and its blocks are indexed.
    Primary,
    /// Secondary group: known by sequence hashes only, and limits the usable part of a prefix.
    Secondary {
        /// Part of a prefix that the group needs.
        window: AttentionWindow,
        /// Size of its blocks; none before a store has shown it, which counts as the registered size.
        size: Option<GroupBlockSize>,
    },
    /// The group's requirements are unknown: its events are rejected.
    Unsupported,
}

impl GroupRole {
    const fn size(self) -> Option<GroupBlockSize> {
        match self {
            Self::Secondary { size, .. } => size,
            Self::Primary | Self::Unsupported => None,
        }
    }

    /// The role with a block size, unless it has the same one.
    fn with_size(self, size: Option<GroupBlockSize>) -> Self {
        match (self, size) {
            (Self::Secondary { window, size: known }, Some(shown)) if known != size => {
                let window = if known.is_none() { window.with_size(shown) } else { window };
                Self::Secondary { window, size }
            }
            _ => self,
        }
    }
}

/// Group of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoreGroup {
    /// The group; none for the primary one.
    pub(super) secondary: Option<SecondaryGroup>,
    /// Whether the group's blocks are larger than those of its earlier stores, which were of partial entries.
    pub(super) has_grown: bool,
}

/// Block size that a store shows of its group.
struct ShownSize {
    size: Option<GroupBlockSize>,
    has_grown: bool,
}

/// The block size of a secondary group after a store. A store without tokens in a slower tier shows none, because some releases
/// have another number there. A store of a smaller block than the group's is a partial entry; a group whose first stores were
/// partial entries shows its size later.
fn size_of_store(
    group: u32,
    event: &BlockStored<'_>,
    tier: Tier,
    (registered, known): (BlockSize, Option<GroupBlockSize>),
) -> Result<ShownSize, TranslateError> {
    let is_shown = !event.token_ids.is_empty() || (tier == Tier::Device && event.block_size > 0);
    if !is_shown {
        return Ok(ShownSize { size: known, has_grown: false });
    }
    let (actual, shown) = (event.block_size, GroupBlockSize::of(event.block_size, registered));
    let known_tokens = known.map(|known| known.tokens(registered));
    match (shown, known_tokens) {
        (Some(_), None) => Ok(ShownSize { size: shown, has_grown: false }),
        (Some(_), Some(known)) if known == actual => Ok(ShownSize { size: shown, has_grown: false }),
        (_, Some(known)) if actual > 0 && known > actual && known.is_multiple_of(actual) => {
            Err(TranslateError::PartialEntry { group, actual, whole: known })
        }
        (Some(_), Some(known)) if actual > known && actual.is_multiple_of(known) => {
            Ok(ShownSize { size: shown, has_grown: true })
        }
        _ => {
            Err(TranslateError::GroupBlockSize { group, actual, registered: registered.tokens(), known: known_tokens })
        }
    }
}

/// Whether the window of a role is known in registered blocks only, and the size is smaller.
fn is_window_unknown(role: GroupRole, size: Option<GroupBlockSize>) -> bool {
    let is_sliding =
        matches!(role, GroupRole::Secondary { window: AttentionWindow::LastBlocks(_), size: known } if known != size);
    is_sliding && size.is_some_and(GroupBlockSize::is_finer)
}

/// Limit of the groups with a known role: all that an index keeps, and some unsupported ones.
const ROLES_MAX: usize = 2 * (GROUPS_MAX + 1);
const GROUP_KIND_CHARS_MAX: usize = 64;

impl CacheGroups {
    pub(super) fn iter(&self) -> impl Iterator<Item = KnownGroup> {
        self.roles.iter().map(|(&idx, &role)| KnownGroup { id: GroupId(idx), role })
    }

    pub(super) fn import(&mut self, group: KnownGroup) {
        if self.roles.len() < ROLES_MAX {
            let GroupId(idx) = group.id;
            self.roles.insert(idx, group.role);
            self.primary = self.primary.or((group.role == GroupRole::Primary).then_some(idx));
        }
    }

    /// Whether groups are known and none of them is primary.
    pub(super) fn lacks_primary(&self) -> bool {
        self.primary.is_none() && !self.roles.is_empty()
    }

    /// The group of a store in a tier.
    pub(super) fn of_store(
        &mut self,
        event: &BlockStored<'_>,
        tier: Tier,
        block_size: BlockSize,
    ) -> Result<StoreGroup, TranslateError> {
        let primary = StoreGroup { secondary: None, has_grown: false };
        let Some(idx) = event.group.idx else {
            return self.resolve_unnamed().map(|secondary| StoreGroup { secondary, ..primary });
        };
        let known = self.roles.get(&idx).copied();
        let known_size = known.and_then(GroupRole::size);
        let mut shown = size_of_store(idx, event, tier, (block_size, known_size));
        let size = shown.as_ref().map_or(known_size, |shown| shown.size);
        let role = match event.group.kind {
            None => {
                let role = known.unwrap_or(match self.primary {
                    None => GroupRole::Primary,
                    Some(_) => GroupRole::Unsupported,
                });
                if is_window_unknown(role, size) {
                    let (actual, registered) = (event.block_size, block_size.tokens());
                    shown = Err(TranslateError::GroupBlockSize { group: idx, actual, registered, known: None });
                    role
                } else {
                    role.with_size(size)
                }
            }
            Some(kind) => self.role_of(idx, kind, event.group.sliding_window, (block_size, size)),
        };
        match role {
            // The group becomes primary once the number of its tokens fits.
            GroupRole::Primary => return Ok(primary),
            GroupRole::Unsupported if known.is_none() || known == Some(GroupRole::Primary) => {
                self.mark_unsupported(idx)
            }
            GroupRole::Secondary { .. } if known == Some(GroupRole::Primary) => self.mark_unsupported(idx),
            GroupRole::Secondary { .. } if known.is_none() && self.roles.len() >= ROLES_MAX => {}
            GroupRole::Secondary { .. } if known != Some(GroupRole::Unsupported) => drop(self.roles.insert(idx, role)),
            _ => {}
        }
        let secondary = self.secondary(idx, event.group)?;
        shown.map(|ShownSize { has_grown, .. }| StoreGroup { secondary, has_grown })
    }

    /// Whether a store is of a partial entry of the primary group: a smaller block than the registered one, after a store of
    /// the registered size.
    pub(super) fn is_partial_of_primary(&self, event: &BlockStored<'_>, block_size: BlockSize) -> bool {
        let (actual, whole) = (event.block_size, block_size.tokens());
        self.primary.is_some()
            && self.primary == event.group.idx
            && actual > 0
            && actual < whole
            && whole.is_multiple_of(actual)
    }

    /// The group of a removal; none for the primary group.
    pub(super) fn of_removal(&self, idx: Option<u32>) -> Result<Option<SecondaryGroup>, TranslateError> {
        let Some(idx) = idx else { return self.resolve_unnamed() };
        match self.roles.get(&idx) {
            Some(GroupRole::Primary) => Ok(None),
            None if self.primary.is_none() => Ok(None),
            _ => self.secondary(idx, CacheGroup { kind: Some("removal"), ..CacheGroup::default() }),
        }
    }

    /// The groups of a clear of one group. Without the group's role, it is unknown which blocks are cleared. This includes
    /// a rank that has named no group.
    pub(super) fn of_clear(&self, idx: u32) -> Result<ClearedGroups, TranslateError> {
        match self.roles.get(&idx) {
            Some(GroupRole::Primary) => Ok(ClearedGroups::Primary),
            Some(GroupRole::Secondary { .. }) => Ok(ClearedGroups::Secondary(GroupId(idx))),
            Some(GroupRole::Unsupported) | None => {
                Err(TranslateError::HybridGroup { group: idx, kind: "cleared".to_owned() })
            }
        }
    }

    /// Makes the group of a fitting store the primary group, unless there is one.
    pub(super) fn claim_primary(&mut self, group: CacheGroup<'_>) {
        if let (Some(idx), None) = (group.idx, self.primary) {
            self.primary = Some(idx);
            self.roles.insert(idx, GroupRole::Primary);
        }
    }

    /// Rules a group out as primary after a store whose token count does not fit full attention, unless the group
    /// names its kind.
    pub(super) fn rule_out_primary(&mut self, group: CacheGroup<'_>) {
        if let CacheGroup { idx: Some(idx), kind: None, .. } = group {
            self.mark_unsupported(idx);
        }
    }

    /// Resolves an event without a group: valid only if the rank has a single group.
    fn resolve_unnamed(&self) -> Result<Option<SecondaryGroup>, TranslateError> {
        let has_one_group = self.roles.values().all(|role| *role == GroupRole::Primary);
        if has_one_group { Ok(None) } else { Err(TranslateError::UnnamedGroup) }
    }

    fn secondary(&self, idx: u32, group: CacheGroup<'_>) -> Result<Option<SecondaryGroup>, TranslateError> {
        match self.roles.get(&idx) {
            Some(&GroupRole::Secondary { window, size }) => {
                let size = size.unwrap_or(GroupBlockSize::REGISTERED);
                Ok(Some(SecondaryGroup { id: GroupId(idx), window, size }))
            }
            _ => {
                let kind = group.kind.unwrap_or("of unknown kind").chars().take(GROUP_KIND_CHARS_MAX).collect();
                Err(TranslateError::HybridGroup { group: idx, kind })
            }
        }
    }

    fn role_of(
        &self,
        idx: u32,
        kind: &str,
        window: Option<u32>,
        (registered, size): (BlockSize, Option<GroupBlockSize>),
    ) -> GroupRole {
        let secondary = |window| GroupRole::Secondary { window, size };
        let own = size.unwrap_or(GroupBlockSize::REGISTERED).block_size(registered);
        match (kind, window) {
            (kind, _) if FULL_ATTENTION.contains(&kind) => match self.primary.is_none_or(|primary| primary == idx) {
                true => GroupRole::Primary,
                false => secondary(AttentionWindow::Full),
            },
            ("sliding_window" | "sliding_window_mla", Some(tokens)) => {
                secondary(AttentionWindow::sliding_window(tokens, own))
            }
            // A recurrent state represents the whole prefix before it.
            ("mamba", _) => secondary(AttentionWindow::LastBlocks(1)),
            // Chunks of unknown size, caches that no other request can use, and future kinds.
            _ => GroupRole::Unsupported,
        }
    }

    fn mark_unsupported(&mut self, idx: u32) {
        self.primary = self.primary.filter(|&primary| primary != idx);
        if self.roles.len() < ROLES_MAX || self.roles.contains_key(&idx) {
            self.roles.insert(idx, GroupRole::Unsupported);
        }
    }
}
