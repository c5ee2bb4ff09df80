//! Engines that come and go by themselves: sources name them, and what is registered follows.
//!
//! ```text
//!  file ─┐
//!  DNS  ─┼─▶ Reporter ──▶ Reconciler ──▶ Registrar::register, Registrar::unregister
//!  pods ─┘   (latest)     (no I/O)
//! ```
//!
//! Each source looks for itself and reports everything that it names. One thread takes the latest reports, asks the
//! reconciler what must change, and changes it.

mod dns;
mod file;
mod kubernetes;
mod reconcile;
mod registrar;
mod report;
mod runner;
mod status;
mod template;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use tokio::task::JoinSet;

pub use self::dns::{DnsName, DnsNameError, DnsOptions};
pub use self::kubernetes::{KubernetesNamespace, KubernetesOptions, NamespaceError};
pub use self::registrar::Registrar;
use self::report::{Reporter, bell};
use self::runner::{Runner, TrackedSource};
pub use self::status::{DiscoveryStatus, SourceState, SourceStatus, TargetStatus};
pub use self::template::EngineTemplate;
use flash_indexer_telemetry::metrics::Metrics;
use flash_indexer_telemetry::supervision::{Supervisor, ThreadKind, Watch, note_panic};

/// How engines are discovered.
#[derive(Debug, Clone)]
pub struct DiscoveryOptions {
    /// Where; the first that names a rank goes before the others.
    pub sources: Vec<DiscoverySource>,
    /// How long an engine that its source no longer names stays registered.
    pub grace: Duration,
    /// What engines are, as far as sources do not say.
    pub template: EngineTemplate,
}

impl Default for DiscoveryOptions {
    fn default() -> Self {
        Self { sources: Vec::new(), grace: Duration::from_secs(30), template: EngineTemplate::default() }
    }
}

/// Something that names engines.
#[derive(Debug, Clone)]
pub enum DiscoverySource {
    /// A file with a JSON list of what `POST /register` takes.
    File(PathBuf),
    /// A name in DNS.
    Dns(DnsOptions),
    /// Pods of a cluster.
    Kubernetes(KubernetesOptions),
}

impl DiscoverySource {
    /// Its name in answers, logs and metrics.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::File(path) => format!("file:{}", path.display()),
            Self::Dns(options) => format!("dns:{}", options.name),
            Self::Kubernetes(options) => options.name(),
        }
    }

    /// Begins to look, until `stopped` is disconnected and `tasks` are dropped.
    fn start(
        self,
        template: EngineTemplate,
        reporter: Reporter,
        stopped: Receiver<()>,
        tasks: &mut JoinSet<()>,
        supervisor: &Supervisor,
    ) -> io::Result<()> {
        match self {
            Self::File(path) => spawn(supervisor, stopped, reporter.clone(), move |stopped| {
                file::watch(path.clone(), template.clone(), &reporter, stopped);
            }),
            Self::Dns(options) => {
                let metrics = Arc::clone(supervisor.metrics());
                tasks.spawn(watch_dns(options, template, reporter, metrics));
                Ok(())
            }
            Self::Kubernetes(options) => spawn(supervisor, stopped, reporter.clone(), move |stopped| {
                kubernetes::watch(&options, template.clone(), &reporter, stopped);
            }),
        }
    }
}

/// A source that panics is looked at again from the start after so long.
const PANIC_PAUSE: Duration = Duration::from_secs(1);
/// What its status says meanwhile.
const PANICKED: &str =
    "looking at it panicked, a fault of this program; what it named before stays, and it is looked at again";

/// Follows a source in a thread, from the start again if that panics.
fn spawn(
    supervisor: &Supervisor,
    stopped: Receiver<()>,
    reporter: Reporter,
    watch_source: impl Fn(&Receiver<()>) + Send + 'static,
) -> io::Result<()> {
    let work = move |watch: &Arc<Watch>| {
        while watch.guarded(|| watch_source(&stopped)).is_none() {
            reporter.failed(PANICKED.to_owned());
            if stopped.recv_timeout(PANIC_PAUSE) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    };
    supervisor.spawn(ThreadKind::Discovery, None, work).map(drop)
}

/// The same for a name in DNS, which is a task.
async fn watch_dns(options: DnsOptions, template: EngineTemplate, reporter: Reporter, metrics: Arc<Metrics>) {
    loop {
        // Aborted with this task.
        let mut looking = JoinSet::new();
        looking.spawn(dns::watch(options.clone(), template.clone(), reporter.clone()));
        match looking.join_next().await {
            Some(Err(error)) if error.is_panic() => {
                note_panic(&metrics, ThreadKind::Discovery, "discovery", &*error.into_panic());
                reporter.failed(PANICKED.to_owned());
            }
            _ => return,
        }
        tokio::time::sleep(PANIC_PAUSE).await;
    }
}

/// Engines are discovered until this is dropped.
#[derive(Debug)]
pub struct Discovery {
    status: Arc<DiscoveryStatus>,
    /// Nothing is sent: everybody notices when it goes.
    _stop: Sender<()>,
    /// They end when this goes.
    _tasks: JoinSet<()>,
}

impl Discovery {
    /// Starts the sources and the thread that follows them. Nothing is registered while the registrar recovers. Must be
    /// called in a Tokio runtime.
    ///
    /// # Errors
    ///
    /// When there are no threads.
    pub fn start(options: DiscoveryOptions, registrar: Arc<dyn Registrar>) -> io::Result<Self> {
        let (stop, stopped) = bounded(0);
        let (rung, heard) = bell();
        let status = Arc::new(DiscoveryStatus::default());
        let (mut followed, mut tasks) = (Vec::new(), JoinSet::new());
        for source in options.sources {
            let (reporter, inbox) = Reporter::new(&rung);
            followed.push(TrackedSource::new(source.name().into(), inbox));
            source.start(options.template.clone(), reporter, stopped.clone(), &mut tasks, registrar.supervisor())?;
        }
        let runner = Runner::new(followed, options.grace, Arc::clone(&registrar), &status);
        let run = move |watch: &Arc<Watch>| runner.run(watch, &heard, &stopped);
        registrar.supervisor().spawn(ThreadKind::Discovery, None, run)?;
        Ok(Self { status, _stop: stop, _tasks: tasks })
    }

    /// State of the sources and their targets.
    pub fn status(&self) -> &Arc<DiscoveryStatus> {
        &self.status
    }
}
