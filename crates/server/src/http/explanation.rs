//! JSON response of `POST /explain`.

use std::time::{Duration, Instant};

use flash_indexer_core::groups::AttentionWindow;
use flash_indexer_core::{DpRank, Tier};
use flash_indexer_wire::ClearReason;
use serde::Serialize;

use flash_indexer_explain::{
    Clear, End, GroupShortfall, HeldUnderOtherVariants, LimitingGroup, Loss, MissingGroupBlock, OtherVariant,
    RankExplanation, Reason, Removal, Tombstone,
};
use flash_indexer_registry::{ExplainQuestion, Explanation};
use flash_indexer_snapshot::ReachRecord;
use flash_indexer_types::ClearCause;
use flash_indexer_types::Doubt;
use flash_indexer_types::InstanceId;
use flash_indexer_types::Trust;
use flash_indexer_types::hashes::{HashForm, ShownHash};

#[derive(Serialize)]
pub(super) struct ExplainResponse {
    model_name: String,
    tenant_id: String,
    block_size: Option<u32>,
    blocks: usize,
    ranks: Vec<ShownRank>,
    absent: Vec<Absent>,
}

#[derive(Serialize)]
struct ShownRank {
    instance_id: InstanceId,
    dp_rank: u32,
    trust: Trust,
    last_error: Option<String>,
    blocks_held: usize,
    longest_matched: u64,
    gpu: u64,
    cpu: u64,
    disk: u64,
    ends: Vec<ShownEnd>,
}

/// An unregistered instance, or an unregistered rank of an instance.
#[derive(Serialize)]
struct Absent {
    instance_id: InstanceId,
    #[serde(skip_serializing_if = "Option::is_none")]
    dp_rank: Option<u32>,
    reason: &'static str,
    why: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    unregistered_ms_ago: Option<u64>,
}

#[derive(Serialize)]
struct ShownEnd {
    position: usize,
    local_hash: Option<ShownHash>,
    sequence_hash: Option<ShownHash>,
    reason: &'static str,
    why: String,
    #[serde(flatten)]
    facts: Facts,
}

/// Fields of an end beside its reason.
#[derive(Serialize, Default)]
#[serde(rename_all = "snake_case")]
struct Facts {
    /// Tier in which the block is held, or from which it was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    tier: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    removed_ms_ago: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cleared_ms_ago: Option<u64>,
    /// Last sequence number before the gap in the rank's stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing_after_seq: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held_again_from: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held_elsewhere: Option<HeldElsewhere>,
    /// The same for the rank of the fleet with the deepest match.
    #[serde(skip_serializing_if = "Option::is_none")]
    fleet_holds_elsewhere: Option<FleetHoldsElsewhere>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    shortfall: Option<ShownShortfall>,
}

/// Shortfall of the secondary cache groups of a hybrid model.
#[derive(Serialize)]
struct ShownShortfall {
    /// Leading blocks that are held in the full-attention group.
    full_attention_blocks: usize,
    /// Leading blocks that secondary groups need and do not hold completely.
    wanted_blocks: usize,
    cache_groups: Vec<ShownGroup>,
}

#[derive(Serialize)]
struct ShownGroup {
    group: u32,
    needs: ReachRecord,
    missing_blocks: u32,
    missing: Vec<ShownMissing>,
}

#[derive(Serialize)]
struct ShownMissing {
    position: usize,
    local_hash: Option<ShownHash>,
    sequence_hash: Option<ShownHash>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tier: Option<&'static str>,
}

#[derive(Serialize)]
struct HeldElsewhere {
    lora_name: Option<String>,
    is_salted: bool,
    blocks: usize,
}

#[derive(Serialize)]
struct FleetHoldsElsewhere {
    instance_id: InstanceId,
    dp_rank: u32,
    #[serde(flatten)]
    held: HeldElsewhere,
}

