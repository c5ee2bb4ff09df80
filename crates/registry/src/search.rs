//! The search for one prompt, in the local index and in the shared store. Answers and scores are derived from it.

use std::borrow::Cow;
use std::sync::Arc;

use flash_indexer_core::cursor::PrefixCursor;
use flash_indexer_core::hashing::{BlockSize, HashVariant, TokenWindow, local_hashes};
use flash_indexer_core::{LocalHash, MatchScores, PerTier, SharedIndex, Tier, WorkerId};
use flash_indexer_redis::HolderId;
use flash_indexer_routing::RecentPrompts;
use flash_indexer_traces::{KeyValue, Stage, attribute, describe, stage};
use flash_indexer_types::names::{NameError, NameField, check_names};
use flash_indexer_types::{InstanceId, ModelKey, Trust};
use tracing::debug;

use crate::answer::{Answer, AnswerCursor, NamedRank, QueryOptions, StoreAnswer};
use crate::model::Model;
use crate::shared_store::{Depths, FleetModel, RemoteListedRank, SharedStore, StoreMatches};

/// A prompt as tokens, with its adapter and cache salt.
#[derive(Debug, Clone, Copy)]
pub struct TokenPrompt<'a> {
    /// The tokens.
    pub tokens: &'a [u32],
    /// The adapter. The default is the adapter that all of the model's registrations have in common.
    pub lora_name: Option<&'a str>,
    /// The cache salt.
    pub cache_salt: Option<&'a str>,
}

/// A prompt to search for.
#[derive(Debug, Clone)]
pub enum Query<'a> {
    /// As tokens.
    Tokens(TokenPrompt<'a>),
    /// As local hashes of its blocks, which include adapter and salt.
    Hashes(Cow<'a, [LocalHash]>),
}

impl Query<'_> {
    /// Rejects names of the query or of its model that are too long.
    pub fn check(&self, key: &ModelKey) -> Result<(), NameError> {
        key.check()?;
        match self {
            Self::Tokens(TokenPrompt { lora_name, cache_salt, .. }) => {
                check_names([(NameField::LoraName, *lora_name), (NameField::CacheSalt, *cache_salt)])
            }
            Self::Hashes(_) => Ok(()),
        }
    }
}

/// The search for one prompt: its blocks in each hash variant, and the matches of the shared store.
pub(crate) struct Search<'q> {
    /// The model, if it is registered with this replica.
    pub local: Option<Arc<Model>>,
    /// The model as listed in the shared store, if there is one.
    listed: Option<Arc<FleetModel>>,
    /// The prompt's blocks in each hash variant that engines of any replica use.
    pub variants: Vec<Cow<'q, [LocalHash]>>,
    /// How the tokens of each hash variant were hashed; empty if the prompt was given as local hashes.
    hashed_with: Vec<(HashVariant, TokenWindow)>,
    /// Number of tokens of the prompt; none if it was given as local hashes.
    tokens: Option<usize>,
    /// The tokens that were given.
    given: &'q [u32],
    remote: StoreMatches,
    pub store: StoreAnswer,
}

/// A rank whose match is the one published by another replica.
pub(crate) struct RemoteRank<'s> {
    pub rank: &'s RemoteListedRank,
    /// Trust that its publisher listed; at best degraded after the publisher's lease, and while the store does not have
    /// all of the rank.
    pub trust: Trust,
    holder: HolderId,
    depths: &'s [Depths],
}

impl<'q> Search<'q> {
    /// Creates a search in a local model, a listed model or both. It has not queried the store yet.
    pub(crate) fn new(local: Option<Arc<Model>>, listed: Option<Arc<FleetModel>>, query: Query<'q>) -> Self {
        let (mut variants, mut hashed_with, mut tokens, mut given) = (Vec::new(), Vec::new(), None, &[] as &[u32]);
        match query {
            Query::Tokens(prompt) => {
                let mut hashing = stage(Stage::Hash);
                hashing.set(|| KeyValue::new(attribute::TOKENS, prompt.tokens.len() as i64));
                for (locals, variant, window) in hash_variants(local.as_deref(), listed.as_deref(), prompt) {
                    variants.push(locals);
                    hashed_with.push((variant, window));
                }
                (tokens, given) = (Some(prompt.tokens.len()), prompt.tokens);
            }
            Query::Hashes(locals) => variants.push(locals),
        }
        let (remote, store) = (StoreMatches::default(), StoreAnswer::None);
        Self { local, listed, variants, hashed_with, tokens, given, remote, store }
    }

