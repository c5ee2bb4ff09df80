//! JSON response of `POST /explain`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use flash_indexer_api::{
    self as api, AbsenceReason, AbsentRank, EndFacts, EndReason, ExplainedRank, FleetHoldsElsewhere, HeldElsewhere,
    IncompleteGroup, MatchEnd, MissingBlock, RemovalReason, StorageTier,
};
use flash_indexer_core::groups::{AttentionWindow, GroupBlockSize};
use flash_indexer_core::{DpRank, Tier};
use flash_indexer_explain::{
    Clear, End, GroupShortfall, HeldUnderOtherVariants, LimitingGroup, Loss, MissingGroupBlock, OtherVariant,
    RankExplanation, Reason, Removal, Tombstone,
};
use flash_indexer_registry::{ExplainQuestion, Explanation};
use flash_indexer_types::hashes::{FormattedHash, HashForm};
use flash_indexer_types::{ClearCause, InstanceId, UnrepairedGap};
use flash_indexer_wire::ClearReason;

/// The response to a question.
pub(super) fn response(question: ExplainQuestion, explanation: Explanation, hashes: HashForm) -> api::Explanation {
    let Explanation { block_tokens, blocks, ranks, mut shared, tombstones, unknown, now } = explanation;
    let tokens = u64::from(block_tokens.unwrap_or(0));
    let explained = |rank: RankExplanation| {
        let shared = shared.remove(&(rank.instance.clone(), rank.dp_rank)).unwrap_or_default().into_iter();
        let shared = shared.map(|(cache, blocks)| (cache.as_key().to_owned(), u64::from(blocks) * tokens));
        ExplainedRank { shared_caches: shared.collect(), ..explained_rank(rank, tokens, now, hashes) }
    };
    let unregistered = tombstones.into_iter().map(|tombstone| unregistered(tombstone, now));
    api::Explanation {
        model_name: question.key.model_name,
        tenant_id: question.key.tenant_id,
        block_size: block_tokens,
        blocks,
        ranks: ranks.into_iter().map(explained).collect(),
        absent: unregistered.chain(unknown.map(not_registered)).collect(),
    }
}

fn unregistered(tombstone: Tombstone, now: Instant) -> AbsentRank {
    let ago = now.saturating_duration_since(tombstone.at);
    AbsentRank {
        instance_id: tombstone.instance,
        dp_rank: Some(tombstone.dp_rank.0),
        reason: AbsenceReason::Unregistered,
        why: format!("it was unregistered {} ago", shown_time(ago)),
        unregistered_ms_ago: Some(milliseconds(ago)),
    }
}

fn not_registered(instance_id: InstanceId) -> AbsentRank {
    let why = "no instance of this name is registered for the model and tenant; see GET /workers".to_owned();
    AbsentRank { instance_id, dp_rank: None, reason: AbsenceReason::NotRegistered, why, unregistered_ms_ago: None }
}

fn explained_rank(rank: RankExplanation, block_tokens: u64, now: Instant, hashes: HashForm) -> ExplainedRank {
    let tokens = |tier: Tier| rank.blocks[tier] as u64 * block_tokens;
    let last_error = rank.last_error.as_deref();
    ExplainedRank {
        dp_rank: rank.dp_rank.0,
        trust: rank.trust,
        blocks_held: rank.blocks_held,
        longest_matched: tokens(Tier::External),
        gpu: tokens(Tier::Device),
        cpu: tokens(Tier::Host),
        disk: tokens(Tier::Disk),
        ends: rank.ends.into_iter().map(|end| match_end(end, block_tokens, last_error, now, hashes)).collect(),
        instance_id: rank.instance,
        last_error: rank.last_error,
        shared_caches: BTreeMap::new(),
    }
}

