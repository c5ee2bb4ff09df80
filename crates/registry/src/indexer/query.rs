//! Queries, and the shared index that they may have to ask.

use std::sync::Arc;

use flash_indexer_redis::StoreReport;

use super::Indexer;
use crate::answer::{Answer, QueryOptions};
use crate::search::{Query, Search};
use crate::shared_store::{Fleet, FleetModel, SharedStore};
use flash_indexer_types::ModelKey;
use flash_indexer_types::names::NameError;

/// A query cannot be answered.
#[derive(Debug, Clone, thiserror::Error)]
pub enum QueryError {
    /// Nobody has registered for this model and tenant.
    #[error("no instance is registered for model {:?} and tenant {:?}: register one with POST /register, or see GET /workers", .0.model_name, .0.tenant_id)]
    UnknownModel(ModelKey),
    /// A name of the question is too long.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Nobody has with this replica, and the store that knows who has with others does not answer.
    #[error("no instance is registered with this replica for model {:?} and tenant {:?}, and the store, which knows those of other replicas, does not answer: ask again later, or see GET /store", .0.model_name, .0.tenant_id)]
    StoreUnavailable(ModelKey),
}

impl Indexer {
    /// What all ranks hold of a prompt, with a shared index those of all replicas: one call of the store. Without a shared
    /// index it does not wait.
    ///
    /// # Errors
    ///
    /// When nobody is registered for the model and tenant with any replica, as far as the store can be asked. Where somebody is,
    /// it is no error that the store does not answer: [`Answer::store`] says so.
    pub async fn query(&self, key: &ModelKey, query: Query<'_>, options: QueryOptions) -> Result<Answer, QueryError> {
        Ok(self.search_everywhere(key, query).await?.answer().select(options))
    }

    /// What this replica's ranks hold of a prompt.
    ///
    /// # Errors
    ///
    /// When nobody is registered with this replica for the model and tenant.
    pub fn query_here(&self, key: &ModelKey, query: Query<'_>, options: QueryOptions) -> Result<Answer, QueryError> {
        query.check(key)?;
        Ok(Search::of(Some(self.model(key)?), None, query).answer().select(options))
    }

    /// A search that has asked others, if an index is shared.
    pub(super) async fn search_everywhere<'q>(
        &self,
        key: &ModelKey,
        query: Query<'q>,
    ) -> Result<Search<'q>, QueryError> {
        let mut search = self.search(key, query)?;
        if let Some(shared_store) = &self.shared_store {
            search.ask(shared_store).await;
        }
        Ok(search)
    }

    /// A search that has asked nobody yet.
    pub(super) fn search<'q>(&self, key: &ModelKey, query: Query<'q>) -> Result<Search<'q>, QueryError> {
        query.check(key)?;
        let Some(shared_store) = &self.shared_store else { return Ok(Search::of(Some(self.model(key)?), None, query)) };
        let here = self.model(key);
        // Others that disagree about the block size mean another model.
        let is_same =
            |listed: &Arc<FleetModel>| here.as_ref().map_or(true, |model| model.block_size == listed.block_size);
        let listed = shared_store.fleet().model(key).filter(is_same);
        match (here, listed) {
            (Err(_), None) if !shared_store.is_connected() => Err(QueryError::StoreUnavailable(key.clone())),
            (Err(error), None) => Err(error),
            (here, listed) => Ok(Search::of(here.ok(), listed, query)),
        }
    }

    /// Whether an index is shared, so that answers may have to wait for the store.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared_store.is_some()
    }

    /// How the shared index status, if there is one.
    #[must_use]
    pub fn store_report(&self) -> Option<StoreReport> {
        self.shared_store.as_ref().map(SharedStore::report)
    }

    /// Everybody in the shared index, if there is one.
    pub fn fleet(&self) -> Option<Arc<Fleet>> {
        self.shared_store.as_ref().map(SharedStore::fleet)
    }

    /// Publishes nothing more, and lets others do so at once.
    pub async fn stop_shared_store(&self) {
        if let Some(shared_store) = &self.shared_store {
            shared_store.stop().await;
        }
    }
}
