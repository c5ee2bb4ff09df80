//! Looking for a prompt: here, and with a shared index elsewhere. What queries and scores answer is made of what is found.

use std::borrow::Cow;
use std::sync::Arc;

use flash_indexer_core::hashing::local_hashes;
use flash_indexer_core::{LocalHash, MatchScores, PerTier, SharedIndex, WorkerId};
use flash_indexer_redis::HolderId;
use tracing::debug;

use crate::answer::{Answer, RankAnswer, StoreAnswer};
use crate::model::Model;
use crate::shared_store::{Depths, FleetModel, RemoteListedRank, SharedStore};
use flash_indexer_types::Trust;
use flash_indexer_types::names::{NameError, NameField, check_names};
use flash_indexer_types::{InstanceId, ModelKey};

/// Tokens of a prompt and what they were computed with.
#[derive(Debug, Clone, Copy)]
pub struct TokenPrompt<'a> {
    /// The tokens.
    pub tokens: &'a [u32],
    /// The adapter; without one, that of all of the model's registrations.
    pub lora_name: Option<&'a str>,
    /// The cache salt.
    pub cache_salt: Option<&'a str>,
}

/// A prompt that is asked about.
#[derive(Debug, Clone)]
pub enum Query<'a> {
    /// As tokens.
    Tokens(TokenPrompt<'a>),
    /// As local hashes of its blocks, which have adapter and salt in them.
    Hashes(Cow<'a, [LocalHash]>),
}

impl TokenPrompt<'_> {
    /// Refuses an adapter or a salt that is too long.
    pub fn check(&self) -> Result<(), NameError> {
        check_names([(NameField::LoraName, self.lora_name), (NameField::CacheSalt, self.cache_salt)])
    }
}

impl Query<'_> {
    /// Refuses names that are too long, of the question and of the model that it is about.
    pub fn check(&self, key: &ModelKey) -> Result<(), NameError> {
        key.check()?;
        match self {
            Self::Tokens(prompt) => prompt.check(),
            Self::Hashes(_) => Ok(()),
        }
    }
}

/// A prompt's blocks, where they are to be looked for, and what others said of them.
pub(crate) struct Search<'q> {
    /// The model, if it is registered here.
    pub here: Option<Arc<Model>>,
    /// The model as other replicas describe it, if one is shared.
    listed: Option<Arc<FleetModel>>,
    /// The prompt's blocks in each form that engines use, here or elsewhere.
    pub forms: Vec<Cow<'q, [LocalHash]>>,
    /// Tokens of the prompt; none if it was given as blocks.
    tokens: Option<usize>,
    /// What the store found, for each form.
    depths: Vec<Depths>,
    pub store: StoreAnswer,
    /// Whether what others say of their ranks' trust is recent.
    is_list_current: bool,
}

/// A rank that counts as another replica has published it.
pub(crate) struct RemoteRank<'s> {
    pub rank: &'s RemoteListedRank,
    /// What its publisher says; no better than degraded if that is too long ago.
    pub trust: Trust,
    holder: HolderId,
    depths: &'s [Depths],
}

impl<'q> Search<'q> {
    /// A search in one of these or both; nobody is asked yet.
    pub(crate) fn of(here: Option<Arc<Model>>, listed: Option<Arc<FleetModel>>, query: Query<'q>) -> Self {
        let (forms, tokens) = match query {
            Query::Tokens(prompt) => (forms(here.as_deref(), listed.as_deref(), prompt), Some(prompt.tokens.len())),
            Query::Hashes(locals) => (vec![locals], None),
        };
        Self { here, listed, forms, tokens, depths: Vec::new(), store: StoreAnswer::None, is_list_current: true }
    }

    /// Asks the store what others have published. One call for each form.
    pub(crate) async fn ask(&mut self, shared_store: &SharedStore) {
        self.is_list_current = shared_store.is_list_current();
        let others = self.listed.as_ref().filter(|listed| listed.ranks.values().any(|rank| !rank.is_own));
        let Some(listed) = others else {
            self.store = if shared_store.is_connected() { StoreAnswer::Asked } else { StoreAnswer::Unavailable };
            return;
        };
        match shared_store.find(listed, &self.forms).await {
            Ok(depths) => (self.depths, self.store) = (depths, StoreAnswer::Asked),
            Err(error) => {
                debug!("answered without other replicas' ranks: {error}");
                self.store = StoreAnswer::Unavailable;
            }
        }
    }