impl ExplainResponse {
    pub(super) fn of(question: ExplainQuestion, explanation: Explanation, hashes: HashForm) -> Self {
        let Explanation { block_tokens, blocks, ranks, tombstones, unknown, now } = explanation;
        let shown = |rank| ShownRank::of(rank, u64::from(block_tokens.unwrap_or(0)), now, hashes);
        let unregistered = tombstones.into_iter().map(|tombstone| Absent::unregistered(tombstone, now));
        Self {
            model_name: question.key.model_name,
            tenant_id: question.key.tenant_id,
            block_size: block_tokens,
            blocks,
            ranks: ranks.into_iter().map(shown).collect(),
            absent: unregistered.chain(unknown.map(Absent::unknown)).collect(),
        }
    }
}

impl Absent {
    fn unregistered(tombstone: Tombstone, now: Instant) -> Self {
        let ago = now.saturating_duration_since(tombstone.at);
        Self {
            instance_id: tombstone.instance,
            dp_rank: Some(tombstone.dp_rank.0),
            reason: "unregistered",
            why: format!("it was unregistered {} ago", shown_time(ago)),
            unregistered_ms_ago: Some(milliseconds(ago)),
        }
    }

    fn unknown(instance_id: InstanceId) -> Self {
        let why = "no instance of this name is registered for the model and tenant; see GET /workers".to_owned();
        Self { instance_id, dp_rank: None, reason: "not_registered", why, unregistered_ms_ago: None }
    }
}

impl ShownRank {
    fn of(rank: RankExplanation, block_tokens: u64, now: Instant, hashes: HashForm) -> Self {
        let tokens = |tier: Tier| rank.blocks[tier] as u64 * block_tokens;
        let last_error = rank.last_error.as_deref();
        Self {
            dp_rank: rank.dp_rank.0,
            trust: rank.trust,
            blocks_held: rank.blocks_held,
            longest_matched: tokens(Tier::External),
            gpu: tokens(Tier::Device),
            cpu: tokens(Tier::Host),
            disk: tokens(Tier::Disk),
            ends: rank.ends.into_iter().map(|end| ShownEnd::of(end, last_error, now, hashes)).collect(),
            instance_id: rank.instance,
            last_error: rank.last_error,
        }
    }
}

