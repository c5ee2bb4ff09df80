//! Why does an answer say what it says?

use std::collections::BTreeMap;
use std::time::Instant;

use flash_indexer_core::{DpRank, LocalHash, SharedIndex, WorkerRank};
use flash_indexer_wire::AdapterSalt;

use super::{Indexer, QueryError};
use crate::model::{Model, StreamHistory};
use flash_indexer_explain::{Explainer, HeldUnderOtherVariants, OtherVariant, RankExplanation, Subject, Tombstone};
use flash_indexer_types::names::{NameError, NameField, check_names};
use flash_indexer_types::{InstanceId, ModelKey};

/// A prompt, and whose match of it is to be explained.
#[derive(Debug, Clone)]
pub struct ExplainQuestion {
    /// Model and tenant.
    pub key: ModelKey,
    /// The prompt.
    pub prompt: Prompt,
    /// Only this instance.
    pub instance: Option<InstanceId>,
}

/// A prompt in either of the forms of a query.
#[derive(Debug, Clone)]
pub enum Prompt {
    /// As tokens.
    Tokens {
        /// The tokens.
        tokens: Vec<u32>,
        /// The adapter; without one, that of all of the model's registrations.
        lora_name: Option<String>,
        /// The cache salt.
        cache_salt: Option<String>,
    },
    /// As local hashes of its blocks.
    Hashes(Vec<LocalHash>),
}

impl ExplainQuestion {
    /// Refuses names that are too long.
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

/// What can be said about a question.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// Tokens in a block; none if nobody is registered.
    pub block_tokens: Option<u32>,
    /// Complete blocks of the prompt.
    pub blocks: usize,
    /// Every registered rank that was asked about.
    pub ranks: Vec<RankExplanation>,
    /// Ranks that were unregistered.
    pub buried: Vec<Tombstone>,
    /// An instance that was asked about and is not known at all.
    pub unknown: Option<InstanceId>,
    /// The moment that times are to be told from.
    pub now: Instant,
}

impl Indexer {
    /// Where each rank's match of a prompt ends, and why. Linear in what the asked ranks hold, and in
    /// what those hold that must know a name which the asked ones lack; one rank's blocks are in memory
    /// at a time.
    ///
    /// # Errors
    ///
    /// When nobody is registered for the model and tenant, and nobody was lately.
    pub fn explain(&self, question: &ExplainQuestion) -> Result<Explanation, QueryError> {
        question.check()?;
        let is_asked = |instance: &InstanceId| question.instance.as_ref().is_none_or(|asked| asked == instance);
        let model = self.model(&question.key);
        let mut buried = self.tombstones.of(&question.key);
        let model = match model {
            Err(error) if buried.is_empty() => return Err(error),
            model => model.ok(),
        };
        let (mut blocks, mut ranks) = (0, Vec::new());
        if let Some(model) = &model {
            let forms = model.queries_of(&question.prompt);
            blocks = forms.iter().map(Vec::len).max().unwrap_or(0);
            ranks = model.explain(&question.prompt, forms, is_asked);
        }
        let is_there = |instance: &InstanceId, dp_rank: DpRank| {
            ranks.iter().any(|rank| (&rank.instance, rank.dp_rank) == (instance, dp_rank))
        };
        buried.retain(|tombstone| is_asked(&tombstone.instance) && !is_there(&tombstone.instance, tombstone.dp_rank));
        let is_unknown = ranks.is_empty() && buried.is_empty();
        Ok(Explanation {
            block_tokens: model.map(|model| model.block_size.tokens()),
            blocks,
            ranks,
            buried,
            unknown: question.instance.clone().filter(|_| is_unknown),
            now: Instant::now(),
        })
    }
}

impl Model {
    /// The prompt as the model's engines may have hashed it.
    fn queries_of(&self, prompt: &Prompt) -> Vec<Vec<LocalHash>> {
        match prompt {
            Prompt::Hashes(hashes) => vec![hashes.clone()],
            Prompt::Tokens { tokens, lora_name, cache_salt } => {
                let space = self.hash_variant(lora_name.as_deref(), cache_salt.as_deref());
                self.forms(space, tokens).collect()
            }
        }
    }

