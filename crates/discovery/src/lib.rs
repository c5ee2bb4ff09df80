//! Discovery of engines: sources report the engines that exist, and registrations are reconciled with the reports.
//!
//! ```text
//!  file ─┐
//!  DNS  ─┤
//!  pods ─┼─▶ Reporter ──▶ Reconciler ──▶ Registrar::register, Registrar::unregister
//!  vLLM ─┘   (latest)     (no I/O)
//! ```
//!
//! Each source polls or watches independently, and reports all of its engines at once. One thread receives the latest
//! reports and carries out the reconciler's steps. A failing source never unregisters engines. Manual registrations take
//! precedence over discovery.
//!
//! # Modules
//!
//! | file | role |
//! |---|---|
//! | `registrar.rs` | the registry, as a trait for discovery |
//! | `reconcile.rs` | steps that make registrations follow the reports; no I/O, no clock |
//! | `report.rs` | latest report of a source, on its way to the runner |
//! | `template.rs` | defaults of engines, for fields that a source lacks |
//! | `runner.rs` | the thread that carries out the steps |
//! | `status.rs` | status for `/discovery` and `/ready` |
//! | `file.rs`, `file/` | source: a JSON file, polled |
//! | `dns.rs`, `dns/` | source: a DNS name, polled |
//! | `vllm.rs`, `vllm/` | source: the gRPC server of an engine of vLLM, polled |
//! | `kubernetes.rs`, `kubernetes/` | source: pods of a label selector, watched |

mod dns;
mod file;
mod kubernetes;
mod reconcile;
mod registrar;
mod report;
mod runner;
mod status;
mod template;
mod vllm;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use tokio::task::JoinSet;

pub use self::dns::{DnsName, DnsNameError, DnsOptions};
pub use self::kubernetes::{KubernetesNamespace, KubernetesOptions, NamespaceError};
pub use self::registrar::Registrar;
pub use self::report::ReportedSource;
use self::report::{Reporter, waker};
use self::runner::{Runner, RunnerSignals, TrackedSource};
pub use self::status::{CONNECT_PATIENCE, DiscoveryStatus, SourceStatus, TargetStatus};
pub use self::template::EngineTemplate;
pub use self::vllm::{VllmAddress, VllmAddressError, VllmEngine, VllmError, VllmOptions, VllmRank};
use flash_indexer_telemetry::metrics::Metrics;
use flash_indexer_telemetry::supervision::{Supervisor, ThreadKind, Watch, record_panic};
use flash_indexer_types::SourceKind;

/// Options of discovery.
#[derive(Debug, Clone)]
pub struct DiscoveryOptions {
    /// Sources in order of precedence: the first source that names a rank determines its registration.
    pub sources: Vec<DiscoverySource>,
    /// Time for which an engine stays registered after its source no longer names it.
    pub grace: Duration,
    /// Defaults of engines, for fields that a source lacks.
    pub template: EngineTemplate,
}

impl Default for DiscoveryOptions {
    fn default() -> Self {
        Self { sources: Vec::new(), grace: Duration::from_secs(30), template: EngineTemplate::default() }
    }
}

/// A source of engines.
#[derive(Debug, Clone)]
pub enum DiscoverySource {
    /// A file with a JSON list of bodies of `POST /register`.
    File(PathBuf),
    /// A DNS name.
    Dns(DnsOptions),
    /// Pods of a Kubernetes cluster.
    Kubernetes(KubernetesOptions),
    /// The gRPC server of an engine of vLLM.
    Vllm(VllmOptions),
}

impl DiscoverySource {
    /// Name of the source in JSON, logs and metrics.
    #[must_use]
    pub fn name(&self) -> String {
        let (kind, name) = match self {
            Self::File(path) => (SourceKind::File, path.display().to_string()),
            Self::Dns(options) => (SourceKind::Dns, options.name.to_string()),
            Self::Kubernetes(options) => (SourceKind::Kubernetes, options.name()),
            Self::Vllm(options) => (SourceKind::Vllm, options.address.to_string()),
        };
        format!("{}:{name}", kind.as_str())
    }

    /// Starts to watch the source, until `stopped` is disconnected and `tasks` are dropped.
    fn start(
        self,
        template: EngineTemplate,
        reporter: Reporter,
        stopped: Receiver<()>,
        tasks: &mut JoinSet<()>,
        registrar: &dyn Registrar,
    ) -> io::Result<()> {
        let supervisor = registrar.supervisor();
        let metrics = Arc::clone(supervisor.metrics());
        match self {
            Self::File(path) => spawn(supervisor, stopped, reporter, move |reporter, stopped| {
                file::watch(path.clone(), template.clone(), reporter, stopped);
            }),
            Self::Kubernetes(options) => spawn(supervisor, stopped, reporter, move |reporter, stopped| {
                kubernetes::watch(&options, template.clone(), reporter, stopped);
            }),
            Self::Dns(options) => {
                let poll = move |reporter| dns::watch(options.clone(), template.clone(), reporter);
                tasks.spawn(watch_in_task(poll, reporter, metrics));
                Ok(())
            }
            Self::Vllm(options) => {
                let registrar = (registrar.engine_networks().clone(), Arc::clone(&metrics));
                let poll = move |reporter| vllm::watch(options.clone(), template.clone(), registrar.clone(), reporter);
                tasks.spawn(watch_in_task(poll, reporter, metrics));
                Ok(())
            }
        }
    }
}

