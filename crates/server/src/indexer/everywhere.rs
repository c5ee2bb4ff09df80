//! Queries about the whole fleet, also about ranks that only other replicas listen to.

use std::sync::Arc;

use flash_indexer_core::hashing::{BlockSize, HashSpace, local_hashes};
use flash_indexer_core::{LocalHash, PerTier, SharedIndex};
use flash_indexer_redis::StoreReport;
use tracing::debug;

use super::{Indexer, QueryError};
use crate::answer::{Answer, QueryOptions, RankAnswer, StoreAnswer};
use crate::instance::ModelKey;
use crate::model::Model;
use crate::shared::{Fleet, FleetModel, FleetRank, Sharing};

impl Indexer {
    /// [`Indexer::query_tokens`] about all ranks of the shared index as well: one call of the store. Without a shared
    /// index it does not wait.
    ///
    /// # Errors
    ///
    /// When nobody is registered for the model and tenant with any replica. That the store does not answer is no
    /// error: [`Answer::store`] says so.
    pub async fn query_tokens_everywhere(
        &self,
        key: &ModelKey,
        tokens: &[u32],
        lora_name: Option<&str>,
        cache_salt: Option<&str>,
        options: QueryOptions,
    ) -> Result<Answer, QueryError> {
        let Some(sharing) = &self.sharing else {
            return self.query_tokens(key, tokens, lora_name, cache_salt, options);
        };
        let model = self.model(key);
        let fleet = sharing.fleet();
        let elsewhere = elsewhere(&fleet, key, model.as_deref().ok());
        let (space, block_size) = match (&model, elsewhere) {
            (Ok(model), _) => (model.hash_space(lora_name, cache_salt), model.block_size),
            (Err(_), Some(elsewhere)) => (elsewhere.hash_space(lora_name, cache_salt), elsewhere.block_size),
            (Err(error), None) => return Err(error.clone()),
        };
        let forms = forms(model.as_ref().ok(), elsewhere, (space, block_size), tokens);
        let local = model.map(|model| {
            let found = forms.iter().map(|form| (form.as_slice(), model.find_prompt(form, tokens.len())));
            model.answer(found)
        });
        let local = local.unwrap_or_default();
        Ok(complete(sharing, local, elsewhere, &forms).await.select(options))
    }

    /// [`Indexer::query_hashes`] about all ranks of the shared index as well.
    ///
    /// # Errors
    ///
    /// As [`Indexer::query_tokens_everywhere`].
    pub async fn query_hashes_everywhere(
        &self,
        key: &ModelKey,
        locals: &[LocalHash],
        options: QueryOptions,
    ) -> Result<Answer, QueryError> {
        let Some(sharing) = &self.sharing else { return self.query_hashes(key, locals, options) };
        let model = self.model(key);
        let fleet = sharing.fleet();
        let elsewhere = elsewhere(&fleet, key, model.as_deref().ok());
        let local = match (model, elsewhere) {
            (Ok(model), _) => model.answer([(locals, model.index.find(locals))]),
            (Err(_), Some(_)) => Answer::default(),
            (Err(error), None) => return Err(error),
        };
        Ok(complete(sharing, local, elsewhere, &[locals.to_vec()]).await.select(options))
    }

    /// How the shared index fares, if there is one.
    #[must_use]
    pub fn store_report(&self) -> Option<StoreReport> {
        self.sharing.as_ref().map(Sharing::report)
    }

    /// Everybody in the shared index, if there is one.
    pub(crate) fn fleet(&self) -> Option<Arc<Fleet>> {
        self.sharing.as_ref().map(Sharing::fleet)
    }

    /// Publishes nothing more, and lets others do so at once.
    pub(crate) async fn stop_sharing(&self) {
        if let Some(sharing) = &self.sharing {
            sharing.stop().await;
        }
    }
}

/// The model as others describe it, if that is the same one.
fn elsewhere<'f>(fleet: &'f Fleet, key: &ModelKey, model: Option<&Model>) -> Option<&'f FleetModel> {
    let is_same = |elsewhere: &&FleetModel| model.is_none_or(|model| model.block_size == elsewhere.block_size);
    fleet.model(key).filter(is_same)
}

/// A prompt's blocks, for each token window that engines use, here or elsewhere.
fn forms(
    model: Option<&Arc<Model>>,
    elsewhere: Option<&FleetModel>,
    (space, block_size): (HashSpace, BlockSize),
    tokens: &[u32],
) -> Vec<Vec<LocalHash>> {
    let mut windows: Vec<_> = model.map(|model| model.windows.in_use().collect()).unwrap_or_default();
    for &window in elsewhere.map(|elsewhere| elsewhere.windows.as_slice()).unwrap_or_default() {
        if !windows.contains(&window) {
            windows.push(window);
        }
    }
    windows.into_iter().map(|window| local_hashes(space, tokens, block_size, window)).collect()
}

/// Adds to this replica's answer what others have published.
async fn complete(
    sharing: &Sharing,
    mut answer: Answer,
    elsewhere: Option<&FleetModel>,
    forms: &[Vec<LocalHash>],
) -> Answer {
    let Some(elsewhere) = elsewhere.filter(|elsewhere| elsewhere.ranks.values().any(|rank| !rank.is_own)) else {
        answer.store = if sharing.is_connected() { StoreAnswer::Asked } else { StoreAnswer::Unavailable };
        return answer;
    };
    match sharing.find(elsewhere, forms).await {
        Ok(found) => {
            answer.store = StoreAnswer::Asked;
            answer.merge(found.into_iter().map(|(rank, blocks)| named(elsewhere, rank, blocks)));
        }
        Err(error) => {
            debug!("answered without other replicas' ranks: {error}");
            answer.store = StoreAnswer::Unavailable;
        }
    }
    answer
}

fn named(model: &FleetModel, rank: &FleetRank, blocks: PerTier<u32>) -> RankAnswer {
    let block_tokens = u64::from(model.block_size.tokens());
    RankAnswer {
        instance: rank.instance.clone(),
        dp_rank: rank.dp_rank,
        tokens: PerTier(blocks.0.map(|blocks| u64::from(blocks) * block_tokens)),
        blocks_held: rank.blocks,
        trust: rank.trust,
        // Nothing is forgotten for want of memory on the way to the store.
        partial: false,
    }
}
