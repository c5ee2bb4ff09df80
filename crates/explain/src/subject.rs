//! A rank under explanation, with the registry's facts about it other than its blocks.

use flash_indexer_core::{DpRank, WorkerRank};
use flash_indexer_types::{InstanceId, Trust, UnrepairedGap};
use flash_indexer_wire::AdapterSalt;

/// A rank under explanation.
pub struct Subject {
    /// The instance.
    pub instance: InstanceId,
    /// The rank as the index numbers it.
    pub rank: WorkerRank,
    /// Trust in the rank.
    pub trust: Trust,
    /// Last error of the stream of the rank.
    pub last_error: Option<String>,
    /// Changes missing from the rank's stream, and the position after which they are missing.
    pub gap: Option<UnrepairedGap>,
    /// Whether the rank holds more than its bounded index has room for.
    pub is_partial: bool,
    /// Matches of the same tokens under another adapter or salt.
    pub other_variants: HeldUnderOtherVariants,
}

/// The longest matches of the same tokens under another adapter or salt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeldUnderOtherVariants {
    /// The longest one of the rank itself.
    pub by_rank: Option<OtherVariant>,
    /// The longest one of any rank in the fleet, and that rank.
    pub by_fleet: Option<(InstanceId, DpRank, OtherVariant)>,
}

/// A match of the same tokens under another adapter or salt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherVariant {
    /// The adapter and the salt.
    pub adapter_salt: AdapterSalt,
    /// Leading blocks held under it.
    pub blocks: usize,
}

impl HeldUnderOtherVariants {
    /// Keeps the matches that are longer than `blocks` blocks.
    pub(super) fn longer_than(self, blocks: usize) -> Self {
        let Self { by_rank, by_fleet } = self;
        Self {
            by_rank: by_rank.filter(|variant| variant.blocks > blocks),
            by_fleet: by_fleet.filter(|(.., variant)| variant.blocks > blocks),
        }
    }
}
