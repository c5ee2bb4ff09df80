//! Answers of one model's index, with the names of instances.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use flash_indexer_core::{
    DeepestMatches, DpRank, LocalHash, MatchScores, PerTier, RankMatch, RankSize, SharedIndex, Tier, WorkerRank,
};
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_types::Trust;

use super::Model;
use super::instance_table::ListedRanks;
use super::shared_caches::{Credit, credits_of};
use super::variant_matches::{VariantMatches, deepen, rank_matches};
use crate::answer::{Answer, NamedRank, NamedRanks, QueryOptions, RankAnswer, SharedMatch};

impl Model {
    /// The match of every rank for a prompt of `tokens` tokens whose blocks have these local hashes.
    pub(crate) fn find_prompt(&self, locals: &[LocalHash], tokens: usize) -> MatchScores {
        if self.ends_with_block(locals, tokens) { self.index().find_prompt(locals) } else { self.index().find(locals) }
    }

    /// Whether a prompt of `tokens` tokens, whose blocks have these local hashes, ends at the end of a block.
    pub(crate) fn ends_with_block(&self, locals: &[LocalHash], tokens: usize) -> bool {
        locals.len() * self.block_size.token_count() == tokens
    }

    /// The answer for the ranks that the options select, with the deepest match of any hash variant.
    pub(crate) fn answer(&self, found: &VariantMatches<'_>, options: QueryOptions) -> Answer {
        let listed = self.listed_answer(found, options);
        let answer = listed.unwrap_or_else(|| self.named_ranks(found).select(options));
        Answer { frequencies: self.record_query(found), ..answer }
    }

    /// The answer from the list of ranks. It takes no lock and allocates nothing for each rank. None if a rank is not
    /// listed because its instance is known from a dump only.
    fn listed_answer(&self, found: &VariantMatches<'_>, options: QueryOptions) -> Option<Answer> {
        let listed = self.instances.listed();
        let mut depths = vec![PerTier::<u32>::default(); listed.ranks.len()];
        for RankMatch { rank, blocks } in rank_matches(found) {
            match listed.find(rank) {
                Some(at) => deepen(&mut depths[at], blocks),
                None if listed.is_restored(rank) => return None,
                // An unregistered rank, whose blocks are not removed yet.
                None => {}
            }
        }
        let credits = self.credits((&listed.caches, &listed.ranks), found, |at| depths[at]);
        credits.iter().for_each(|credit| deepen(&mut depths[credit.at], credit.blocks));
        if let Some(top_k) = options.top_k {
            let matches =
                listed.ranks.iter().zip(depths).map(|(listed, blocks)| RankMatch { rank: listed.rank, blocks });
            let scores = MatchScores { ranks: matches.filter(|found| found.longest() > 0).collect() };
            let deepest = DeepestMatches::of(scores, top_k.get(), &listed.order).ranks;
            return self.deepest_ranks((&listed, &credits), deepest, options);
        }
        let mut sizes = vec![0; listed.ranks.len()];
        for (rank, size) in self.index().sizes() {
            match listed.find(rank) {
                Some(at) => sizes[at] = size.blocks,
                None if listed.is_restored(rank) => return None,
                None => {}
            }
        }
        let ranks = depths.into_iter().zip(sizes).enumerate();
        let ranks = ranks.map(|(at, (blocks, blocks_held))| ListedMatch { at, blocks, blocks_held });
        Some(self.answer_of((&listed, &credits), options, ranks))
    }