    fn explain(
        &self,
        prompt: &Prompt,
        forms: Vec<Vec<LocalHash>>,
        is_asked: impl Fn(&InstanceId) -> bool,
    ) -> Vec<RankExplanation> {
        let mut depths: BTreeMap<WorkerRank, usize> = BTreeMap::new();
        for found in forms.iter().flat_map(|query| self.index().find(query).ranks) {
            let depth = depths.entry(found.rank).or_default();
            *depth = (*depth).max(found.longest() as usize);
        }
        let ranks = self.ranks();
        let mut other_spaces = self.other_spaces(prompt);
        let deepest = depths.values().copied().max().unwrap_or(0);
        let fleet = deepest_of_fleet(&ranks, &other_spaces, deepest);
        let partial = self.partial_ranks();
        let mut explainer = Explainer::new(forms, &self.history);
        for (instance, rank) in ranks.into_iter().filter(|(instance, _)| is_asked(instance)) {
            depths.remove(&rank);
            let StreamHistory { trust, last_error, doubt } = self.standing(&instance, rank.dp_rank);
            let is_other = |(holder, dp_rank, _): &(InstanceId, DpRank, OtherVariant)| {
                (holder, *dp_rank) != (&instance, rank.dp_rank)
            };
            let elsewhere =
                HeldUnderOtherVariants { own: other_spaces.remove(&rank), fleet: fleet.clone().filter(is_other) };
            let is_partial = partial.as_ref().is_some_and(|partial| partial.contains(&rank));
            let subject = Subject { instance, rank, trust, last_error, doubt, is_partial, elsewhere };
            // As a query of the same prompt is answered.
            explainer.take(subject, &self.index().dump(rank), |query, held, slowest| match prompt {
                Prompt::Tokens { tokens, .. } if self.ends_with_block(query, tokens.len()) => {
                    self.index().cut_prompt(rank, query, held, slowest)
                }
                Prompt::Tokens { .. } | Prompt::Hashes(_) => self.index().cut(rank, query, held, slowest),
            });
        }
        for (rank, depth) in depths {
            if explainer.lacks_names(depth) {
                explainer.learn_names(&self.index().dump(rank));
            }
        }
        explainer.explain()
    }

    /// For each rank where it holds most of the same tokens under another adapter or salt.
    fn other_spaces(&self, prompt: &Prompt) -> BTreeMap<WorkerRank, OtherVariant> {
        let mut deepest: BTreeMap<WorkerRank, OtherVariant> = BTreeMap::new();
        let Prompt::Tokens { tokens, lora_name, cache_salt } = prompt else { return deepest };
        let own = self.hash_variant(lora_name.as_deref(), cache_salt.as_deref());
        let plain = AdapterSalt::default();
        let others = self.spaces.list().into_iter().chain([plain]).filter(|space| space.hash_variant() != own);
        for space in others {
            let found = self.forms(space.hash_variant(), tokens).flat_map(|query| self.index().find(&query).ranks);
            for found in found {
                let blocks = found.longest() as usize;
                if deepest.get(&found.rank).is_none_or(|known| known.blocks < blocks) {
                    deepest.insert(found.rank, OtherVariant { space: space.clone(), blocks });
                }
            }
        }
        deepest
    }
}

/// The rank that holds most of a prompt's tokens under another adapter or salt, if that is more than the `deepest` match of
/// the prompt itself.
fn deepest_of_fleet(
    ranks: &[(InstanceId, WorkerRank)],
    other_spaces: &BTreeMap<WorkerRank, OtherVariant>,
    deepest: usize,
) -> Option<(InstanceId, DpRank, OtherVariant)> {
    let holders = ranks.iter().filter_map(|(instance, rank)| Some((instance, rank, other_spaces.get(rank)?)));
    // Of several that hold as much, the first one.
    let (instance, rank, space) = holders.rev().max_by_key(|(.., space)| space.blocks)?;
    (space.blocks > deepest).then(|| (instance.clone(), rank.dp_rank, space.clone()))
}