impl ShownEnd {
    fn of(end: End, last_error: Option<&str>, now: Instant, hashes: HashForm) -> Self {
        let ago = |at: Instant| now.saturating_duration_since(at);
        let removal = |removal: Removal| {
            let facts = Facts {
                tier: Some(removal.tier.as_str()),
                removed_ms_ago: Some(milliseconds(ago(removal.at))),
                ..Facts::default()
            };
            (format!("it was removed from {} {} ago", removal.tier.as_str(), shown_time(ago(removal.at))), facts)
        };
        let cleared = |clear: Clear| {
            let why = shown_clear(clear.cause, ago(clear.at));
            ("cleared", (why, Facts { cleared_ms_ago: Some(milliseconds(ago(clear.at))), ..Facts::default() }))
        };
        let known = |loss: Loss| match loss {
            Loss::Removed(removed) => ("removed", removal(removed)),
            Loss::Cleared(clear) => cleared(clear),
            Loss::RemovedThenCleared(removed, clear) => {
                let ((removed, facts), (_, (cleared, of_clear))) = (removal(removed), cleared(clear));
                let why = format!("{removed}; a remaining copy was dropped later: {cleared}");
                ("removed", (why, Facts { cleared_ms_ago: of_clear.cleared_ms_ago, ..facts }))
            }
            Loss::HashReused => {
                let why = "it was held until the engine reused its sequence hash for other tokens";
                ("name_reused", (why.to_owned(), Facts::default()))
            }
            Loss::NotInHistory => {
                let why = "it was held, and its removal is no longer in the history";
                ("removed", (why.to_owned(), Facts::default()))
            }
        };
        let (reason, (why, mut facts)) = match end.reason {
            Reason::WholePrompt => ("whole_prompt", ("every block is held".to_owned(), Facts::default())),
            Reason::OtherTier(tier) => {
                let facts = Facts { tier: Some(tier.as_str()), ..Facts::default() };
                ("other_tier", (format!("it is held in {} and in no faster tier", tier.as_str()), facts))
            }
            Reason::CacheGroups(shortfall) => {
                let why = shown_shortfall(&shortfall);
                let shortfall = Some(ShownShortfall::of(shortfall, hashes));
                ("cache_groups", (why, Facts { shortfall, ..Facts::default() }))
            }
            Reason::Gap { after_gap, removed } => {
                let (history, facts) = removed.map(removal).unwrap_or_default();
                let separator = if history.is_empty() { "" } else { "; " };
                let (blocks, position) = (after_gap.blocks, after_gap.position);
                let why = format!(
                    "it is missing, and {blocks} blocks from position {position} on are held{separator}{history}"
                );
                ("hole", (why, Facts { held_again_from: Some(position), ..facts }))
            }
            Reason::Lost(loss) => known(loss),
            Reason::OtherVariant => ("other_space", Default::default()),
            Reason::MemoryLimit => {
                let why = "the index does not know whether it is held: its memory limit is reached";
                ("no_room", (format!("{why}; raise --memory-max"), Facts::default()))
            }
            Reason::Cold => ("cold", ("no message was received from the engine yet".to_owned(), Facts::default())),
            Reason::Degraded(Some(loss)) => {
                let (_, (why, facts)) = known(loss);
                ("degraded", (format!("last known change: {why}"), facts))
            }
            Reason::Degraded(None) if end.doubt.is_some() => ("degraded", Default::default()),
            Reason::Degraded(None) => {
                let why = last_error.unwrap_or("messages of its stream are missing");
                ("degraded", (format!("the index does not know whether it is held: {why}"), Facts::default()))
            }
            Reason::NeverSeen => (
                "never_seen",
                ("the engine never stored it, as far as the history goes back".to_owned(), Facts::default()),
            ),
        };
        let why = facts.add_doubt(end.doubt, why);
        let why = facts.add_other_variants(end.other_variants, why);
        Self {
            position: end.position,
            local_hash: end.local.map(|local| ShownHash(local.0, hashes)),
            sequence_hash: end.sequence.map(|sequence| ShownHash(sequence.0, hashes)),
            reason,
            why,
            facts,
        }
    }
}

impl Facts {
    /// Adds the gap in the rank's stream. Returns `why` with the gap before it.
    fn add_doubt(&mut self, doubt: Option<Doubt>, why: String) -> String {
        let Some(Doubt { why: missing, after, .. }) = doubt else { return why };
        self.missing_after_seq = after;
        let position =
            after.map_or_else(String::new, |after| format!(", because changes after message {after} are missing"));
        let separator = if why.is_empty() { "" } else { "; " };
        format!("the index does not know whether it is held{position}: {missing}{separator}{why}")
    }

    /// Adds where the same tokens are held under another adapter or salt. Returns `why` followed by that.
    fn add_other_variants(
        &mut self,
        HeldUnderOtherVariants { by_rank: own, by_fleet: fleet }: HeldUnderOtherVariants,
        why: String,
    ) -> String {
        let mut parts = vec![why];
        if let Some(own) = own {
            parts.push(format!("{} blocks of the same tokens are held under {}", own.blocks, shown_variant(&own)));
            self.held_elsewhere = Some(HeldElsewhere::of(&own));
        }
        if let Some((instance_id, DpRank(dp_rank), other)) = fleet {
            let (blocks, variant) = (other.blocks, shown_variant(&other));
            let holder = format!("instance {instance_id} rank {dp_rank}");
            parts.push(format!("{holder} holds {blocks} blocks of the same tokens under {variant}"));
            let held = HeldElsewhere::of(&other);
            self.fleet_holds_elsewhere = Some(FleetHoldsElsewhere { instance_id, dp_rank, held });
        }
        parts.retain(|part| !part.is_empty());
        parts.join("; ")
    }
}