    /// The answer of the deepest ranks for a prompt with one hash variant, of `tokens` tokens if they are known. Costs the
    /// holders of the prompt's blocks, and these ranks. None without `top_k`, if one of the ranks is known from a dump
    /// only, or if the model has shared caches.
    pub(crate) fn deepest_answer(
        &self,
        query: &[LocalHash],
        tokens: Option<usize>,
        options: QueryOptions,
    ) -> Option<Answer> {
        let (index, listed) = (self.index(), self.instances.listed());
        let count = options.top_k?.get();
        if !listed.caches.is_empty() {
            return None;
        }
        let deepest = match tokens.is_some_and(|tokens| self.ends_with_block(query, tokens)) {
            true => index.find_prompt_deepest(query, count, &listed.order),
            false => index.find_deepest(query, count, &listed.order),
        };
        let answer = self.deepest_ranks((&listed, &[]), deepest.ranks, options)?;
        let matched = &query[..query.len().min(deepest.longest as usize)];
        Some(Answer { frequencies: self.record_match(query.len(), matched), ..answer })
    }

    /// The answer of these ranks. None if one of them is not listed because its instance is known from a dump only.
    fn deepest_ranks(
        &self,
        (listed, credits): (&ListedRanks, &[Credit]),
        ranks: Vec<RankMatch>,
        options: QueryOptions,
    ) -> Option<Answer> {
        let index = self.index();
        let sized = |RankMatch { rank, blocks }| {
            Some(ListedMatch { at: listed.find(rank)?, blocks, blocks_held: index.size(rank).blocks })
        };
        let mut matches = ranks.into_iter().map(sized).collect::<Option<Vec<_>>>()?;
        matches.sort_unstable_by_key(|found| found.at);
        Some(self.answer_of((listed, credits), options, matches.into_iter()))
    }

    /// The answer of listed ranks. Their matches include the credits.
    fn answer_of(
        &self,
        (listed, credits): (&ListedRanks, &[Credit]),
        options: QueryOptions,
        ranks: impl Iterator<Item = ListedMatch>,
    ) -> Answer {
        let partial = self.partial_ranks();
        let mut shared = Vec::new();
        let answer = |ListedMatch { at, blocks, blocks_held }| {
            let rank = &listed.ranks[at];
            let mut trust = rank.listener.trust(rank.rank.dp_rank);
            for credit in credits_of(credits, at) {
                let (cache, cache_trust) = listed.caches.cache(credit);
                trust = trust.max(cache_trust);
                let tokens = self.tokens(credit.blocks)[Tier::External];
                shared.push(SharedMatch { instance: rank.instance, cache: Arc::clone(cache), tokens });
            }
            RankAnswer {
                instance: rank.instance,
                dp_rank: rank.rank.dp_rank,
                tokens: self.tokens(blocks),
                blocks_held,
                trust,
                partial: partial.as_ref().is_some_and(|partial| partial.contains(&rank.rank)),
            }
        };
        let admitted = ranks.filter(|rank| options.admits(&self.tokens(rank.blocks))).map(answer);
        // With room for all: growing would copy the ranks several times.
        let mut ranks = Vec::with_capacity(admitted.size_hint().1.unwrap_or(0));
        ranks.extend(admitted);
        Answer { names: Arc::clone(&listed.names), ranks, shared, ..Answer::default() }
    }

    fn tokens(&self, blocks: PerTier<u32>) -> PerTier<u64> {
        PerTier(blocks.0.map(|blocks| u64::from(blocks) * u64::from(self.block_size.tokens())))
    }

    /// Counts a query, given in its hash variants, and a use of each block that it matched. Returns the previous uses
    /// of each block.
    pub(crate) fn record_query(&self, found: &VariantMatches<'_>) -> Vec<u32> {
        let matches = found.iter().map(|(query, scores)| {
            let longest = scores.ranks.iter().map(RankMatch::longest).max().unwrap_or(0) as usize;
            (&query[..longest.min(query.len())], query.len())
        });
        // The deepest hash variant.
        let (matched, queried) = matches.max_by_key(|(matched, queried)| (matched.len(), *queried)).unwrap_or_default();
        self.record_match(queried, matched)
    }