    /// Puts the prefix with this cursor before the prompt. Called before the store is queried. False if this replica's
    /// index does not have the prefix, or if the prompt has several hash variants: a cursor belongs to one variant.
    #[must_use]
    pub(crate) fn continue_after(&mut self, cursor: u64) -> bool {
        let (Some(model), [variant]) = (&self.local, self.variants.as_mut_slice()) else { return false };
        let Some(mut locals) = model.index().prefix(bound(&self.hashed_with, PrefixCursor(cursor))) else {
            return false;
        };
        if let Some(tokens) = &mut self.tokens {
            *tokens += locals.len() * model.block_size.token_count();
        }
        locals.extend_from_slice(variant);
        *variant = Cow::Owned(locals);
        true
    }

    /// The cursor after the prompt's last checkpoint.
    fn cursor(&self) -> Option<AnswerCursor> {
        let (model, [variant]) = (self.local.as_ref()?, self.variants.as_slice()) else { return None };
        let (cursor, blocks) = PrefixCursor::last_of(variant)?;
        let tokens = blocks as u64 * u64::from(model.block_size.tokens());
        Some(AnswerCursor { cursor: bound(&self.hashed_with, cursor).0, tokens })
    }

    /// Records the prompt in each of its hash variants. Called unless the prompt continues a prefix.
    pub(crate) fn keep_prompt(&self, key: &ModelKey, kept: &RecentPrompts) {
        if let Some(block_size) = self.block_size().filter(|_| self.tokens.is_some()) {
            self.variants.iter().for_each(|variant| kept.record(key, block_size, self.given, variant));
        }
    }

    fn block_size(&self) -> Option<BlockSize> {
        let listed = || self.listed.as_ref().map(|listed| listed.block_size);
        self.local.as_ref().map(|model| model.block_size).or_else(listed)
    }

    /// Complete blocks of the prompt.
    pub(crate) fn blocks(&self) -> usize {
        self.variants.iter().map(|variant| variant.len()).max().unwrap_or(0)
    }

    /// Queries the shared store for the ranks of other replicas, one call for each hash variant.
    pub(crate) async fn query_store(&mut self, shared_store: &SharedStore) {
        let remote = self.listed.as_ref().filter(|listed| listed.ranks.values().any(|rank| !rank.is_local));
        let Some(listed) = remote else {
            let is_connected = shared_store.store.is_connected();
            self.store = if is_connected { StoreAnswer::Included } else { StoreAnswer::Unavailable };
            return;
        };
        let mut lookup = stage(Stage::Store);
        match shared_store.find(listed, &self.variants).await {
            Ok(matches) => (self.remote, self.store) = (matches, StoreAnswer::Included),
            Err(error) => {
                debug!(%error, "failed to query the shared store; answering without other replicas");
                self.store = StoreAnswer::Unavailable;
            }
        }
        lookup.set(|| KeyValue::new(attribute::STORE, self.store.as_str().unwrap_or_default()));
    }

    /// Matches of this replica's ranks, for each hash variant.
    pub(crate) fn find_local(&self) -> Vec<(&[LocalHash], MatchScores)> {
        let Some(model) = &self.local else { return Vec::new() };
        let find = |variant: &[LocalHash]| match self.tokens {
            Some(tokens) => model.find_prompt(variant, tokens),
            None => model.index().find(variant),
        };
        self.variants.iter().map(|variant| (variant.as_ref(), find(variant))).collect()
    }

