//! Blocks that shared caches add to the matches of the ranks attached to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flash_indexer_core::{
    Continuations, DpRank, LocalHash, MatchScores, PerTier, RankMatch, SharedIndex, Tier, WorkerRank,
};
use flash_indexer_ingest::Listener;
use flash_indexer_types::{ConnectionStatus, EngineKind, InstanceId, Trust};
use rustc_hash::FxHashMap;

use super::Model;
use super::instance::{Instance, ListedRank};
use super::variant_matches::{VariantMatches, deepen, rank_matches};
use crate::answer::InstanceName;

/// Registered shared caches of a model.
#[derive(Default)]
pub(crate) struct ListedCaches {
    /// Their ranks, in the order of names.
    caches: Vec<ListedCache>,
    /// Index of each rank in `caches`.
    by_rank: FxHashMap<WorkerRank, usize>,
    /// Attached ranks whose engines load blocks after those that they hold themselves: indexes in the list of ranks, and of the shared
    /// caches.
    continuing: Vec<(usize, Vec<usize>)>,
}

/// One rank of a shared cache.
struct ListedCache {
    name: Arc<InstanceName>,
    rank: WorkerRank,
    listener: Arc<Listener>,
    /// Indexes of the attached ranks in the list of ranks.
    attached: Vec<usize>,
}

/// Blocks of a prompt that a shared cache holds, and an attached rank does not.
#[derive(Debug, Clone, Copy)]
pub(super) struct Credit {
    /// Index of the attached rank in the list of ranks.
    pub at: usize,
    /// Index of the shared cache.
    cache: usize,
    /// Leading blocks that the shared cache holds. If the engine loads blocks after its own, the end of the match with those of the shared
    /// cache.
    pub blocks: PerTier<u32>,
}

/// Credit of one rank: leading blocks of a prompt that its shared caches hold, where they continue the rank's own match.
#[derive(Debug, Clone)]
pub(crate) struct SharedDepths {
    /// Leading blocks of the shared cache that holds most, for each tier.
    pub blocks: PerTier<u32>,
    /// Each of them, with its leading blocks in any tier.
    pub caches: Vec<(Arc<InstanceName>, u32)>,
    /// Their worst trust.
    pub trust: Trust,
}

impl ListedCaches {
    /// The shared caches among these instances. `ranks` are the ranks of the others.
    pub(super) fn of(instances: &BTreeMap<InstanceId, Instance>, ranks: &[ListedRank]) -> Self {
        let mut attached: FxHashMap<&InstanceId, Vec<usize>> = FxHashMap::default();
        for (at, rank) in ranks.iter().enumerate() {
            for cache in rank.listener.options.shared_caches.ids() {
                attached.entry(cache).or_default().push(at);
            }
        }
        let mut listed = Self::default();
        for (id, instance) in instances.iter().filter(|(id, _)| id.shared_cache().is_some()) {
            let name = Arc::new(InstanceName::new(id));
            for (&dp_rank, listener) in &instance.listeners {
                let rank = WorkerRank { worker: instance.worker, dp_rank };
                listed.by_rank.insert(rank, listed.caches.len());
                listed.caches.push(ListedCache {
                    name: Arc::clone(&name),
                    rank,
                    listener: Arc::clone(listener),
                    attached: attached.get(id).cloned().unwrap_or_default(),
                });
            }
        }
        for (at, _) in ranks.iter().enumerate().filter(|(_, rank)| loads_behind_its_own(rank)) {
            let caches: Vec<usize> =
                (0..listed.caches.len()).filter(|&cache| listed.caches[cache].attached.contains(&at)).collect();
            if !caches.is_empty() {
                listed.continuing.push((at, caches));
            }
        }
        listed
    }

    pub(super) fn is_empty(&self) -> bool {
        self.caches.is_empty()
    }

    /// Name and trust of the shared cache of a credit.
    pub(super) fn cache(&self, credit: &Credit) -> (&Arc<InstanceName>, Trust) {
        let ListedCache { name, rank, listener, .. } = &self.caches[credit.cache];
        (name, listener.trust(rank.dp_rank))
    }
}

/// Whether the engine looks up in shared caches the blocks after those that it holds itself, as SGLang's HiCache does. Others look
/// the prompt up from its start, as the connectors of LMCache and of Mooncake's store in vLLM do.
fn loads_behind_its_own(rank: &ListedRank) -> bool {
    rank.listener.options.engine == Some(EngineKind::Sglang)
}

impl Model {
    /// Credits of the attached ranks, in their order: blocks of a prompt that connected shared caches hold, and the ranks do not.
    /// `own` are the blocks that the rank with an index holds itself, in any hash variant.
    ///
    /// Costs nothing without shared caches, and otherwise the matches and the ranks attached to the matching caches. For ranks whose
    /// engines load blocks after their own, one lookup in each of their caches ([`Continuations`]).
    pub(super) fn credits(
        &self,
        (caches, ranks): (&ListedCaches, &[ListedRank]),
        found: &VariantMatches<'_>,
        own: impl Fn(usize) -> PerTier<u32>,
    ) -> Vec<Credit> {
        if caches.is_empty() {
            return Vec::new();
        }
        let is_more = |at: usize, blocks: &PerTier<u32>| {
            let own = own(at);
            Tier::ALL.into_iter().any(|tier| blocks[tier] > own[tier])
        };
        let mut held: BTreeMap<usize, PerTier<u32>> = BTreeMap::new();
        for RankMatch { rank, blocks } in rank_matches(found) {
            if let Some(&cache) = caches.by_rank.get(&rank) {
                deepen(held.entry(cache).or_default(), blocks);
            }
        }
        let index = self.index();
        let mut credits = Vec::new();
        for (cache, blocks) in held {
            let ListedCache { rank, listener, attached, .. } = &caches.caches[cache];
            // Engines load nothing from a cache that is not connected.
            if attached.is_empty() || listener.connection() != ConnectionStatus::Connected {
                continue;
            }
            let has_groups = index.has_groups(*rank);
            let may_add = |rank: &ListedRank| match index.has_groups(rank.rank) {
                // A hybrid model needs blocks of all its cache groups, and this cache may name only one.
                true => has_groups,
                // The others are continued below.
                false => !loads_behind_its_own(rank),
            };
            let adds = |&at: &usize| is_more(at, &blocks) && may_add(&ranks[at]);
            credits.extend(attached.iter().copied().filter(adds).map(|at| Credit { at, cache, blocks }));
        }
        if !caches.continuing.is_empty() {
            let continued = found.iter().flat_map(|(query, found)| self.continued((caches, ranks), query, found));
            credits.extend(continued.filter(|credit| is_more(credit.at, &credit.blocks)));
        }
        credits.sort_by_key(|credit| (credit.at, credit.cache));
        credits
    }