fn match_end(end: End, block_tokens: u64, last_error: Option<&str>, now: Instant, hashes: HashForm) -> MatchEnd {
    let ago = |at: Instant| now.saturating_duration_since(at);
    let removal = |removal: Removal| {
        let facts = EndFacts {
            tier: Some(removal.tier.into()),
            removed_ms_ago: Some(milliseconds(ago(removal.at))),
            removal_reason: removal.reason.map(|reason| match reason {
                flash_indexer_wire::RemovalReason::Evicted => RemovalReason::Evicted,
                flash_indexer_wire::RemovalReason::Demoted => RemovalReason::Demoted,
            }),
            ..EndFacts::default()
        };
        let how = match facts.removal_reason {
            None => "removed from",
            Some(RemovalReason::Evicted) => "evicted from",
            Some(RemovalReason::Demoted) => "moved to a slower tier from",
        };
        (format!("it was {how} {} {} ago", removal.tier.as_str(), shown_time(ago(removal.at))), facts)
    };
    let cleared = |clear: Clear| {
        let cleared_ms_ago = Some(milliseconds(ago(clear.at)));
        (shown_clear(clear.cause, ago(clear.at)), cleared_ms_ago)
    };
    let plain = |why: &str| (why.to_owned(), EndFacts::default());
    let known = |loss: Loss| match loss {
        Loss::Removed(removed) => (EndReason::Removed, removal(removed)),
        Loss::Cleared(clear) => {
            let (why, cleared_ms_ago) = cleared(clear);
            (EndReason::Cleared, (why, EndFacts { cleared_ms_ago, ..EndFacts::default() }))
        }
        Loss::RemovedThenCleared(removed, clear) => {
            let ((removed, facts), (cleared, cleared_ms_ago)) = (removal(removed), cleared(clear));
            let why = format!("{removed}; a remaining copy was dropped later: {cleared}");
            (EndReason::Removed, (why, EndFacts { cleared_ms_ago, ..facts }))
        }
        Loss::HashReused => {
            (EndReason::NameReused, plain("it was held until the engine reused its sequence hash for other tokens"))
        }
        Loss::NotInHistory => (EndReason::Removed, plain("it was held, and its removal is no longer in the history")),
    };
    let (reason, (why, mut facts)) = match end.reason {
        Reason::WholePrompt if end.position == 0 => {
            let why = format!("the prompt has no complete block of {block_tokens} tokens");
            (EndReason::WholePrompt, plain(&why))
        }
        Reason::WholePrompt => (EndReason::WholePrompt, plain("every block is held")),
        Reason::OtherTier(tier) => {
            let facts = EndFacts { tier: Some(tier.into()), ..EndFacts::default() };
            (EndReason::OtherTier, (format!("it is held in {} and in no faster tier", tier.as_str()), facts))
        }
        Reason::CacheGroups(shortfall) => {
            let why = shown_shortfall(&shortfall);
            (EndReason::CacheGroups, (why, shortfall_facts(shortfall, block_tokens, hashes)))
        }
        Reason::Gap { after_gap, removed } => {
            let (history, facts) = removed.map(removal).unwrap_or_default();
            let separator = if history.is_empty() { "" } else { "; " };
            let (blocks, position) = (after_gap.blocks, after_gap.position);
            let why =
                format!("it is missing, and {blocks} blocks from position {position} on are held{separator}{history}");
            (EndReason::Hole, (why, EndFacts { held_again_from: Some(position), ..facts }))
        }
        Reason::Lost(loss) => known(loss),
        Reason::OtherVariant => (EndReason::OtherVariant, Default::default()),
        Reason::MemoryLimit => {
            let why = "the index does not know whether it is held: its memory limit is reached; raise --memory-max";
            (EndReason::NoRoom, plain(why))
        }
        Reason::Cold => (EndReason::Cold, plain("no message was received from the engine yet")),
        Reason::Degraded(Some(loss)) => {
            let (_, (why, facts)) = known(loss);
            (EndReason::Degraded, (format!("last known change: {why}"), facts))
        }
        Reason::Degraded(None) if end.gap.is_some() => (EndReason::Degraded, Default::default()),
        Reason::Degraded(None) => {
            let why = last_error.unwrap_or("messages of its stream are missing");
            (EndReason::Degraded, plain(&format!("the index does not know whether it is held: {why}")))
        }
        Reason::Approximate => {
            let why = "the engine publishes no events, and no prompt with the block was recorded for it";
            (EndReason::Approximate, plain(why))
        }
        Reason::NeverSeen => {
            (EndReason::NeverSeen, plain("the engine never stored it, as far as the history goes back"))
        }
    };
    let why = add_gap(&mut facts, end.gap, why);
    let why = add_other_variants(&mut facts, end.other_variants, why);
    MatchEnd {
        position: end.position,
        local_hash: end.local.map(|local| FormattedHash(local.0, hashes)),
        sequence_hash: end.sequence.map(|sequence| FormattedHash(sequence.0, hashes)),
        reason,
        why,
        facts,
    }
}

/// Adds the gap in the rank's stream. Returns `why` with the gap before it.
fn add_gap(facts: &mut EndFacts, gap: Option<UnrepairedGap>, why: String) -> String {
    let Some(UnrepairedGap { why: missing, after, .. }) = gap else { return why };
    facts.missing_after_seq = after;
    let position = after.map(|after| format!(", because changes after message {after} are missing"));
    let position = position.unwrap_or_default();
    let separator = if why.is_empty() { "" } else { "; " };
    format!("the index does not know whether it is held{position}: {missing}{separator}{why}")
}

/// Adds the matches of the same tokens under another adapter or salt. Returns `why` followed by them.
fn add_other_variants(
    facts: &mut EndFacts,
    HeldUnderOtherVariants { by_rank: own, by_fleet: fleet }: HeldUnderOtherVariants,
    why: String,
) -> String {
    let mut parts = vec![why];
    if let Some(own) = own {
        parts.push(format!("{} blocks of the same tokens are held under {}", own.blocks, shown_variant(&own)));
        facts.held_elsewhere = Some(held_elsewhere(&own));
    }
    if let Some((instance_id, DpRank(dp_rank), other)) = fleet {
        let (blocks, variant) = (other.blocks, shown_variant(&other));
        let holder = format!("instance {instance_id} rank {dp_rank}");
        parts.push(format!("{holder} holds {blocks} blocks of the same tokens under {variant}"));
        let held = held_elsewhere(&other);
        facts.fleet_holds_elsewhere = Some(FleetHoldsElsewhere { instance_id, dp_rank, held });
    }
    parts.retain(|part| !part.is_empty());
    parts.join("; ")
}