    /// What this replica's ranks hold of each form.
    pub(crate) fn find_here(&self) -> Vec<(&[LocalHash], MatchScores)> {
        let Some(model) = &self.here else { return Vec::new() };
        let find = |form: &[LocalHash]| match self.tokens {
            Some(tokens) => model.find_prompt(form, tokens),
            None => model.index().find(form),
        };
        self.forms.iter().map(|form| (form.as_ref(), find(form))).collect()
    }

    /// Ranks that count as others have published them: this replica does not know them, or is to be trusted less.
    pub(crate) fn elsewhere(&self) -> Vec<RemoteRank<'_>> {
        let Some(listed) = self.listed.as_deref().filter(|_| self.store == StoreAnswer::Asked) else {
            return Vec::new();
        };
        let own_trust =
            |rank: &RemoteListedRank| self.here.as_ref().and_then(|model| model.trust(&rank.instance, rank.dp_rank));
        let trust = |rank: &RemoteListedRank| rank.trust_as_listed(self.is_list_current);
        let counts = |rank: &RemoteListedRank| !rank.is_own && own_trust(rank).is_none_or(|own| trust(rank) < own);
        let ranks = listed.ranks.iter().filter(|(_, rank)| counts(rank));
        let elsewhere = |(&holder, rank)| RemoteRank { rank, trust: trust(rank), holder, depths: &self.depths };
        ranks.map(elsewhere).collect()
    }

    /// What predictions call a pod of this replica or another one; none if nobody has it.
    pub(crate) fn worker(&self, pod: &InstanceId) -> Option<WorkerId> {
        let listed = || {
            let mut ranks = self.listed.as_ref()?.ranks.values().filter(|rank| !rank.is_own);
            ranks.find(|rank| rank.instance == *pod).map(|rank| rank.worker)
        };
        self.here.as_ref().and_then(|model| model.worker(pod)).or_else(listed)
    }

    /// The answer to a query.
    pub(crate) fn answer(&self) -> Answer {
        let mut answer = match &self.here {
            Some(model) => model.answer(&self.find_here()),
            None => Answer::default(),
        };
        answer.store = self.store;
        if let Some(listed) = &self.listed {
            let block_tokens = u64::from(listed.block_size.tokens());
            answer.merge(self.elsewhere().iter().map(|elsewhere| elsewhere.answer(block_tokens)));
        }
        answer
    }
}

impl RemoteRank<'_> {
    /// Leading blocks that it holds of one of the prompt's forms, when a tier and the faster ones are used together.
    pub(crate) fn blocks(&self, form: usize) -> PerTier<u32> {
        self.depths.get(form).and_then(|depths| depths.get(&self.holder)).copied().unwrap_or_default()
    }

    /// Its part of an answer: of several forms of the prompt the deepest match counts.
    fn answer(&self, block_tokens: u64) -> RankAnswer {
        let mut tokens = PerTier::default();
        for form in 0..self.depths.len() {
            for (deepest, blocks) in tokens.0.iter_mut().zip(self.blocks(form).0) {
                *deepest = (u64::from(blocks) * block_tokens).max(*deepest);
            }
        }
        RankAnswer {
            instance: self.rank.instance.clone(),
            dp_rank: self.rank.dp_rank,
            tokens,
            blocks_held: self.rank.blocks,
            trust: self.trust,
            // Nothing is forgotten for want of memory on the way to the store.
            partial: false,
        }
    }
}

/// A prompt's blocks, for each token window that engines use.
fn forms(here: Option<&Model>, listed: Option<&FleetModel>, prompt: TokenPrompt<'_>) -> Vec<Cow<'static, [LocalHash]>> {
    let (lora_name, cache_salt) = (prompt.lora_name, prompt.cache_salt);
    let (space, block_size) = match (here, listed) {
        (Some(model), _) => (model.hash_variant(lora_name, cache_salt), model.block_size),
        (None, Some(listed)) => (listed.hash_variant(lora_name, cache_salt), listed.block_size),
        (None, None) => return Vec::new(),
    };
    let used_here = || here.into_iter().flat_map(|model| model.windows.in_use());
    let used_elsewhere = listed.into_iter().flat_map(|listed| listed.windows.iter().copied());
    let windows = used_here().chain(used_elsewhere.filter(|window| used_here().all(|known| known != *window)));
    windows.map(|window| Cow::Owned(local_hashes(space, prompt.tokens, block_size, window))).collect()
}