    /// Blocks that connected shared caches add to the matches of ranks whose engines load blocks after their own, for one hash variant. A
    /// rank of a hybrid model is left out: the caches would have to hold blocks of all its cache groups.
    fn continued(
        &self,
        (caches, ranks): (&ListedCaches, &[ListedRank]),
        query: &[LocalHash],
        found: &MatchScores,
    ) -> Vec<Credit> {
        let index = self.index();
        let own: FxHashMap<WorkerRank, PerTier<u32>> = found.ranks.iter().map(|it| (it.rank, it.blocks)).collect();
        let is_connected = |cache: &&usize| caches.caches[**cache].listener.connection() == ConnectionStatus::Connected;
        let used: BTreeSet<usize> =
            caches.continuing.iter().flat_map(|(_, of)| of).filter(is_connected).copied().collect();
        let used: Vec<usize> = used.into_iter().collect();
        let continuations = Continuations::of(&**index, query, used.iter().map(|&cache| caches.caches[cache].rank));
        let mut credits = Vec::new();
        for (at, of) in caches.continuing.iter().filter(|(at, _)| !index.has_groups(ranks[*at].rank)) {
            let rank = ranks[*at].rank;
            let others: Vec<usize> = (0..used.len()).filter(|&other| of.contains(&used[other])).collect();
            let reaches = continuations.reaches(rank, own.get(&rank).copied().unwrap_or_default(), &others);
            credits.extend(reaches.into_iter().map(|(other, blocks)| Credit { at: *at, cache: used[other], blocks }));
        }
        credits
    }

    /// Credits by rank, in one hash variant: blocks that shared caches hold after the match of each rank that is attached to them.
    pub(crate) fn shared_depths(
        &self,
        query: &[LocalHash],
        found: &MatchScores,
    ) -> FxHashMap<WorkerRank, SharedDepths> {
        let listed = self.instances.listed();
        if listed.caches.is_empty() {
            return FxHashMap::default();
        }
        let own: FxHashMap<WorkerRank, PerTier<u32>> = found.ranks.iter().map(|it| (it.rank, it.blocks)).collect();
        let own = |at: usize| own.get(&listed.ranks[at].rank).copied().unwrap_or_default();
        let mut depths: FxHashMap<WorkerRank, SharedDepths> = FxHashMap::default();
        let variant = [(query, found.clone())];
        let credits = self.credits((&listed.caches, &listed.ranks), &variant, own);
        let continues = |credit: &Credit| credit.blocks[Tier::External] > own(credit.at)[Tier::External];
        for credit in credits.into_iter().filter(continues) {
            let (name, trust) = listed.caches.cache(&credit);
            let new = || SharedDepths { blocks: PerTier::default(), caches: Vec::new(), trust };
            let depths = depths.entry(listed.ranks[credit.at].rank).or_insert_with(new);
            deepen(&mut depths.blocks, credit.blocks);
            depths.caches.push((Arc::clone(name), credit.blocks[Tier::External]));
            depths.trust = depths.trust.max(trust);
        }
        depths
    }

    /// The shared caches that hold more of a prompt than each attached rank does itself, with their leading blocks in any tier.
    pub(crate) fn shared_by_name(
        &self,
        variants: &[Vec<LocalHash>],
    ) -> BTreeMap<(InstanceId, DpRank), Vec<(InstanceId, u32)>> {
        let listed = self.instances.listed();
        let mut named: BTreeMap<_, Vec<_>> = BTreeMap::new();
        if listed.caches.is_empty() {
            return named;
        }
        let found: Vec<_> = variants.iter().map(|query| (&query[..], self.index().find(query))).collect();
        let mut own: FxHashMap<WorkerRank, PerTier<u32>> = FxHashMap::default();
        rank_matches(&found).for_each(|found| deepen(own.entry(found.rank).or_default(), found.blocks));
        let own = |at: usize| own.get(&listed.ranks[at].rank).copied().unwrap_or_default();
        for credit in self.credits((&listed.caches, &listed.ranks), &found, own) {
            let ListedRank { instance, rank, .. } = &listed.ranks[credit.at];
            let (cache, _) = listed.caches.cache(&credit);
            let rank = (listed.names[*instance as usize].id().clone(), rank.dp_rank);
            named.entry(rank).or_default().push((cache.id().clone(), credit.blocks[Tier::External]));
        }
        named
    }
}

/// The credits of the rank with this index, out of credits in the order of ranks.
pub(super) fn credits_of(credits: &[Credit], at: usize) -> &[Credit] {
    if credits.is_empty() {
        return credits;
    }
    let start = credits.partition_point(|credit| credit.at < at);
    let count = credits[start..].iter().take_while(|credit| credit.at == at).count();
    &credits[start..start + count]
}
