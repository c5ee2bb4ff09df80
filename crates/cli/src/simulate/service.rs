//! The service of simulated engines: registration, predictions, and waiting until it has applied their messages.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use flash_indexer_api::{ModelScope, RegisterRequest, TokenQuery};
use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_sim::Publisher;
use flash_indexer_types::{InstanceId, Trust};

use flash_indexer_commands::IndexerClient;

/// Longest wait for the service to apply the published messages.
const CATCH_UP_DEADLINE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_micros(500);

/// A rank of an engine, as it is registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EngineRank {
    pub(super) instance: u64,
    pub(super) dp_rank: DpRank,
}

/// A service, and the engines registered with it.
pub(super) struct Service {
    client: IndexerClient,
    model_name: String,
    tenant_id: String,
    registered: Vec<u64>,
}

impl Service {
    pub(super) fn new(client: IndexerClient, model_name: &str, tenant_id: &str) -> Self {
        Self { client, model_name: model_name.to_owned(), tenant_id: tenant_id.to_owned(), registered: Vec::new() }
    }

    fn scope(&self) -> ModelScope {
        ModelScope::of(&self.model_name, Some(&self.tenant_id))
    }

    pub(super) fn register(
        &mut self,
        rank: EngineRank,
        endpoint: &str,
        publisher: &Publisher,
        block_size: BlockSize,
    ) -> Result<()> {
        let registration = RegisterRequest {
            instance_id: InstanceId::number(rank.instance).into(),
            endpoint: Some(endpoint.to_owned()),
            events: None,
            cache_blocks: None,
            kind: None,
            shared_caches: None,
            scope: self.scope(),
            block_size: Some(block_size.tokens()),
            dp_rank: Some(rank.dp_rank.0),
            replay_endpoint: Some(publisher.replay_endpoint().to_owned()),
            lora_name: None,
            engine: None,
            removal: None,
            extra_keys: None,
        };
        if !self.client.register(&registration)? {
            // A registration of an interrupted run, whose blocks are not in this engine's cache.
            self.client.unregister(rank.instance, &self.model_name, &self.tenant_id)?;
            self.client.register(&registration)?;
        }
        if !self.registered.contains(&rank.instance) {
            self.registered.push(rank.instance);
        }
        Ok(())
    }

    /// Predicted tokens of a prompt for each rank: in any tier for an instance with one rank. For several ranks only
    /// device memory counts, because answers contain the other tiers only for the entire instance.
    pub(super) fn predict(
        &self,
        prompt: &[u32],
        lora_name: Option<&str>,
        cache_salt: Option<&str>,
    ) -> Result<BTreeMap<EngineRank, u64>> {
        let answer = self.client.query(&TokenQuery {
            token_ids: prompt.to_vec(),
            scope: self.scope(),
            lora_name: lora_name.map(str::to_owned),
            cache_salt: cache_salt.map(str::to_owned),
            ..TokenQuery::default()
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

    /// Trust state of an instance.
    pub(super) fn trust(&self, instance: u64) -> Result<Option<Trust>> {
        let query = TokenQuery { scope: self.scope(), ..TokenQuery::default() };
        let mut answer = self.client.query(&query)?;
        Ok(answer.instances.remove(&instance.to_string()).map(|instance| instance.trust))
    }

    /// Waits until the service has applied each rank's message with the given sequence number.
    pub(super) fn catch_up(&self, published: &BTreeMap<EngineRank, u64>) -> Result<()> {
        let start = Instant::now();
        loop {
            let mut behind = published.clone();
            for worker in self.client.workers(&self.model_name, &self.tenant_id)? {
                let Ok(instance) = worker.instance_id.as_key().parse() else { continue };
                for (dp_rank, listener) in worker.listeners {
                    let rank = EngineRank { instance, dp_rank: DpRank(dp_rank) };
                    if behind.get(&rank).is_some_and(|wanted| listener.last_seq >= Some(*wanted)) {
                        behind.remove(&rank);
                    }
                }
            }
            let Some((rank, wanted)) = behind.first_key_value() else { return Ok(()) };
            let EngineRank { instance, dp_rank } = rank;
            ensure!(
                start.elapsed() <= CATCH_UP_DEADLINE,
                "the service did not apply message {wanted} of instance {instance} rank {dp_rank} within {CATCH_UP_DEADLINE:?}; see GET /workers"
            );
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Unregisters the engines, even after an error.
impl Drop for Service {
    fn drop(&mut self) {
        for instance in std::mem::take(&mut self.registered) {
            if let Err(error) = self.client.unregister(instance, &self.model_name, &self.tenant_id) {
                tracing::warn!(
                    instance,
                    error = format!("{error:#}"),
                    "failed to unregister an engine; POST /unregister removes it"
                );
            }
        }
    }
}
