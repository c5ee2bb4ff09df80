//! Template of engines: defaults of the fields that a source lacks.

use std::num::NonZeroU16;

use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_types::names::NameError;
use flash_indexer_types::{
    EngineKind, InstanceId, ListenerOptions, ModelKey, Registration, RemovalMeaning, SharedCaches,
};

use super::reconcile::Targets;

/// Defaults of discovered engines, for fields that a source lacks.
#[derive(Debug, Clone)]
pub struct EngineTemplate {
    /// Model that they serve; [`EngineTemplate::MODEL_NAME`] without one.
    pub model_name: Option<String>,
    /// Tenant that they belong to.
    pub tenant_id: String,
    /// Tokens in a block, if all engines have the same.
    pub block_size: Option<BlockSize>,
    /// Port at which rank 0 publishes. Each further rank has the next port.
    pub port: u16,
    /// Port at which rank 0 replays, if the engines do. Each further rank has the next port.
    pub replay_port: Option<u16>,
    /// Data-parallel ranks of each engine.
    pub data_parallel_size: NonZeroU16,
}

impl Default for EngineTemplate {
    fn default() -> Self {
        Self {
            model_name: None,
            tenant_id: ModelKey::DEFAULT_TENANT.to_owned(),
            block_size: None,
            port: 5557,
            replay_port: None,
            data_parallel_size: NonZeroU16::MIN,
        }
    }
}

/// Fields of one engine that a source contains. The template has the rest.
#[derive(Debug, Clone, Default)]
pub(super) struct EngineTraits {
    pub(super) model_name: Option<String>,
    pub(super) tenant_id: Option<String>,
    pub(super) block_size: Option<BlockSize>,
    pub(super) port: Option<u16>,
    pub(super) replay_port: Option<u16>,
    pub(super) data_parallel_size: Option<NonZeroU16>,
    pub(super) lora_name: Option<String>,
    pub(super) engine: Option<EngineKind>,
    pub(super) removal: Option<RemovalMeaning>,
    pub(super) extra_keys: Option<bool>,
    pub(super) shared_caches: SharedCaches,
}

/// Invalid fields of an engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum EngineTraitsError {
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("the block size is unknown: set it in the source, or give --block-size")]
    BlockSize,
    #[error("{ranks} ranks from port {port} on are more than there are ports: set a lower port, or fewer ranks")]
    Ports { port: u16, ranks: u16 },
    #[error(
        "the ports of {ranks} ranks overlap, from {port} on for events and from {replay_port} on for replays: set them further \
         apart"
    )]
    Overlap { port: u16, replay_port: u16, ranks: u16 },
}

/// A host name or an address as the host of an endpoint: IPv6 addresses have brackets.
pub(super) fn url_host(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

impl EngineTemplate {
    /// Model of engines for which neither the source nor the template names one.
    pub const MODEL_NAME: &str = "default";

    /// Model of engines whose source names none.
    pub(super) fn model_name(&self) -> &str {
        self.model_name.as_deref().unwrap_or(Self::MODEL_NAME)
    }

    /// Adds the ranks of an engine at this host.
    ///
    /// # Errors
    ///
    /// When the engine cannot be registered.
    pub(super) fn add_ranks(
        &self,
        targets: &mut Targets,
        instance: &InstanceId,
        host: &str,
        traits: &EngineTraits,
    ) -> Result<(), EngineTraitsError> {
        let ranks = traits.data_parallel_size.unwrap_or(self.data_parallel_size).get();
        let port = traits.port.unwrap_or(self.port);
        let replay_port = traits.replay_port.or(self.replay_port);
        for first in [Some(port), replay_port].into_iter().flatten() {
            first.checked_add(ranks - 1).ok_or(EngineTraitsError::Ports { port: first, ranks })?;
        }
        if let Some(replay_port) = replay_port.filter(|replay_port| replay_port.abs_diff(port) < ranks) {
            return Err(EngineTraitsError::Overlap { port, replay_port, ranks });
        }
        for rank in 0..ranks {
            let at = |port| format!("tcp://{host}:{}", port + rank);
            let endpoints = (at(port), replay_port.map(at));
            let registration = self.registration(instance, DpRank(rank.into()), endpoints, traits)?;
            targets.insert(registration.rank_id(), registration);
        }
        Ok(())
    }

    /// Registration of one rank at its endpoint and replay endpoint.
    pub(super) fn registration(
        &self,
        instance: &InstanceId,
        dp_rank: DpRank,
        (endpoint, replay_endpoint): (String, Option<String>),
        traits: &EngineTraits,
    ) -> Result<Registration, EngineTraitsError> {
        let registration = Registration {
            instance: instance.clone(),
            dp_rank,
            model: ModelKey {
                model_name: traits.model_name.clone().unwrap_or_else(|| self.model_name().to_owned()),
                tenant_id: traits.tenant_id.clone().unwrap_or_else(|| self.tenant_id.clone()),
            },
            block_size: traits.block_size.or(self.block_size).ok_or(EngineTraitsError::BlockSize)?,
            options: ListenerOptions {
                replay_endpoint,
                lora_name: traits.lora_name.clone().filter(|name| !name.is_empty()),
                engine: traits.engine,
                removed_copies: traits.removal.unwrap_or_default().into(),
                extra_keys: traits.extra_keys.unwrap_or_default(),
                shared_caches: traits.shared_caches.clone(),
                ..ListenerOptions::new(endpoint)
            },
        };
        registration.check_names()?;
        Ok(registration)
    }
}
