//! Why an answer says what it says, for people.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use flash_indexer_core::{LocalHash, Tier};
use serde::{Deserialize, Serialize};

use super::error::ApiError;
use super::extract::{Body, Parameters};
use super::fields::Scope;
use super::{Api, blocking};
use crate::explain::{ClearCause, Departure, End, RankExplanation, Reason, Removal};
use crate::hashes::{HashForm, ShownHash, local_hashes};
use crate::indexer::{Explanation, Prompt, Question};
use crate::ingest::Trust;
use crate::instance::InstanceId;
use crate::metrics::Bound;

#[derive(Deserialize)]
#[serde(expecting = "a JSON object")]
pub(super) struct ExplainRequest {
    token_ids: Option<Vec<u32>>,
    block_hashes: Option<Hashes>,
    #[serde(flatten)]
    scope: Scope,
    lora_name: Option<String>,
    cache_salt: Option<String>,
    instance_id: Option<InstanceId>,
}

#[derive(Deserialize)]
struct Hashes(#[serde(deserialize_with = "local_hashes")] Vec<LocalHash>);

#[derive(Deserialize)]
pub(super) struct ExplainParameters {
    #[serde(default)]
    hashes: HashForm,
}

pub(super) async fn explain(
    State(api): State<Arc<Api>>,
    Parameters(ExplainParameters { hashes }): Parameters<ExplainParameters>,
    Body(request): Body<ExplainRequest>,
) -> Result<Json<ExplainResponse>, ApiError> {
    let question = request.question()?;
    let permit = Arc::clone(&api.explanations)
        .try_acquire_owned()
        .inspect_err(|_| api.indexer.metrics().bound(Bound::Explanations))
        .map_err(|_| ApiError::unavailable("enough explanations are being made: try again when one is done"))?;
    let indexer = Arc::clone(&api.indexer);
    let response = blocking(move || {
        let explanation = indexer.explain(&question);
        drop(permit);
        explanation.map(|explanation| ExplainResponse::of(question, explanation, hashes))
    });
    Ok(Json(response.await??))
}

impl ExplainRequest {
    fn question(self) -> Result<Question, ApiError> {
        let Self { lora_name, cache_salt, .. } = self;
        let prompt = match (self.token_ids, self.block_hashes) {
            (Some(tokens), None) => Prompt::Tokens { tokens, lora_name, cache_salt },
            (None, Some(_)) if lora_name.is_some() || cache_salt.is_some() => {
                return Err(ApiError::bad_request(
                    "block_hashes have adapter and salt in them already: leave lora_name and cache_salt out",
                ));
            }
            (None, Some(Hashes(hashes))) => Prompt::Hashes(hashes),
            (Some(_), Some(_)) => {
                return Err(ApiError::bad_request("token_ids and block_hashes are two forms of one prompt: give one"));
            }
            (None, None) => {
                return Err(ApiError::unprocessable("the request does not fit: missing field `token_ids`"));
            }
        };
        Ok(Question { key: self.scope.key()?, prompt, instance: self.instance_id })
    }
}

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

/// An instance, or a rank of one, that is not registered.
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

/// What is known besides the reason.
#[derive(Serialize, Default)]
#[serde(rename_all = "snake_case")]
struct Facts {
    /// Where the block is held, or was until it was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    tier: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    removed_ms_ago: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cleared_ms_ago: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held_again_from: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held_elsewhere: Option<HeldElsewhere>,
}

#[derive(Serialize)]
struct HeldElsewhere {
    lora_name: Option<String>,
    is_salted: bool,
    blocks: usize,
}

impl ExplainResponse {
    fn of(question: Question, explanation: Explanation, hashes: HashForm) -> Self {
        let Explanation { block_tokens, blocks, ranks, departed, unknown, now } = explanation;
        let shown = |rank| ShownRank::of(rank, u64::from(block_tokens.unwrap_or(0)), now, hashes);
        let gone = departed.into_iter().map(|departure| Absent::departed(departure, now));
        Self {
            model_name: question.key.model_name,
            tenant_id: question.key.tenant_id,
            block_size: block_tokens,
            blocks,
            ranks: ranks.into_iter().map(shown).collect(),
            absent: gone.chain(unknown.map(Absent::unknown)).collect(),
        }
    }
}

impl Absent {
    fn departed(departure: Departure, now: Instant) -> Self {
        let ago = now.saturating_duration_since(departure.at);
        Self {
            instance_id: departure.instance,
            dp_rank: Some(departure.dp_rank.0),
            reason: "unregistered",
            why: format!("it was unregistered {} ago", shown_time(ago)),
            unregistered_ms_ago: Some(milliseconds(ago)),
        }
    }

    fn unknown(instance_id: InstanceId) -> Self {
        let why = "nobody of this name is registered for the model and tenant: see GET /workers".to_owned();
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
        let (reason, (why, facts)) = match end.reason {
            Reason::WholePrompt => ("whole_prompt", ("every block is held".to_owned(), Facts::default())),
            Reason::OtherTier(tier) => {
                let facts = Facts { tier: Some(tier.as_str()), ..Facts::default() };
                ("other_tier", (format!("it is held in {} and no faster tier", tier.as_str()), facts))
            }
            Reason::Hole { behind, removed } => {
                let (how, facts) = removed.map(removal).unwrap_or_default();
                let separator = if how.is_empty() { "" } else { "; " };
                let (blocks, position) = (behind.blocks, behind.position);
                let why = format!("it is missing, and {blocks} from position {position} on are held{separator}{how}");
                ("hole", (why, Facts { held_again_from: Some(position), ..facts }))
            }
            Reason::Removed(Some(removed)) => ("removed", removal(removed)),
            Reason::Removed(None) => {
                let why = "it was held, and how it went is no longer remembered";
                ("removed", (why.to_owned(), Facts::default()))
            }
            Reason::Cleared(clear) => {
                let ago = ago(clear.at);
                let why = match clear.cause {
                    ClearCause::Engine => format!("the engine cleared its cache {} ago", shown_time(ago)),
                    ClearCause::Service => {
                        format!("it was forgotten {} ago, when the engine started again", shown_time(ago))
                    }
                };
                ("cleared", (why, Facts { cleared_ms_ago: Some(milliseconds(ago)), ..Facts::default() }))
            }
            Reason::OtherSpace { space, blocks } => {
                let adapter = space.lora_name().map_or("no adapter".to_owned(), |name| format!("adapter {name:?}"));
                let salt = if space.salt().is_some() { "a salt that is not the prompt's" } else { "no salt" };
                let why = format!("{blocks} blocks of the same tokens are held under {adapter} and {salt}");
                let held_elsewhere = HeldElsewhere {
                    lora_name: space.lora_name().map(str::to_owned),
                    is_salted: space.salt().is_some(),
                    blocks,
                };
                ("other_space", (why, Facts { held_elsewhere: Some(held_elsewhere), ..Facts::default() }))
            }
            Reason::Cold => ("cold", ("nothing was received from the engine yet".to_owned(), Facts::default())),
            Reason::Degraded => {
                let why = last_error.unwrap_or("changes were missed");
                ("degraded", (format!("it may be held unknown to the index: {why}"), Facts::default()))
            }
            Reason::NeverSeen => {
                ("never_seen", ("as far as is remembered, the engine never stored it".to_owned(), Facts::default()))
            }
        };
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

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn shown_time(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::super::EXPLANATIONS_MAX;
    use super::*;
    use crate::indexer::{Indexer, IndexerOptions};
    use crate::metrics::TextFormat;
    use crate::peers::RecoveryStatus;

    #[tokio::test]
    async fn explanations_beyond_the_bound_are_refused_and_counted() {
        let indexer = Arc::new(Indexer::start(IndexerOptions::default()).expect("threads"));
        let (peers, recovery) = (Arc::default(), RecoveryStatus::finished());
        let api = Arc::new(Api::new(Arc::clone(&indexer), 0, Default::default(), peers, recovery, None));
        let ask = || {
            let request = serde_json::from_str(r#"{"token_ids": [], "model_name": "m"}"#).expect("a request");
            explain(State(Arc::clone(&api)), Parameters(ExplainParameters { hashes: HashForm::Number }), Body(request))
        };
        let all = Arc::clone(&api.explanations).acquire_many_owned(EXPLANATIONS_MAX as u32).await;
        let refused = ask().await.err().map(|error| format!("{error:?}")).expect("nobody is left to explain");
        assert!(refused.contains("503") && refused.contains("try again"), "{refused}");
        let counted = indexer.metrics_text(TextFormat::Classic);
        assert!(counted.contains("flash_indexer_bounds_reached_total{bound=\"explanations\"} 1\n"), "{counted}");
        drop(all);
        let answered = ask().await.err().map(|error| format!("{error:?}")).expect("nobody is registered");
        assert!(answered.contains("404"), "{answered}");
    }
}