impl HeldElsewhere {
    fn of(OtherVariant { adapter_salt: space, blocks }: &OtherVariant) -> Self {
        Self { lora_name: space.lora_name().map(str::to_owned), is_salted: space.salt().is_some(), blocks: *blocks }
    }
}

/// Formats the adapter and the salt of a hash variant.
fn shown_variant(OtherVariant { adapter_salt: space, .. }: &OtherVariant) -> String {
    let adapter = space.lora_name().map_or("no adapter".to_owned(), |name| format!("adapter {name:?}"));
    let salt = if space.salt().is_some() { "a salt that is not the prompt's" } else { "no salt" };
    format!("{adapter} and {salt}")
}

/// Formats the cause for which a rank's blocks were dropped.
fn shown_clear(cause: ClearCause, ago: Duration) -> String {
    let ago = shown_time(ago);
    match cause {
        ClearCause::Engine => format!("the engine cleared its cache {ago} ago"),
        ClearCause::Stream(ClearReason::Restarted) => {
            format!("the index dropped it {ago} ago, because the engine restarted")
        }
        ClearCause::Stream(ClearReason::EpochUnknown) => {
            format!(
                "the index dropped it {ago} ago, when the listener reconnected: the engine may have restarted meanwhile"
            )
        }
        ClearCause::Stream(ClearReason::TooMuchLost) => {
            format!("the index dropped it {ago} ago, because too many messages of the engine were lost")
        }
        ClearCause::Service => {
            format!("the index dropped it {ago} ago: the rank was unregistered, or its state was invalid")
        }
    }
}

impl ShownShortfall {
    fn of(shortfall: GroupShortfall, hashes: HashForm) -> Self {
        let missing = |MissingGroupBlock { position, local, sequence, held_in }| ShownMissing {
            position,
            local_hash: local.map(|local| ShownHash(local.0, hashes)),
            sequence_hash: sequence.map(|sequence| ShownHash(sequence.0, hashes)),
            tier: held_in.map(Tier::as_str),
        };
        let groups = shortfall.groups.into_iter().map(|limiting| ShownGroup {
            group: limiting.group.id.0,
            needs: limiting.group.window.into(),
            missing_blocks: limiting.missing_count,
            missing: limiting.missing.into_iter().map(missing).collect(),
        });
        Self { full_attention_blocks: shortfall.held, wanted_blocks: shortfall.wanted, cache_groups: groups.collect() }
    }
}

/// Positions of missing blocks that a message lists.
const POSITIONS_SHOWN_MAX: usize = 8;

/// Formats the missing blocks of secondary cache groups.
fn shown_shortfall(shortfall: &GroupShortfall) -> String {
    let group = |LimitingGroup { group, missing_count, missing }: &LimitingGroup| {
        let needs = match group.window {
            AttentionWindow::Full => "all of them".to_owned(),
            AttentionWindow::LastBlocks(1) => "the last one".to_owned(),
            AttentionWindow::LastBlocks(blocks) => format!("the last {blocks}"),
        };
        let positions = missing.iter().take(POSITIONS_SHOWN_MAX).map(|missing| missing.position.to_string());
        let more = if missing.len() > POSITIONS_SHOWN_MAX { ", …" } else { "" };
        let positions = positions.collect::<Vec<_>>().join(", ");
        format!("cache group {}, which needs {needs}, lacks {missing_count}: {positions}{more}", group.id.0)
    };
    let groups = shortfall.groups.iter().map(group).collect::<Vec<_>>().join("; ");
    let GroupShortfall { held, wanted, .. } = shortfall;
    format!("full attention holds the first {held} blocks, but of the first {wanted} {groups}")
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn shown_time(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
