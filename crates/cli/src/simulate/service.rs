//! The service that simulated engines are registered with.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_sim::Publisher;

use crate::client::{IndexerClient, Query, Registration};

/// Longest wait for the service to take in what was published.
const CATCH_UP_DEADLINE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_micros(500);

/// An engine rank as the service names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EngineRank {
    pub(super) instance: u64,
    pub(super) dp_rank: DpRank,
}

/// A service and the model that engines are registered for.
pub(super) struct Service {
    client: IndexerClient,
    model_name: String,
    tenant_id: String,
    registered: Vec<u64>,
}

impl Service {
    pub(super) fn new(url: &str, model_name: &str, tenant_id: &str) -> Self {
        Self {
            client: IndexerClient::new(url),
            model_name: model_name.to_owned(),
            tenant_id: tenant_id.to_owned(),
            registered: Vec::new(),
        }
    }

    pub(super) fn register(
        &mut self,
        rank: EngineRank,
        endpoint: &str,
        publisher: &Publisher,
        block_size: BlockSize,
    ) -> Result<()> {
        let registration = Registration {
            instance_id: rank.instance,
            endpoint,
            replay_endpoint: Some(publisher.replay_endpoint()),
            model_name: &self.model_name,
            tenant_id: &self.tenant_id,
            block_size: block_size.tokens(),
            dp_rank: rank.dp_rank.0,
        };
        if !self.client.register(&registration)? {
            // Left over from a run that was cut off: what it told is not what this engine has.
            self.client.unregister(rank.instance, &self.model_name, &self.tenant_id)?;
            self.client.register(&registration)?;
        }
        if !self.registered.contains(&rank.instance) {
            self.registered.push(rank.instance);
        }
        Ok(())
    }

    /// Tokens that the service says each rank holds of a prompt: in any tier, as an engine uses them, or in
    /// device memory where an instance has several ranks, because answers tell other tiers by instance.
    pub(super) fn predict(
        &self,
        prompt: &[u32],
        lora_name: Option<&str>,
        cache_salt: Option<&str>,
    ) -> Result<BTreeMap<EngineRank, u64>> {
        let answer = self.client.query(&Query {
            token_ids: prompt,
            model_name: &self.model_name,
            tenant_id: Some(&self.tenant_id),
            lora_name,
            cache_salt,
            ..Query::default()
        })?;
        let mut predicted = BTreeMap::new();
        for (name, ranks) in answer.scores {
            let Ok(instance) = name.parse() else { continue };
            let any_tier = answer.instances.get(&name).filter(|_| ranks.len() == 1);
            for (dp_rank, tokens) in ranks {
                let tokens = any_tier.map_or(tokens, |instance| instance.longest_matched);
                predicted.insert(EngineRank { instance, dp_rank: DpRank(dp_rank) }, tokens);
            }
        }
        Ok(predicted)
    }

    /// How far the service trusts what it knows of an instance.
    pub(super) fn trust(&self, instance: u64) -> Result<Option<String>> {
        let query = Query {
            token_ids: &[],
            model_name: &self.model_name,
            tenant_id: Some(&self.tenant_id),
            ..Query::default()
        };
        let mut answer = self.client.query(&query)?;
        Ok(answer.instances.remove(&instance.to_string()).map(|instance| instance.trust))
    }

    /// Waits until the service has taken in each rank's message with the given number.
    pub(super) fn catch_up(&self, published: &BTreeMap<EngineRank, u64>) -> Result<()> {
        let start = Instant::now();
        loop {
            let mut behind = published.clone();
            for worker in self.client.workers(&self.model_name, &self.tenant_id)? {
                let Some(instance) = worker.instance_id.as_u64() else { continue };
                for (dp_rank, listener) in worker.listeners {
                    let rank = EngineRank { instance, dp_rank: DpRank(dp_rank) };
                    if behind.get(&rank).is_some_and(|wanted| listener.last_seq >= Some(*wanted)) {
                        behind.remove(&rank);
                    }
                }
            }
            let Some((rank, wanted)) = behind.first_key_value() else { return Ok(()) };
            if start.elapsed() > CATCH_UP_DEADLINE {
                bail!(
                    "the service has not taken in message {wanted} of instance {} rank {} within {CATCH_UP_DEADLINE:?}: see GET /workers",
                    rank.instance,
                    rank.dp_rank
                );
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// However a run ends, its engines are gone then.
impl Drop for Service {
    fn drop(&mut self) {
        for instance in std::mem::take(&mut self.registered) {
            if let Err(error) = self.client.unregister(instance, &self.model_name, &self.tenant_id) {
                tracing::warn!("failed to unregister instance {instance}: {error:#}");
            }
        }
    }
}
