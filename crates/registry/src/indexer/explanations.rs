//! Explanations of the matches of a prompt.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Instant;

use flash_indexer_core::{BlockEvent, DpRank, LocalHash, SharedIndex, WorkerRank};
use flash_indexer_explain::{Explainer, HeldUnderOtherVariants, OtherVariant, RankExplanation, Subject, Tombstone};
use flash_indexer_types::names::{NameError, NameField, check_names};
use flash_indexer_types::{InstanceId, ModelKey};
use flash_indexer_wire::AdapterSalt;

use super::{Indexer, QueryError};
use crate::model::{Model, StreamStatus};

/// A request to explain the matches of a prompt.
#[derive(Debug, Clone)]
pub struct ExplainQuestion {
    /// Model and tenant.
    pub key: ModelKey,
    /// The prompt.
    pub prompt: Prompt,
    /// Only the match of this instance.
    pub instance: Option<InstanceId>,
}

/// A prompt as tokens or as local hashes.
#[derive(Debug, Clone)]
pub enum Prompt {
    /// As tokens.
    Tokens {
        /// The tokens.
        tokens: Vec<u32>,
        /// The adapter. The default is the adapter that all of the model's registrations have in common.
        lora_name: Option<String>,
        /// The cache salt.
        cache_salt: Option<String>,
    },
    /// As local hashes of its blocks.
    Hashes(Vec<LocalHash>),
}

impl ExplainQuestion {
    /// Rejects names that are too long.
    fn check(&self) -> Result<(), NameError> {
        self.key.check()?;
        match &self.prompt {
            Prompt::Tokens { lora_name, cache_salt, .. } => check_names([
                (NameField::LoraName, lora_name.as_deref()),
                (NameField::CacheSalt, cache_salt.as_deref()),
            ]),
            Prompt::Hashes(_) => Ok(()),
        }
    }
}

/// The explanation of a prompt's matches.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// Tokens in a block; none if no instance is registered.
    pub block_tokens: Option<u32>,
    /// Complete blocks of the prompt.
    pub blocks: usize,
    /// The requested ranks that are registered.
    pub ranks: Vec<RankExplanation>,
    /// The shared caches that hold more of the prompt than a rank does itself, with their leading blocks.
    pub shared: BTreeMap<(InstanceId, DpRank), Vec<(InstanceId, u32)>>,
    /// The requested ranks that were unregistered recently.
    pub tombstones: Vec<Tombstone>,
    /// The requested instance, if it has neither a registered rank nor a tombstone.
    pub unknown: Option<InstanceId>,
    /// Time of the explanation, from which ages are measured.
    pub now: Instant,
}

impl Indexer {
    /// Explains the end of each requested rank's match of a prompt.
    ///
    /// Linear in the blocks of the requested ranks. It also dumps other ranks if they are needed for a sequence hash
    /// that the requested ranks do not have. The dump of one rank is in memory at a time.
    ///
    /// # Errors
    ///
    /// If no instance is registered for the model and tenant, and none was unregistered recently. If the queue of an
    /// instance is so long that its writer does not read its blocks within five seconds.
    pub fn explain(&self, question: &ExplainQuestion) -> Result<Explanation, QueryError> {
        question.check()?;
        let is_requested = |instance: &InstanceId| question.instance.as_ref().is_none_or(|wanted| wanted == instance);
        let model = self.model(&question.key);
        let mut tombstones = self.tombstones.of_model(&question.key);
        let model = match model {
            Err(error) if tombstones.is_empty() => return Err(error),
            model => model.ok(),
        };
        let (mut blocks, mut ranks, mut shared) = (0, Vec::new(), BTreeMap::new());
        if let Some(model) = &model {
            let variants = model.variant_queries(&question.prompt);
            blocks = variants.iter().map(Vec::len).max().unwrap_or(0);
            shared = model.shared_by_name(&variants);
            let late = Cell::new(false);
            let dump = |instance: &InstanceId, rank| {
                // One late rank fails the request, so the others are not read.
                let dump = if late.get() { None } else { self.dump_in_parts(model, instance, rank) };
                dump.unwrap_or_else(|| {
                    late.set(true);
                    Vec::new()
                })
            };
            ranks = model.explain(&question.prompt, variants, is_requested, dump);
            if late.get() {
                return Err(QueryError::Busy);
            }
        }
        let is_registered = |instance: &InstanceId, dp_rank: DpRank| {
            ranks.iter().any(|rank| (&rank.instance, rank.dp_rank) == (instance, dp_rank))
        };
        tombstones.retain(|tombstone| {
            is_requested(&tombstone.instance) && !is_registered(&tombstone.instance, tombstone.dp_rank)
        });
        let is_unknown = ranks.is_empty() && tombstones.is_empty();
        Ok(Explanation {
            block_tokens: model.map(|model| model.block_size.tokens()),
            blocks,
            ranks,
            shared,
            tombstones,
            unknown: question.instance.clone().filter(|_| is_unknown),
            now: Instant::now(),
        })
    }
}