    /// Counts a query of `queried` blocks, and a use of each leading block that it matched. Returns the previous uses of
    /// those blocks.
    fn record_match(&self, queried: usize, prefix: &[LocalHash]) -> Vec<u32> {
        self.counts.query(queried, prefix.len());
        let Some(recent_uses) = &self.recent_uses else { return Vec::new() };
        let uses = recent_uses.count(self.id, prefix, Instant::now());
        self.metrics.limit_reached_by(Limit::RecentUses, uses.evicted);
        uses.before
    }

    /// Every rank with its deepest match and its name, listed or known from a dump only.
    pub(crate) fn named_ranks(&self, found: &VariantMatches<'_>) -> NamedRanks {
        let sizes = self.index().sizes().into_iter();
        let mut ranks: BTreeMap<WorkerRank, (PerTier<u32>, RankSize)> =
            sizes.map(|(rank, size)| (rank, (PerTier::default(), size))).collect();
        for RankMatch { rank, blocks } in rank_matches(found) {
            deepen(&mut ranks.entry(rank).or_default().0, blocks);
        }
        let listed = self.instances.listed();
        let own = |at: usize| ranks.get(&listed.ranks[at].rank).map(|(blocks, _)| *blocks).unwrap_or_default();
        let credits = self.credits((&listed.caches, &listed.ranks), found, own);
        for credit in &credits {
            deepen(&mut ranks.entry(listed.ranks[credit.at].rank).or_default().0, credit.blocks);
        }
        let partial = self.partial_ranks();
        let is_partial = |rank: &WorkerRank| partial.as_ref().is_some_and(|ranks| ranks.contains(rank));
        let mut named = NamedRanks::default();
        let instances = self.instances.read();
        for (name, instance) in instances.iter().filter(|(name, _)| name.shared_cache().is_none()) {
            let rank_of_worker = |dp_rank| WorkerRank { worker: instance.worker, dp_rank };
            let seen = ranks.range(rank_of_worker(DpRank(0))..=rank_of_worker(DpRank(u32::MAX)));
            let mut of_instance: BTreeMap<DpRank, (PerTier<u32>, RankSize)> =
                instance.listeners.keys().map(|&dp_rank| (dp_rank, Default::default())).collect();
            of_instance.extend(seen.map(|(rank, found)| (rank.dp_rank, *found)));
            for (dp_rank, (blocks, size)) in of_instance {
                let at = listed.find(rank_of_worker(dp_rank));
                let credits = at.map_or(&[][..], |at| credits_of(&credits, at));
                let caches = || credits.iter().map(|credit| (credit, listed.caches.cache(credit)));
                named.0.push(NamedRank {
                    instance: name.clone(),
                    dp_rank,
                    tokens: self.tokens(blocks),
                    blocks_held: size.blocks,
                    trust: caches().map(|(_, (_, trust))| trust).fold(instance.trust(dp_rank), Trust::max),
                    partial: is_partial(&WorkerRank { worker: instance.worker, dp_rank }),
                    shared: caches()
                        .map(|(credit, (cache, _))| (cache.id().clone(), self.tokens(credit.blocks)[Tier::External]))
                        .collect(),
                });
            }
        }
        named
    }
}

/// A listed rank with its match.
struct ListedMatch {
    /// Index in [`ListedRanks::ranks`].
    at: usize,
    /// Leading blocks of the prompt.
    blocks: PerTier<u32>,
    /// Blocks of any prompt.
    blocks_held: usize,
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::Arc;

    use flash_indexer_core::groups::{
        AttentionWindow, GroupBlockSize, GroupChange, GroupEvent, GroupId, SecondaryGroup,
    };
    use flash_indexer_core::hashing::{BlockSize, sequence_hashes};
    use flash_indexer_core::oracle::Oracle;
    use flash_indexer_core::{Block, BlockEvent, PrefixIndex as _, RemovedCopies, Tier, WorkerId};
    use flash_indexer_types::{ConnectionStatus, EngineKind, InstanceId, ModelKey, Registration, SharedCaches};
    use proptest::prelude::*;

