//! Options of `serve` for engines that connect to it.

use clap::Args;
use flash_indexer_server::{ModelKey, PodOptions};

/// Engines that connect to the service instead of being dialled.
#[derive(Args)]
#[command(next_help_heading = "Engines that connect to the service")]
pub(crate) struct InboundArguments {
    /// Addresses that engines connect to, separated by commas, such as tcp://0.0.0.0:5557. One that other hosts reach needs
    /// --curve-clients, or --insecure: every host that reaches it can then add and clear blocks.
    #[arg(long, env = "FLASH_INDEXER_LISTEN_EVENTS", value_delimiter = ',', value_name = "ADDRESS")]
    pub(super) listen_events: Vec<String>,

    /// Prefix of the topics that are received from such engines; topics are kv@<pod>@<model>.
    #[arg(long, env = "FLASH_INDEXER_TOPIC_PREFIX", default_value = PodOptions::TOPIC_PREFIX, requires = "listen_events")]
    topic_prefix: String,

    /// Tenant of pods that register themselves.
    #[arg(long, env = "FLASH_INDEXER_POD_TENANT_ID", default_value = ModelKey::DEFAULT_TENANT, requires = "listen_events")]
    pod_tenant_id: String,

    /// Models whose pods may register themselves, separated by commas; * stands for any text [default: all].
    #[arg(
        long,
        env = "FLASH_INDEXER_POD_MODELS",
        value_delimiter = ',',
        value_name = "PATTERN",
        requires = "listen_events"
    )]
    pod_models: Vec<String>,

    /// Ranks of pods that may register themselves; with 0, only POST /register registers them.
    #[arg(long, env = "FLASH_INDEXER_PODS_MAX", default_value_t = PodOptions::PODS_MAX, requires = "listen_events")]
    pods_max: usize,

    /// Models that pods may add by registering themselves; models of other registrations do not count [default: half of
    /// all models, 512].
    #[arg(long, env = "FLASH_INDEXER_POD_MODELS_MAX", value_name = "MODELS", requires = "listen_events")]
    pod_models_max: Option<usize>,

    /// Seconds after the loss of its connection until a pod that registered itself is unregistered; 0 for never.
    #[arg(long, env = "FLASH_INDEXER_POD_TIMEOUT_S", default_value_t = PodOptions::TIMEOUT.as_secs(), value_name = "SECONDS", requires = "listen_events")]
    pod_timeout_s: u64,
}

impl InboundArguments {
    /// Whether engines can connect to the service.
    pub(crate) fn is_enabled(&self) -> bool {
        !self.listen_events.is_empty()
    }

    /// Options of the listening sockets, if `--listen-events` is given.
    pub(crate) fn options(&self) -> Option<PodOptions> {
        self.is_enabled().then(|| PodOptions {
            endpoints: self.listen_events.clone(),
            topic_prefix: self.topic_prefix.clone(),
            tenant_id: self.pod_tenant_id.clone(),
            models: self.pod_models.clone(),
            pods_max: self.pods_max,
            models_max: self.pod_models_max,
            timeout: super::seconds_unless_zero(self.pod_timeout_s),
        })
    }
}