impl Model {
    /// Local hashes of the prompt in each hash variant that the model's engines use.
    fn variant_queries(&self, prompt: &Prompt) -> Vec<Vec<LocalHash>> {
        match prompt {
            Prompt::Hashes(hashes) => vec![hashes.clone()],
            Prompt::Tokens { tokens, lora_name, cache_salt } => {
                let variant = self.hash_variant(lora_name.as_deref(), cache_salt.as_deref());
                self.window_hashes(variant, tokens).collect()
            }
        }
    }

    fn explain(
        &self,
        prompt: &Prompt,
        variants: Vec<Vec<LocalHash>>,
        is_requested: impl Fn(&InstanceId) -> bool,
        dump: impl Fn(&InstanceId, WorkerRank) -> Vec<BlockEvent>,
    ) -> Vec<RankExplanation> {
        let mut depths: BTreeMap<WorkerRank, usize> = BTreeMap::new();
        for found in variants.iter().flat_map(|query| self.index().find(query).ranks) {
            let depth = depths.entry(found.rank).or_default();
            *depth = (*depth).max(found.longest() as usize);
        }
        let ranks = self.ranks();
        let mut other_variants = self.other_variants(prompt);
        let deepest = depths.values().copied().max().unwrap_or(0);
        let fleet = deepest_of_fleet(&ranks, &other_variants, deepest);
        // The ranks whose blocks a bounded index has evicted or refused.
        let partial = self.index().memory_limit().map(|bound| bound.partial_ranks);
        let mut explainer = Explainer::new(variants, &self.history);
        let (requested, others): (Vec<_>, Vec<_>) = ranks.into_iter().partition(|(instance, _)| is_requested(instance));
        for (instance, rank) in requested {
            depths.remove(&rank);
            let events = dump(&instance, rank);
            let StreamStatus { trust, last_error, gap } = self.stream_status(&instance, rank.dp_rank);
            let is_other = |(holder, dp_rank, _): &(InstanceId, DpRank, OtherVariant)| {
                (holder, *dp_rank) != (&instance, rank.dp_rank)
            };
            let held_under_others = HeldUnderOtherVariants {
                by_rank: other_variants.remove(&rank),
                by_fleet: fleet.clone().filter(is_other),
            };
            let is_partial = partial.as_ref().is_some_and(|partial| partial.contains(&rank));
            let subject =
                Subject { instance, rank, trust, last_error, gap, is_partial, other_variants: held_under_others };
            // Cut like a query of the same prompt.
            explainer.add_rank(subject, &events, |query, held, slowest| match prompt {
                Prompt::Tokens { tokens, .. } if self.ends_with_block(query, tokens.len()) => {
                    self.index().cut_prompt(rank, query, held, slowest)
                }
                Prompt::Tokens { .. } | Prompt::Hashes(_) => self.index().cut(rank, query, held, slowest),
            });
        }
        for (instance, rank) in others {
            let depth = depths.get(&rank).copied();
            if depth.is_some_and(|depth| explainer.is_missing_sequence_hash(depth)) {
                explainer.collect_sequence_hashes(&dump(&instance, rank));
            }
        }
        explainer.explain()
    }

    /// The longest match of each rank for the same tokens under another adapter or salt.
    fn other_variants(&self, prompt: &Prompt) -> BTreeMap<WorkerRank, OtherVariant> {
        let mut deepest: BTreeMap<WorkerRank, OtherVariant> = BTreeMap::new();
        let Prompt::Tokens { tokens, lora_name, cache_salt } = prompt else { return deepest };
        let variant_of_prompt = self.hash_variant(lora_name.as_deref(), cache_salt.as_deref());
        let plain = AdapterSalt::default();
        let seen = self.seen_variants.list().into_iter().chain([plain]);
        for adapter_salt in seen.filter(|seen| seen.hash_variant() != variant_of_prompt) {
            let found = self
                .window_hashes(adapter_salt.hash_variant(), tokens)
                .flat_map(|query| self.index().find(&query).ranks);
            for found in found {
                let blocks = found.longest() as usize;
                if deepest.get(&found.rank).is_none_or(|known| known.blocks < blocks) {
                    deepest.insert(found.rank, OtherVariant { adapter_salt: adapter_salt.clone(), blocks });
                }
            }
        }
        deepest
    }
}

/// The longest match of a prompt's tokens under another adapter or salt, if it is longer than `deepest`, the longest
/// match of the prompt itself.
fn deepest_of_fleet(
    ranks: &[(InstanceId, WorkerRank)],
    other_variants: &BTreeMap<WorkerRank, OtherVariant>,
    deepest: usize,
) -> Option<(InstanceId, DpRank, OtherVariant)> {
    let holders = ranks.iter().filter_map(|(instance, rank)| Some((instance, rank, other_variants.get(rank)?)));
    // Of equal matches, the first one.
    let (instance, rank, variant) = holders.rev().max_by_key(|(.., variant)| variant.blocks)?;
    (variant.blocks > deepest).then(|| (instance.clone(), rank.dp_rank, variant.clone()))
}
