//! Options of `serve` for discovery sources.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_server::{
    DiscoveryOptions, DiscoverySource, DnsName, DnsOptions, EngineTemplate, KubernetesNamespace, KubernetesOptions,
    VllmAddress, VllmOptions,
};

/// Longest time between two lookups of a name. A shorter time to live of its records takes precedence.
const DNS_INTERVAL_MAX: Duration = Duration::from_secs(10);

/// Discovery sources, and defaults for the engines that they list.
#[derive(Args)]
#[command(next_help_heading = "Discovery: engines registered from a source")]
pub(crate) struct DiscoveryArguments {
    /// File that lists engines, read every second: a JSON list of objects with the fields of POST /register, such
    /// as [{"instance_id": 1, "endpoint": "tcp://gpu-1:5557"}]. `data_parallel_size` registers that number of ranks, at
    /// this port and the following ones. --model-name, --tenant-id and --block-size are the defaults of entries.
    /// Several files are separated by commas.
    #[arg(long, env = "FLASH_INDEXER_DISCOVERY_FILE", value_delimiter = ',', value_name = "FILE")]
    discovery_file: Vec<PathBuf>,

    /// DNS name of engines, such as the name of a headless service: each of its addresses is an engine, and its
    /// instance id. Engines publish at the given port, or else at --discovery-port. A name that begins with _, such as
    /// _kv-events._tcp.vllm.default.svc, is looked up as SRV records: each target is an engine at its port. Several
    /// names are separated by commas.
    #[arg(
        long,
        env = "FLASH_INDEXER_DISCOVERY_DNS",
        value_delimiter = ',',
        value_name = "NAME[:PORT]",
        requires = "block_size"
    )]
    discovery_dns: Vec<DnsName>,

    /// Name server of --discovery-dns, such as Consul's; the system's by default.
    #[arg(long, env = "FLASH_INDEXER_DISCOVERY_DNS_SERVER", value_name = "ADDRESS:PORT")]
    discovery_dns_server: Option<SocketAddr>,

    /// Address of the gRPC server of an engine of vLLM, asked every 5 seconds where the engine's ranks publish their events, for
    /// its block size and for its model: an engine whose ports are chosen at its start needs no other option. The address is the
    /// instance id. --model-name takes precedence over the engine's model. Several addresses are separated by commas.
    #[arg(long, env = "FLASH_INDEXER_DISCOVERY_VLLM", value_delimiter = ',', value_name = "HOST:PORT")]
    discovery_vllm: Vec<VllmAddress>,

    /// Label selector of the pods that are engines, such as app=vllm. A ready pod is registered; its name is the
    /// instance id. Annotations or labels override the defaults: flash-indexer/port, replay-port, data-parallel-size,
    /// block-size, model-name, tenant-id, lora-name, engine, removal, extra-keys. Needs get, list and watch for pods.
    #[arg(long, env = "FLASH_INDEXER_DISCOVERY_KUBERNETES", value_name = "SELECTOR")]
    discovery_kubernetes: Option<String>,

    /// Namespace of these pods; this pod's namespace by default, * for all.
    #[arg(
        long,
        env = "FLASH_INDEXER_DISCOVERY_KUBERNETES_NAMESPACE",
        value_name = "NAMESPACE",
        requires = "discovery_kubernetes"
    )]
    discovery_kubernetes_namespace: Option<KubernetesNamespace>,

    /// API server that needs no token, such as http://127.0.0.1:8001 of `kubectl proxy`; by default the API server of
    /// the cluster that the service runs in.
    #[arg(
        long,
        env = "FLASH_INDEXER_DISCOVERY_KUBERNETES_API",
        value_name = "URL",
        requires = "discovery_kubernetes",
        hide_env_values = true
    )]
    discovery_kubernetes_api: Option<String>,

    /// Port where rank 0 of an engine found by DNS or in Kubernetes publishes; each further rank uses the next port.
    #[arg(long, env = "FLASH_INDEXER_DISCOVERY_PORT", default_value_t = 5557, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    discovery_port: u16,

    /// Replay port of rank 0 of such an engine, if it has one; each further rank uses the next port.
    #[arg(long, env = "FLASH_INDEXER_DISCOVERY_REPLAY_PORT", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    discovery_replay_port: Option<u16>,

    /// Data-parallel ranks of such an engine.
    #[arg(long, env = "FLASH_INDEXER_DISCOVERY_DATA_PARALLEL_SIZE", default_value = "1", value_name = "RANKS")]
    discovery_data_parallel_size: NonZeroU16,

    /// Seconds between the moment when a source no longer lists an engine and its unregistration. A failing source
    /// never unregisters engines.
    #[arg(long, env = "FLASH_INDEXER_DISCOVERY_GRACE_S", default_value_t = 30, value_name = "SECONDS")]
    discovery_grace_s: u64,
}

impl DiscoveryArguments {
    /// Discovery options of the server, with defaults of `serve` for discovered engines.
    pub(crate) fn options(
        &self,
        model_name: Option<String>,
        tenant_id: String,
        block_size: Option<BlockSize>,
    ) -> DiscoveryOptions {
        DiscoveryOptions {
            sources: self.sources(),
            grace: Duration::from_secs(self.discovery_grace_s),
            template: EngineTemplate {
                model_name,
                tenant_id,
                block_size,
                port: self.discovery_port,
                replay_port: self.discovery_replay_port,
                data_parallel_size: self.discovery_data_parallel_size,
            },
        }
    }

    /// Sources by precedence: files, then Kubernetes, then engines of vLLM, then DNS.
    fn sources(&self) -> Vec<DiscoverySource> {
        let files = self.discovery_file.iter().cloned().map(DiscoverySource::File);
        let names = self.discovery_dns.iter().map(|name| {
            let server = self.discovery_dns_server;
            DiscoverySource::Dns(DnsOptions { name: name.clone(), interval: DNS_INTERVAL_MAX, server })
        });
        let pods = self.discovery_kubernetes.iter().map(|selector| {
            DiscoverySource::Kubernetes(KubernetesOptions {
                selector: selector.clone(),
                namespace: self.discovery_kubernetes_namespace.clone().unwrap_or(KubernetesNamespace::Own),
                api: self.discovery_kubernetes_api.clone(),
            })
        });
        let engines =
            self.discovery_vllm.iter().cloned().map(|address| DiscoverySource::Vllm(VllmOptions::new(address)));
        files.chain(pods).chain(engines).chain(names).collect()
    }
}