    /// Ranks of other replicas that are not registered with this replica, or have a worse trust here.
    pub(crate) fn remote_ranks(&self) -> Vec<RemoteRank<'_>> {
        let Some(listed) = self.listed.as_deref().filter(|_| self.store == StoreAnswer::Included) else {
            return Vec::new();
        };
        let local_trust =
            |rank: &RemoteListedRank| self.local.as_ref().and_then(|model| model.trust(&rank.instance, rank.dp_rank));
        // After the query of the store: entries that were valid then are valid until the lease ends.
        let now = tokio::time::Instant::now().into_std();
        let trust = |holder: HolderId, rank: &RemoteListedRank| match self.remote.incomplete.contains(&holder) {
            true => rank.trust_at(now).max(Trust::Degraded),
            false => rank.trust_at(now),
        };
        let ranks = listed.ranks.iter().filter(|(_, rank)| !rank.is_local);
        let remote = ranks.map(|(&holder, rank)| RemoteRank {
            rank,
            trust: trust(holder, rank),
            holder,
            depths: &self.remote.variants,
        });
        remote.filter(|remote| local_trust(remote.rank).is_none_or(|local| remote.trust < local)).collect()
    }

    /// The worker id of an instance of any replica, as predictions use it; none if no replica has the instance, and for a shared cache.
    pub(crate) fn worker(&self, instance: &InstanceId) -> Option<WorkerId> {
        if instance.shared_cache().is_some() {
            return None;
        }
        let listed = || {
            let mut ranks = self.listed.as_ref()?.ranks.values().filter(|rank| !rank.is_local);
            ranks.find(|rank| rank.instance == *instance).map(|rank| rank.worker)
        };
        self.local.as_ref().and_then(|model| model.worker(instance)).or_else(listed)
    }

    /// The answer to a query.
    pub(crate) fn answer(&self, options: QueryOptions) -> Answer {
        let _lookup = stage(Stage::Lookup);
        let answer = self.find_answer(options);
        self.describe_match(|| {
            let tokens = answer.ranks.iter().map(|rank| rank.tokens[Tier::External]).max();
            answer.blocks(tokens.unwrap_or(0))
        });
        answer
    }

    /// Adds the lengths of the prompt and of its deepest match, in blocks, to the trace of the request.
    pub(crate) fn describe_match(&self, matched: impl FnOnce() -> u32) {
        describe(|| {
            let blocks = KeyValue::new(attribute::BLOCKS, self.blocks() as i64);
            [blocks, KeyValue::new(attribute::MATCHED_BLOCKS, i64::from(matched()))]
        });
    }

    fn find_answer(&self, options: QueryOptions) -> Answer {
        if let (None, Some(model), [variant]) = (&self.listed, &self.local, self.variants.as_slice())
            && let Some(answer) = model.deepest_answer(variant, self.tokens, options)
        {
            return self.complete(answer);
        }
        let found = self.find_local();
        let Some(listed) = &self.listed else {
            let answer = self.local.as_ref().map(|model| model.answer(&found, options)).unwrap_or_default();
            return self.complete(answer);
        };
        let mut ranks = self.local.as_ref().map(|model| model.named_ranks(&found)).unwrap_or_default();
        let frequencies = self.local.as_ref().map(|model| model.record_query(&found)).unwrap_or_default();
        let block_tokens = u64::from(listed.block_size.tokens());
        ranks.merge(self.remote_ranks().iter().map(|remote| remote.answer(block_tokens)));
        self.complete(Answer { frequencies, ..ranks.select(options) })
    }

    /// Adds the fields of an answer that do not depend on its ranks.
    fn complete(&self, answer: Answer) -> Answer {
        let block_tokens = self.block_size().map_or(0, |size| size.tokens());
        Answer { block_tokens, store: self.store, cursor: self.cursor(), ..answer }
    }
}

impl RemoteRank<'_> {
    /// Leading blocks of one hash variant that it holds, when a tier and the faster ones are used together.
    pub(crate) fn blocks(&self, variant: usize) -> PerTier<u32> {
        self.depths.get(variant).and_then(|depths| depths.get(&self.holder)).copied().unwrap_or_default()
    }

    /// Its part of an answer, with the deepest match of any hash variant.
    fn answer(&self, block_tokens: u64) -> NamedRank {
        let mut tokens = PerTier::default();
        for variant in 0..self.depths.len() {
            for (deepest, blocks) in tokens.0.iter_mut().zip(self.blocks(variant).0) {
                *deepest = (u64::from(blocks) * block_tokens).max(*deepest);
            }
        }
        NamedRank {
            instance: self.rank.instance.clone(),
            dp_rank: self.rank.dp_rank,
            tokens,
            blocks_held: self.rank.blocks,
            trust: self.trust,
            // Memory limits do not apply to published ranks.
            partial: false,
            // Other replicas' ranks are not attached to the shared caches of this one.
            shared: Vec::new(),
        }
    }
}

/// The cursor of a prefix as clients see it, from its hash, or the hash from that cursor. `hashed_with` has the hash variant and the window
/// of the tokens; empty for a prompt that was given as local hashes.
fn bound(hashed_with: &[(HashVariant, TokenWindow)], cursor: PrefixCursor) -> PrefixCursor {
    hashed_with.first().map_or(cursor, |&(variant, window)| cursor.bound_to(variant, window))
}