    use super::*;
    use crate::model::Instance;
    use crate::{Indexer, IndexerOptions};

    /// The last two are shared caches. Some of the others are attached to them.
    const INSTANCES: u32 = 6;
    const CACHES: [&str; 2] = ["node:n", "pool:p"];
    const RANKS: u32 = 2;

    /// Prompts of one letter for each block, some of them with a common beginning.
    const PROMPTS: [&str; 4] = ["aaaa", "aabb", "aab", "c"];

    #[derive(Debug, Clone)]
    enum Step {
        Store {
            instance: u32,
            dp_rank: u32,
            prompt: usize,
            tier: Tier,
        },
        Remove {
            instance: u32,
            dp_rank: u32,
            prompt: usize,
            tier: Tier,
        },
        /// The removal of a prompt's first block.
        RemoveFirst {
            instance: u32,
            dp_rank: u32,
            prompt: usize,
            tier: Tier,
        },
        /// Blocks of a hybrid model's second cache group.
        StoreGroup {
            instance: u32,
            dp_rank: u32,
            prompt: usize,
            tier: Tier,
        },
        Register(u32),
        Unregister(u32),
        /// An instance that is known from a dump only.
        Restore(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        let rank = || (0..INSTANCES, 0..RANKS, 0..PROMPTS.len(), prop::sample::select(Tier::ALL.to_vec()));
        prop_oneof![
            6 => rank().prop_map(|(instance, dp_rank, prompt, tier)| Step::Store { instance, dp_rank, prompt, tier }),
            2 => rank().prop_map(|(instance, dp_rank, prompt, tier)| Step::Remove { instance, dp_rank, prompt, tier }),
            2 => rank().prop_map(|(instance, dp_rank, prompt, tier)| Step::RemoveFirst { instance, dp_rank, prompt, tier }),
            1 => rank().prop_map(|(instance, dp_rank, prompt, tier)| Step::StoreGroup { instance, dp_rank, prompt, tier }),
            2 => (0..INSTANCES).prop_map(Step::Register),
            1 => (0..INSTANCES).prop_map(Step::Unregister),
            1 => (0..INSTANCES).prop_map(Step::Restore),
        ]
    }

    fn locals(prompt: &str) -> Vec<LocalHash> {
        prompt.bytes().map(|letter| LocalHash(letter.into())).collect()
    }

    /// Instances whose order by number differs from their order as texts.
    fn name(instance: u32) -> InstanceId {
        match instance.checked_sub(INSTANCES - CACHES.len() as u32) {
            Some(cache) => InstanceId::parse(CACHES[cache as usize]).expect("a name"),
            None => InstanceId::number(8 + u64::from(instance)),
        }
    }

    /// The shared caches of an instance: none, one or both.
    fn shared_caches(instance: u32) -> SharedCaches {
        let count = if name(instance).shared_cache().is_some() { 0 } else { instance as usize % 3 };
        let ids = CACHES[..count].iter().map(|id| InstanceId::parse(id).expect("a name").into());
        SharedCaches::new(ids).expect("a list")
    }

    fn registration(instance: u32, dp_rank: u32) -> Registration {
        let endpoint = format!("tcp://127.0.0.1:{}", 1 + instance * RANKS + dp_rank);
        let block_size = BlockSize::new(16).expect("a size");
        let mut registration = Registration::new(name(instance), ModelKey::new("m", None), endpoint, block_size);
        registration.dp_rank = DpRank(dp_rank);
        registration.options.shared_caches = shared_caches(instance);
        // Some engines load blocks after their own.
        registration.options.engine = (instance == 2 || instance == 4).then_some(EngineKind::Sglang);
        registration
    }

