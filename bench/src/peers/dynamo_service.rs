//! Dynamo's standalone indexer as a process of this program.

use anyhow::Result;
use dynamo_kv_router::services::indexer::{IndexerConfig, run_server};
use http::HeaderName;

/// Serves HTTP on `port` until the process is killed, with as many event threads as the machine has cores.
pub(crate) fn serve_dynamo(port: u16) -> Result<()> {
    let config = IndexerConfig {
        block_size: None,
        port,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        workers: None,
        // Used for `workers` only; each registration names its own model.
        model_name: String::new(),
        routing_group: String::new(),
        peers: None,
        access_log: None,
        trace_id_header: HeaderName::from_static("x-request-id"),
        access_log_local_time: false,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run_server(config))
}
