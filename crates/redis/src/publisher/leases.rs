//! Directory of ranks: leases of the local ranks, and entries of the remote ones.

use std::sync::Arc;

use flash_indexer_core::keyed::KeyedSet;
use redis::Value;
use tokio::time::Instant;
use tracing::info;

use super::bucket::BucketWriter;
use super::clock::StoreClock;
use super::published_rank::PublishedRank;
use super::{HOLDERS_PER_CALL_MAX, LocalRank, Publisher, PublisherState, WRITE_DEADLINE, millis};
use crate::directory::with_scope;
use crate::error::StoreError;
use crate::identity::HolderId;
use crate::script::{LIST, RELEASE, RENEW};

impl Publisher {
    /// Renews the leases of the local ranks, starts and stops publishing accordingly, and reads the directory.
    pub(super) async fn heartbeat(&mut self) -> Result<(), StoreError> {
        // Listing the ranks may block.
        let registry = Arc::clone(&self.registry);
        let local = self.shared.environment.run_blocking(move || registry.ranks()).await;
        let local = local.ok_or(StoreError::LocalRanks)?;
        let known: KeyedSet<HolderId> = local.iter().map(|local| local.holder.id).collect();
        let removed: Vec<HolderId> = self.ranks.keys().filter(|id| !known.contains(id)).copied().collect();
        for id in &removed {
            self.retire(*id, Some(*id));
        }
        self.release(&removed).await;
        for chunk in local.chunks(HOLDERS_PER_CALL_MAX) {
            let assigned = self.renew(chunk).await?;
            for (local, is_assigned) in chunk.iter().zip(assigned) {
                self.assign(local, is_assigned);
            }
        }
        self.read_directory().await
    }

    async fn renew(&mut self, ranks: &[LocalRank]) -> Result<Vec<bool>, StoreError> {
        let PublisherState { id, keys, timing, link, .. } = &*self.shared;
        let confirmed = self.confirmed_until().zip(self.directory_clock);
        let lease_until = confirmed.map_or(0, |(until, clock)| clock.at(until));
        let mut call = RENEW.on(keys.list()).argument(id.0.to_be_bytes());
        call = call.number(lease_until).number(millis(timing.time_to_live));
        for local in ranks {
            let LocalRank { holder, state, unfinished_state, .. } = local;
            let state = if self.is_written(local) { state } else { unfinished_state };
            call = call.argument(holder.id.0.to_be_bytes());
            call = call.argument(with_scope(holder.scope, &holder.description));
            call = call.argument(state.clone()).argument(unfinished_state.clone());
        }
        let sent_at = Instant::now();
        let response = self.strip_invalid_count(link.call(&call, WRITE_DEADLINE).await?);
        let unexpected = StoreError::Protocol("unexpected reply to a renewal of leases");
        let Value::Array(parts) = response else { return Err(unexpected) };
        let Some((&Value::Int(now), assigned)) = parts.split_first() else { return Err(unexpected) };
        self.directory_clock = Some(StoreClock::read(now.unsigned_abs(), sent_at));
        Ok(assigned.iter().map(|assigned| *assigned == Value::Int(1)).collect())
    }

    /// The moment until which the entries of all buckets are valid at least; none if they were not confirmed recently, or
    /// if a bucket is unavailable.
    pub(super) fn confirmed_until(&self) -> Option<Instant> {
        let all = self.buckets.iter().map(BucketWriter::confirmed_until);
        let until = all.min_by_key(|until| *until).flatten()?;
        (until > Instant::now() + self.shared.timing.time_to_live / 2).then_some(until)
    }

    /// Whether the store has all of a rank. It has nothing of a withheld one.
    fn is_written(&self, local: &LocalRank) -> bool {
        if local.rank.is_withheld() {
            return false;
        }
        let known = self.ranks.get(&local.holder.id).filter(|known| Arc::ptr_eq(&known.rank, &local.rank));
        known.is_some_and(PublishedRank::is_written)
    }

    fn assign(&mut self, local: &LocalRank, is_assigned: bool) {
        let id = local.holder.id;
        let is_published = is_assigned && !local.rank.is_withheld();
        let is_other = |known: &PublishedRank| !Arc::ptr_eq(&known.rank, &local.rank);
        if self.ranks.get(&id).is_some_and(|known| !is_published || is_other(known)) {
            // The replica that has the lease writes the rank completely.
            self.retire(id, is_assigned.then_some(id));
        }
        if is_published && !self.ranks.contains_key(&id) {
            let buckets = self.buckets.len();
            self.ranks.insert(id, PublishedRank::new(Arc::clone(&local.rank), local.holder.scope, buckets));
            self.lists_unfinished = true;
        }
    }

    /// Stops publishing a rank: its entries no longer count. Queries report `incomplete` until another replica has
    /// written the rank, or no replica lists it as completely written any more.
    fn retire(&mut self, id: HolderId, incomplete: Option<HolderId>) {
        if let Some(published) = self.ranks.remove(&id) {
            published.rank.retire();
            for (bucket, epoch) in self.buckets.iter_mut().zip(published.epochs) {
                bucket.end(epoch, incomplete);
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
            info!(%error, "failed to remove ranks from the directory of the shared store; they expire with their lease");
        }
    }

    async fn read_directory(&self) -> Result<(), StoreError> {
        let known = self.shared.directory.load_full();
        let call = LIST.on(self.shared.keys.list()).argument(known.version.clone());
        let requested_at = Instant::now();
        let response = self.strip_invalid_count(self.shared.link.call(&call, WRITE_DEADLINE).await?);
        self.shared.directory.store(Arc::new(known.next(response, requested_at.into_std())?));
        self.shared.listed.notify_one();
        Ok(())
    }

    /// Strips the first part of a directory script's response: the number of invalid values that it removed.
    fn strip_invalid_count(&self, response: Value) -> Value {
        let Value::Array(mut parts) = response else { return response };
        if let Some(Value::Int(removed)) = (!parts.is_empty()).then(|| parts.remove(0))
            && removed > 0
        {
            self.log_removed(removed.unsigned_abs(), "directory");
        }
        Value::Array(parts)
    }
}