    fn take(model: &Model, step: Step, indexer: &Indexer) {
        let rank = |instance, dp_rank| {
            let worker = model.worker(&name(instance)).unwrap_or(WorkerId(1_000 + u64::from(instance)));
            WorkerRank { worker, dp_rank: DpRank(dp_rank) }
        };
        match step {
            Step::Store { instance, dp_rank, prompt, tier } => {
                let locals = locals(PROMPTS[prompt]);
                let blocks = sequence_hashes(&locals).zip(&locals).map(|(sequence, &local)| Block { sequence, local });
                let event = BlockEvent::Stored { tier, parent: None, blocks: blocks.collect(), copies: 1 };
                model.index().apply(rank(instance, dp_rank), &event);
            }
            Step::Remove { instance, dp_rank, prompt, tier } => {
                let blocks = sequence_hashes(&locals(PROMPTS[prompt])).skip(1).collect();
                let event = BlockEvent::Removed { tier, blocks, copies: RemovedCopies::All };
                model.index().apply(rank(instance, dp_rank), &event);
            }
            Step::RemoveFirst { instance, dp_rank, prompt, tier } => {
                let blocks = sequence_hashes(&locals(PROMPTS[prompt])).take(1).collect();
                let event = BlockEvent::Removed { tier, blocks, copies: RemovedCopies::All };
                model.index().apply(rank(instance, dp_rank), &event);
            }
            Step::StoreGroup { instance, dp_rank, prompt, tier } => {
                let blocks = sequence_hashes(&locals(PROMPTS[prompt])).collect();
                let (window, size) = (AttentionWindow::LastBlocks(1), GroupBlockSize::REGISTERED);
                let group = SecondaryGroup { id: GroupId(1), window, size };
                let change = GroupChange { group, event: GroupEvent::Stored { tier, blocks, copies: 1 } };
                model.index().apply_group(rank(instance, dp_rank), &change);
            }
            Step::Register(instance) => {
                // The second rank of some instances is known from the index only.
                for dp_rank in 0..1 + instance % RANKS {
                    drop(indexer.register(registration(instance, dp_rank)));
                }
                // Nothing listens at the endpoints.
                if let Some(registered) = model.instances.read().get(&name(instance)) {
                    registered
                        .listeners
                        .values()
                        .for_each(|listener| listener.set_connection(ConnectionStatus::Connected));
                }
            }
            Step::Unregister(instance) => drop(model.instances.write().remove(&name(instance))),
            Step::Restore(instance) => {
                let new = Instance::new(WorkerId(2_000 + u64::from(instance)));
                model.instances.write().entry(name(instance)).or_insert(new);
            }
        }
    }