fn held_elsewhere(OtherVariant { adapter_salt: space, blocks }: &OtherVariant) -> HeldElsewhere {
    HeldElsewhere {
        lora_name: space.lora_name().map(str::to_owned),
        is_salted: space.salt().is_some(),
        blocks: *blocks,
    }
}

/// Formats the adapter and the salt of a hash variant.
fn shown_variant(OtherVariant { adapter_salt: space, .. }: &OtherVariant) -> String {
    let adapter = space.lora_name().map_or("no adapter".to_owned(), |name| format!("adapter {name:?}"));
    let salt = if space.salt().is_some() { "a salt that is not the prompt's" } else { "no salt" };
    format!("{adapter} and {salt}")
}

/// Formats the cause of the removal of a rank's blocks.
fn shown_clear(cause: ClearCause, ago: Duration) -> String {
    let ago = shown_time(ago);
    let why = match cause {
        ClearCause::Engine => return format!("the engine cleared its cache {ago} ago"),
        ClearCause::Stream(ClearReason::Restarted) => ", because the engine restarted",
        ClearCause::Stream(ClearReason::EpochUnknown) => {
            ", when the listener reconnected: the engine may have restarted meanwhile"
        }
        ClearCause::Stream(ClearReason::TooMuchLost) => ", because too many messages of the engine were lost",
        ClearCause::Stream(ClearReason::Replayed) => {
            ", when the engine replayed its whole history, in which it is not held"
        }
        ClearCause::Service => ": the rank was unregistered, or its state was invalid",
    };
    format!("the index dropped it {ago} ago{why}")
}

fn shortfall_facts(shortfall: GroupShortfall, block_tokens: u64, hashes: HashForm) -> EndFacts {
    let missing = |size: GroupBlockSize, MissingGroupBlock { position, part, local, sequence, held_in }| MissingBlock {
        position,
        part: size.is_finer().then_some(part),
        local_hash: local.map(|local| FormattedHash(local.0, hashes)),
        sequence_hash: sequence.map(|sequence| FormattedHash(sequence.0, hashes)),
        tier: held_in.map(StorageTier::from),
    };
    let groups = shortfall.groups.into_iter().map(|limiting| IncompleteGroup {
        group: limiting.group.id.0,
        needs: limiting.group.window.into(),
        block_size: match limiting.group.size {
            GroupBlockSize::REGISTERED => None,
            size => u32::try_from(u64::from(size.span()) * block_tokens / u64::from(size.parts())).ok(),
        },
        missing_blocks: limiting.missing_count,
        missing: limiting.missing.into_iter().map(|block| missing(limiting.group.size, block)).collect(),
    });
    EndFacts {
        full_attention_blocks: Some(shortfall.held),
        wanted_blocks: Some(shortfall.wanted),
        cache_groups: groups.collect(),
        ..EndFacts::default()
    }
}

/// Positions of missing blocks that a message lists.
const POSITIONS_SHOWN_MAX: usize = 8;

/// Formats the missing blocks of secondary cache groups.
fn shown_shortfall(shortfall: &GroupShortfall) -> String {
    let group = |LimitingGroup { group, missing_count, missing }: &LimitingGroup| {
        let (id, span, parts) = (group.id.0, group.size.span() as usize, group.size.parts());
        let (own, aligned) = match (span, parts) {
            (1, 1) => (String::new(), String::new()),
            (1, parts) => (format!(" (each of these blocks is {parts} of its own)"), String::new()),
            (span, _) => {
                let aligned = shortfall.wanted - shortfall.wanted % span;
                (format!(" (its blocks span {span} of these)"), format!(" uses at most the first {aligned}, and"))
            }
        };
        let needs = match group.window {
            AttentionWindow::Full => "all of them".to_owned(),
            AttentionWindow::LastBlocks(1) => "the last one".to_owned(),
            AttentionWindow::LastBlocks(blocks) => format!("the last {blocks}"),
        };
        let positions = missing.iter().take(POSITIONS_SHOWN_MAX).map(|missing| match parts {
            1 => missing.position.to_string(),
            _ => format!("part {} of {}", missing.part, missing.position),
        });
        let more = if missing.len() > POSITIONS_SHOWN_MAX { ", …" } else { "" };
        let positions = positions.collect::<Vec<_>>().join(", ");
        let lacks = if *missing_count == 0 { "none".to_owned() } else { format!("{missing_count}: {positions}{more}") };
        format!("cache group {id}, which needs {needs}{own},{aligned} lacks {lacks}")
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