/// Local hashes of a prompt's blocks, for each token window that engines of any replica use.
fn hash_variants(
    local: Option<&Model>,
    listed: Option<&FleetModel>,
    prompt: TokenPrompt<'_>,
) -> Vec<(Cow<'static, [LocalHash]>, HashVariant, TokenWindow)> {
    let (lora_name, cache_salt) = (prompt.lora_name, prompt.cache_salt);
    let (variant, block_size) = match (local, listed) {
        (Some(model), _) => (model.hash_variant(lora_name, cache_salt), model.block_size),
        (None, Some(listed)) => (listed.hash_variant(lora_name, cache_salt), listed.block_size),
        (None, None) => return Vec::new(),
    };
    let local_windows = || local.into_iter().flat_map(|model| model.windows.in_use());
    let listed_windows = listed.into_iter().flat_map(|listed| listed.windows.iter().copied());
    let windows = local_windows().chain(listed_windows.filter(|window| local_windows().all(|known| known != *window)));
    let hashed = |window| (Cow::Owned(local_hashes(variant, prompt.tokens, block_size, window)), variant, window);
    windows.map(hashed).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use flash_indexer_core::hashing::sequence_hashes;
    use flash_indexer_core::{Block, BlockEvent, DpRank, WorkerRank};
    use flash_indexer_types::Registration;

    use super::*;
    use crate::{Indexer, IndexerOptions, QueryError};

    #[test]
    fn a_remote_rank_of_which_the_store_does_not_have_all_is_not_exact() {
        let (holder, listed) = FleetModel::of_one_rank(Trust::Exact, Instant::now() + Duration::from_secs(3_600));
        let hashes = Query::Hashes(Cow::Borrowed(&[LocalHash(1), LocalHash(2)]));
        let mut search = Search::new(None, Some(Arc::new(listed)), hashes);
        search.store = StoreAnswer::Included;
        search.remote.variants = vec![std::iter::once((holder, PerTier([2; _]))).collect()];
        let trust = |search: &Search<'_>| {
            let answer = search.answer(QueryOptions::default());
            let found = answer.ranks.iter().map(|found| (found.trust, found.tokens[Tier::Device])).collect::<Vec<_>>();
            let remote = search.remote_ranks().iter().map(|remote| remote.trust).collect::<Vec<_>>();
            (found, remote)
        };
        assert_eq!(trust(&search), (vec![(Trust::Exact, 32)], vec![Trust::Exact]));
        search.remote.incomplete.insert(holder);
        assert_eq!(trust(&search), (vec![(Trust::Degraded, 32)], vec![Trust::Degraded]), "answers, and scores");
        search.remote.variants = vec![Depths::default()];
        assert_eq!(trust(&search), (vec![(Trust::Degraded, 0)], vec![Trust::Degraded]), "its epoch has ended");
    }

    #[test]
    fn a_model_with_several_token_windows_has_no_cursors() {
        let indexer = Indexer::start(IndexerOptions::default()).expect("it starts");
        let (key, block_size) = (ModelKey::new("m", None), BlockSize::new(1).expect("a size"));
        let instance = InstanceId::number(1);
        let registration = Registration::new(instance.clone(), key.clone(), "tcp://127.0.0.1:1", block_size);
        indexer.register(registration).expect("it is registered");
        let model = indexer.model(&key).expect("it exists");
        let rank = WorkerRank { worker: model.worker(&instance).expect("it is registered"), dp_rank: DpRank(0) };
        let tokens: Vec<u32> = (0..40).collect();
        let locals = local_hashes(HashVariant::default(), &tokens, block_size, TokenWindow::Block);
        let blocks = sequence_hashes(&locals).zip(&locals).map(|(sequence, &local)| Block { sequence, local });
        let event = BlockEvent::Stored { tier: Tier::Device, parent: None, blocks: blocks.collect(), copies: 1 };
        model.index().apply(rank, &event);

        let query = |tokens, after| {
            let prompt = Query::Tokens(TokenPrompt { tokens, lora_name: None, cache_salt: None });
            indexer.query_local(&key, prompt, QueryOptions { after, ..QueryOptions::default() })
        };
        let AnswerCursor { cursor, tokens: covered } =
            query(&tokens, None).expect("an answer").cursor.expect("a cursor");
        assert_eq!(covered, 32);
        let continued = query(&tokens[32..], Some(cursor)).expect("an answer");
        assert_eq!(continued.ranks[0].tokens[Tier::Device], 40);

        model.windows.record(TokenWindow::Block);
        model.windows.record(TokenWindow::BlockAndNext);
        assert_eq!(query(&tokens, None).expect("an answer").cursor, None);
        assert!(matches!(query(&tokens[32..], Some(cursor)), Err(QueryError::UnknownCursor)));
    }
}