    fn as_named(answer: &Answer) -> Vec<NamedRank> {
        let rank = |rank: &RankAnswer| {
            let &RankAnswer { dp_rank, tokens, blocks_held, trust, partial, .. } = rank;
            let shared = answer.shared_matches(std::slice::from_ref(rank));
            let shared = shared.into_iter().map(|(cache, tokens)| (cache.id().clone(), tokens)).collect();
            let instance = answer.name(rank).id().clone();
            NamedRank { instance, dp_rank, tokens, blocks_held, trust, partial, shared }
        };
        answer.ranks.iter().map(rank).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Each rank's match in a tier is the longest of its own and of those of its connected shared caches. If the engine loads blocks
        /// after its own, they continue its match.
        #[test]
        fn a_match_is_the_longest_of_a_rank_and_its_shared_caches(
            steps in prop::collection::vec(step().prop_filter("without groups", |step| !matches!(step, Step::StoreGroup { .. })), 1..30),
        ) {
            let indexer = Indexer::start(IndexerOptions::default()).expect("it starts");
            indexer.register(registration(0, 0)).expect("it is registered");
            let model: Arc<Model> = indexer.model(&ModelKey::new("m", None)).expect("it exists");
            for step in steps {
                take(&model, step, &indexer);
                for prompt in PROMPTS {
                    let query = locals(prompt);
                    let found = model.index().find(&query);
                    let answer = model.named_ranks(&[(query.as_slice(), found.clone())]);
                    let instances = model.instances.read();
                    let held = |id: &InstanceId, dp_rank| {
                        let worker = instances.get(id).filter(|it| it.listeners.contains_key(&dp_rank)).map(|it| it.worker);
                        let rank = worker.map(|worker| WorkerRank { worker, dp_rank });
                        rank.and_then(|rank| found.get(rank)).map(|found| found.blocks).unwrap_or_default()
                    };
                    let expected = |id: &InstanceId, dp_rank: DpRank| {
                        let instance = &instances[id];
                        let own = found.get(WorkerRank { worker: instance.worker, dp_rank });
                        let mut depths = own.map(|found| found.blocks).unwrap_or_default();
                        let options = instance.listeners.get(&dp_rank).map(|listener| listener.options.clone());
                        let engine = options.as_ref().and_then(|options| options.engine);
                        let attached = options.map(|options| options.shared_caches).unwrap_or_default();
                        if engine.is_some() {
                            let ranks_of = |id: &InstanceId| {
                                let ranks = instances.get(id).into_iter();
                                let ranks = ranks.flat_map(|it| it.listeners.keys().map(|&dp_rank| WorkerRank { worker: it.worker, dp_rank }));
                                ranks.collect::<Vec<_>>()
                            };
                            let others: Vec<WorkerRank> = attached.ids().iter().flat_map(ranks_of).collect();
                            let mut oracle = Oracle::default();
                            for rank in model.index().ranks() {
                                model.index().dump(rank).iter().for_each(|event| _ = oracle.apply(rank, event));
                            }
                            return model.tokens(oracle.continued(&query, WorkerRank { worker: instance.worker, dp_rank }, &others));
                        }
                        for cache in attached.ids() {
                            (0..RANKS).for_each(|dp_rank| deepen(&mut depths, held(cache, DpRank(dp_rank))));
                        }
                        model.tokens(depths)
                    };
                    for rank in &answer.0 {
                        prop_assert!(rank.instance.shared_cache().is_none());
                        prop_assert_eq!(rank.tokens, expected(&rank.instance, rank.dp_rank), "{} {}", prompt, rank.instance);
                    }
                }
            }
        }

        /// The answer from the list of ranks equals the general one after every change of registrations and blocks.
        #[test]
        fn the_listed_answer_equals_the_general_answer(
            shards in 1_usize..=3,
            steps in prop::collection::vec(step(), 1..30),
        ) {
            let indexer = Indexer::start(IndexerOptions { shards: Some(shards), ..IndexerOptions::default() }).expect("it starts");
            indexer.register(registration(0, 0)).expect("it is registered");
            let model: Arc<Model> = indexer.model(&ModelKey::new("m", None)).expect("it exists");
            for step in steps {
                take(&model, step, &indexer);
                let listed = model.instances.listed();
                let has_restored = model.index().ranks().into_iter().any(|rank| listed.is_restored(rank));
                for prompt in PROMPTS {
                    let query = locals(prompt);
                    let found = [(query.as_slice(), model.index().find(&query))];
                    for top_k in [0, 1, 2, 3, 100] {
                        for min_score in [None, Some(0), Some(1), Some(33)] {
                            let options = QueryOptions { top_k: NonZeroUsize::new(top_k), min_score, after: None };
                            let general = model.named_ranks(&found).select(options);
                            let answer = model.listed_answer(&found, options);
                            prop_assert!(answer.is_some() || has_restored);
                            let answer = answer.unwrap_or_else(|| model.answer(&found, options));
                            prop_assert_eq!(as_named(&answer), as_named(&general));
                            let deepest = model.deepest_answer(&query, None, options);
                            let has_caches = !listed.caches.is_empty();
                            prop_assert!(deepest.is_some() || has_restored || has_caches || top_k == 0);
                            if let Some(deepest) = deepest {
                                prop_assert_eq!(as_named(&deepest), as_named(&general));
                            }
                        }
                    }
                }
            }
        }
    }
}