/// Pause before a source that panicked is restarted.
const PANIC_PAUSE: Duration = Duration::from_secs(1);
/// Error of the source in the meantime.
const PANICKED: &str = "discovery source panicked, a bug in Flash Indexer; report it with the log; its engines stay registered, and it is restarted";

/// Watches a source in a thread, and restarts it after a panic.
fn spawn(
    supervisor: &Supervisor,
    stopped: Receiver<()>,
    reporter: Reporter,
    watch_source: impl Fn(&Reporter, &Receiver<()>) + Send + 'static,
) -> io::Result<()> {
    let work = move |watch: &Arc<Watch>| {
        while watch.guarded(|| watch_source(&reporter, &stopped)).is_none() {
            reporter.failed(PANICKED.to_owned());
            if stopped.recv_timeout(PANIC_PAUSE) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    };
    supervisor.spawn(ThreadKind::Discovery, None, work).map(drop)
}

/// Polls a source in a task, and restarts it after a panic.
async fn watch_in_task<F: Future<Output = ()> + Send + 'static>(
    poll: impl Fn(Reporter) -> F,
    reporter: Reporter,
    metrics: Arc<Metrics>,
) {
    loop {
        // The inner task is aborted with this one.
        let mut polling = JoinSet::new();
        polling.spawn(poll(reporter.clone()));
        match polling.join_next().await {
            Some(Err(error)) if error.is_panic() => {
                record_panic(&metrics, ThreadKind::Discovery, "discovery", &*error.into_panic());
                reporter.failed(PANICKED.to_owned());
            }
            _ => return,
        }
        tokio::time::sleep(PANIC_PAUSE).await;
    }
}

/// Running discovery. Dropping it stops the sources and the runner.
#[derive(Debug)]
pub struct Discovery {
    status: Arc<DiscoveryStatus>,
    /// Nothing is sent: sources and runner stop once it is dropped.
    _stop: Sender<()>,
    /// Tasks end once it is dropped.
    _tasks: JoinSet<()>,
}

impl Discovery {
    /// Starts the sources and the runner. Nothing is registered while the registrar recovers. Must be called in a Tokio
    /// runtime.
    ///
    /// # Errors
    ///
    /// If the system refuses a thread.
    pub fn start(options: DiscoveryOptions, registrar: Arc<dyn Registrar>) -> io::Result<Self> {
        let (stop, stopped) = bounded(0);
        let (wake, woken) = waker();
        let (mut tracked, mut tasks) = (Vec::new(), JoinSet::new());
        for source in options.sources {
            let (reporter, inbox) = Reporter::new(&wake);
            tracked.push(TrackedSource::new(source.name().into(), inbox));
            source.start(options.template.clone(), reporter, stopped.clone(), &mut tasks, &*registrar)?;
        }
        let status = run(tracked, options.grace, registrar, RunnerSignals { woken, stopped })?;
        Ok(Self { status, _stop: stop, _tasks: tasks })
    }

    /// Starts the runner with one source of this name, which the caller reports for.
    ///
    /// # Errors
    ///
    /// If the system refuses a thread.
    pub fn start_reported(
        name: &str,
        grace: Duration,
        registrar: Arc<dyn Registrar>,
    ) -> io::Result<(Self, ReportedSource)> {
        let (stop, stopped) = bounded(0);
        let (wake, woken) = waker();
        let (reporter, inbox) = Reporter::new(&wake);
        let tracked = vec![TrackedSource::new(name.into(), inbox)];
        let status = run(tracked, grace, registrar, RunnerSignals { woken, stopped })?;
        Ok((Self { status, _stop: stop, _tasks: JoinSet::new() }, ReportedSource(reporter)))
    }

    /// State of the sources and their targets.
    pub fn status(&self) -> &Arc<DiscoveryStatus> {
        &self.status
    }
}

/// Starts the runner of some sources.
fn run(
    sources: Vec<TrackedSource>,
    grace: Duration,
    registrar: Arc<dyn Registrar>,
    signals: RunnerSignals,
) -> io::Result<Arc<DiscoveryStatus>> {
    let status = Arc::new(DiscoveryStatus::default());
    let runner = Runner::new(sources, grace, Arc::clone(&registrar), &status, signals);
    registrar.supervisor().spawn_steps(ThreadKind::Discovery, None, || 0, runner)?;
    Ok(status)
}
