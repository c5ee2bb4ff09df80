//! Files that are read again while the service runs.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flash_indexer_access::{ConfigFile, FileContent};
use flash_indexer_credentials::ServerTls;
use flash_indexer_registry::Indexer;
use flash_indexer_telemetry::metrics::ReloadedFile;
use flash_indexer_types::logs::Repeats;
use tokio::task::JoinSet;
use tracing::{error, info};

/// Interval at which the files are read again.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// Content of one file or of several, replaced entirely when it changes.
pub(crate) struct Reload {
    file: ReloadedFile,
    refresh: Box<Refresh>,
}

/// Reads the file again. Returns whether the content has changed. After an error, the previous content stays in force.
type Refresh = dyn Fn() -> Result<bool, Box<dyn Error + Send + Sync>> + Send + Sync;

impl Reload {
    pub(crate) fn config<T: FileContent + Send + Sync + 'static>(
        file: ReloadedFile,
        content: &Arc<ConfigFile<T>>,
    ) -> Self {
        let content = Arc::clone(content);
        Self { file, refresh: Box::new(move || Ok(content.refresh()?)) }
    }

    pub(crate) fn certificates(tls: &Arc<ServerTls>) -> Self {
        let tls = Arc::clone(tls);
        Self { file: ReloadedFile::Certificates, refresh: Box::new(move || Ok(tls.refresh()?)) }
    }
}

/// Reads files again about every second, each independently, and compares tenants with their limits, until the value is dropped.
#[derive(Debug)]
pub(crate) struct PeriodicTasks(#[expect(dead_code, reason = "it is dropped to end the tasks")] JoinSet<()>);

impl PeriodicTasks {
    pub(crate) fn start(files: Vec<Reload>, indexer: &Arc<Indexer>) -> Self {
        let limits_tenants = files.iter().any(|reload| reload.file == ReloadedFile::Limits);
        let mut tasks: JoinSet<_> = files.into_iter().map(|file| watch(file, Arc::clone(indexer))).collect();
        if limits_tenants {
            tasks.spawn(check_tenants(Arc::clone(indexer)));
        }
        Self(tasks)
    }
}

async fn check_tenants(indexer: Arc<Indexer>) {
    loop {
        let checked = Arc::clone(&indexer);
        let ended = tokio::task::spawn_blocking(move || checked.check_tenants()).await;
        // After a panic, the next check may succeed.
        if ended.is_err_and(|error| error.is_cancelled()) {
            break;
        }
        tokio::time::sleep(REFRESH_INTERVAL).await;
    }
}

async fn watch(Reload { file, refresh }: Reload, indexer: Arc<Indexer>) {
    let refresh: Arc<Refresh> = refresh.into();
    let mut failures = Repeats::default();
    loop {
        tokio::time::sleep(REFRESH_INTERVAL).await;
        let read = Arc::clone(&refresh);
        // An error means that the runtime is shutting down.
        let Ok(result) = tokio::task::spawn_blocking(move || read()).await else { break };
        match result {
            Ok(true) => info!(file = file.as_str(), "file reloaded"),
            Ok(false) => {}
            Err(error) => {
                indexer.metrics().reload_failed(file);
                if let Some(times) = failures.count(Instant::now()) {
                    error!(file = file.as_str(), %error, times, "failed to reload the file; the previous content stays in force; correct it");
                }
            }
        }
    }
}
