//! Queries of the local index and of the shared store.

use std::sync::Arc;

use flash_indexer_redis::StoreReport;
use flash_indexer_types::ModelKey;
use flash_indexer_types::names::NameError;

use super::Indexer;
use crate::answer::{Answer, QueryOptions};
use crate::search::{Query, Search};
use crate::shared_store::{Fleet, FleetModel, SharedStore};

/// A query cannot be answered.
#[derive(Debug, Clone, thiserror::Error)]
pub enum QueryError {
    /// No instance is registered for this model and tenant.
    #[error("no instance is registered for model {:?} and tenant {:?}; register one with POST /register, or see GET /workers", .0.model_name, .0.tenant_id)]
    UnknownModel(ModelKey),
    /// No instance is registered for this model and tenant, and recovery may restore one.
    #[error("no instance is registered for model {:?} and tenant {:?} yet, and this indexer is recovering; retry, or ask another one", .0.model_name, .0.tenant_id)]
    Recovering(ModelKey),
    /// The query continues a prefix that this replica's index does not have.
    #[error(
        "unknown cursor: no engine of this replica holds its prefix, or it was answered for another model, adapter or salt; send the whole prompt without `after`"
    )]
    UnknownCursor,
    /// The blocks of a rank could not be read in time.
    #[error(
        "failed to read the blocks of a rank within 5s: messages of its instance are queued; retry when they are applied"
    )]
    Busy,
    /// A name in the query is too long.
    #[error(transparent)]
    Name(#[from] NameError),
    /// No instance is registered with this replica, and the shared store is unavailable.
    #[error("no instance is registered with this replica for model {:?} and tenant {:?}, and the shared store is unavailable; retry, or see GET /store", .0.model_name, .0.tenant_id)]
    StoreUnavailable(ModelKey),
}

impl Indexer {
    /// Queries the matches of a prompt in all ranks. With a shared store it includes the ranks of all replicas and
    /// waits for one call for each hash variant. Otherwise it does not wait.
    ///
    /// # Errors
    ///
    /// If no instance is registered for the model and tenant with any replica, or if the cursor is unknown. If the shared store is unavailable and
    /// an instance is registered with this replica, the answer has that instance and [`Answer::store`] reports the
    /// store.
    pub async fn query(&self, key: &ModelKey, query: Query<'_>, options: QueryOptions) -> Result<Answer, QueryError> {
        let mut search = self.search(key, query)?;
        self.continue_or_keep(key, &mut search, options)?;
        self.query_store(&mut search).await;
        Ok(search.answer(options))
    }

    /// Queries the matches of a prompt in this replica's ranks.
    ///
    /// # Errors
    ///
    /// If no instance is registered with this replica for the model and tenant, or if the cursor is unknown.
    pub fn query_local(&self, key: &ModelKey, query: Query<'_>, options: QueryOptions) -> Result<Answer, QueryError> {
        query.check(key)?;
        let mut search = Search::new(Some(self.model(key)?), None, query);
        self.continue_or_keep(key, &mut search, options)?;
        Ok(search.answer(options))
    }

    /// A search that has queried the shared store, if one is configured.
    pub(super) async fn search_fleet<'q>(&self, key: &ModelKey, query: Query<'q>) -> Result<Search<'q>, QueryError> {
        let mut search = self.search(key, query)?;
        self.keep_prompt(key, &search);
        self.query_store(&mut search).await;
        Ok(search)
    }

    /// Completes a query that continues a prefix, or keeps its prompt.
    fn continue_or_keep(
        &self,
        key: &ModelKey,
        search: &mut Search<'_>,
        options: QueryOptions,
    ) -> Result<(), QueryError> {
        match options.after {
            Some(cursor) => search.continue_after(cursor).then_some(()).ok_or(QueryError::UnknownCursor),
            None => {
                self.keep_prompt(key, search);
                Ok(())
            }
        }
    }

    async fn query_store(&self, search: &mut Search<'_>) {
        if let Some(shared_store) = &self.shared_store {
            search.query_store(shared_store).await;
        }
    }

    /// A search that has not queried the shared store yet.
    pub(super) fn search<'q>(&self, key: &ModelKey, query: Query<'q>) -> Result<Search<'q>, QueryError> {
        query.check(key)?;
        let Some(shared_store) = &self.shared_store else {
            return Ok(Search::new(Some(self.model(key)?), None, query));
        };
        let local = self.model(key);
        // A listed model of another block size is a different model.
        let is_same =
            |listed: &Arc<FleetModel>| local.as_ref().map_or(true, |model| model.block_size == listed.block_size);
        let listed = shared_store.fleet().model(key).filter(is_same);
        match (local, listed) {
            (Err(_), None) if !shared_store.store.is_connected() => Err(QueryError::StoreUnavailable(key.clone())),
            (Err(error), None) => Err(error),
            (local, listed) => Ok(Search::new(local.ok(), listed, query)),
        }
    }

    /// Whether a shared store is configured. Queries may then wait for it.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared_store.is_some()
    }

    /// State of the shared store, if one is configured.
    #[must_use]
    pub fn store_report(&self) -> Option<StoreReport> {
        self.shared_store.as_ref().map(|shared_store| shared_store.store.report())
    }

    /// All ranks listed in the shared store, if one is configured.
    pub fn fleet(&self) -> Option<Arc<Fleet>> {
        self.shared_store.as_ref().map(SharedStore::fleet)
    }

    /// Stops publishing and releases this replica's ranks: other replicas can then publish them at once.
    pub async fn stop_shared_store(&self) {
        if let Some(shared_store) = &self.shared_store {
            shared_store.store.stop().await;
        }
    }
}
