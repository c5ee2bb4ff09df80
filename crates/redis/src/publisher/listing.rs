//! The list of holders: which ranks this replica publishes, and what it reads of the others.

use std::sync::Arc;
use std::time::Instant;

use flash_indexer_core::keyed::KeyedSet;
use redis::Value;
use tracing::info;

use super::rank::Publishing;
use super::{HOLDERS_PER_CALL, LocalRank, Publisher, Shared, WRITE_DEADLINE, millis};
use crate::directory::with_scope;
use crate::holder::HolderId;
use crate::link::StoreError;
use crate::script::{LIST, RELEASE, RENEW};

impl Publisher {
    /// Looks which ranks there are and which are to be published here.
    pub(super) async fn beat(&mut self) -> Result<(), StoreError> {
        // What is known of each rank may have to be waited for.
        let source = Arc::clone(&self.source);
        let own = tokio::task::spawn_blocking(move || source.ranks()).await;
        let own = own.map_err(|_| StoreError::Protocol("the ranks of this replica could not be listed"))?;
        let known: KeyedSet<HolderId> = own.iter().map(|own| own.holder.id).collect();
        let gone: Vec<HolderId> = self.ranks.keys().filter(|id| !known.contains(id)).copied().collect();
        for id in &gone {
            self.retire(*id);
        }
        self.release(&gone).await;
        for chunk in own.chunks(HOLDERS_PER_CALL) {
            let mine = self.renew(chunk).await?;
            for (own, is_mine) in chunk.iter().zip(mine) {
                self.assign(own, is_mine);
            }
        }
        self.list().await
    }

    async fn renew(&self, ranks: &[LocalRank]) -> Result<Vec<bool>, StoreError> {
        let Shared { id, keys, times, link, .. } = &*self.shared;
        let mut call = RENEW.on(keys.list()).argument(id.0.to_be_bytes()).number(millis(times.to_live));
        for LocalRank { holder, state, .. } in ranks {
            call = call.argument(holder.id.0.to_be_bytes());
            call = call.argument(with_scope(holder.scope, &holder.description)).argument(state.clone());
        }
        let Value::Array(mine) = self.without_invalid_values(link.call(&call, WRITE_DEADLINE).await?) else {
            return Err(StoreError::Protocol("an answer to a renewal"));
        };
        Ok(mine.into_iter().map(|mine| mine == Value::Int(1)).collect())
    }

    fn assign(&mut self, own: &LocalRank, is_mine: bool) {
        let id = own.holder.id;
        let wanted = is_mine && own.rank.withheld().is_none();
        let is_other = |known: &Publishing| !Arc::ptr_eq(&known.rank, &own.rank);
        if self.ranks.get(&id).is_some_and(|known| !wanted || is_other(known)) {
            self.retire(id);
        }
        if wanted && !self.ranks.contains_key(&id) {
            let buckets = self.buckets.len();
            self.ranks.insert(id, Publishing::new(Arc::clone(&own.rank), own.holder.scope, buckets));
        }
    }

    /// What was written of a rank no longer counts.
    fn retire(&mut self, id: HolderId) {
        if let Some(publishing) = self.ranks.remove(&id) {
            publishing.rank.retire();
            for (bucket, life) in self.buckets.iter_mut().zip(publishing.lives) {
                bucket.end(life);
            }
        }
    }

    pub(super) async fn release(&self, holders: &[HolderId]) {
        if holders.is_empty() {
            return;
        }
        let mut call = RELEASE.on(self.shared.keys.list()).argument(self.shared.id.0.to_be_bytes());
        for holder in holders {
            call = call.argument(holder.0.to_be_bytes());
        }
        if let Err(error) = self.shared.link.call(&call, WRITE_DEADLINE).await {
            info!("the list of holders learns later that some are gone: {error}");
        }
    }

    async fn list(&self) -> Result<(), StoreError> {
        let known = self.shared.directory.load_full();
        let call = LIST.on(self.shared.keys.list()).argument(known.version.clone());
        let asked_at = Instant::now();
        let answer = self.without_invalid_values(self.shared.link.call(&call, WRITE_DEADLINE).await?);
        self.shared.directory.store(Arc::new(known.next(answer, asked_at)?));
        self.shared.listed.notify_one();
        Ok(())
    }

    /// The answer of a script of the list, whose first part is the number of invalid values that it has removed.
    fn without_invalid_values(&self, answer: Value) -> Value {
        let Value::Array(mut parts) = answer else { return answer };
        if let Some(Value::Int(removed)) = (!parts.is_empty()).then(|| parts.remove(0))
            && removed > 0
        {
            self.note_removed(removed.unsigned_abs(), "the list of holders");
        }
        Value::Array(parts)
    }
}
