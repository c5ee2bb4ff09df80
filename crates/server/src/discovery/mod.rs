//! Engines that come and go by themselves: sources name them, and what is registered follows.
//!
//! ```text
//!  file ─┐
//!  DNS  ─┼─▶ Reporter ──▶ Reconciler ──▶ Indexer::register_for, Indexer::unregister_kept
//!  pods ─┘   (latest)     (no I/O)
//! ```
//!
//! Each source looks for itself and reports everything that it names. One thread takes the latest reports, asks the
//! reconciler what must change, and changes it.

mod dns;
mod file;
mod kubernetes;
mod reconcile;
mod report;
mod runner;
mod status;
mod template;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use tokio::task::JoinSet;

pub use self::dns::{DnsName, DnsNameError, DnsOptions};
pub use self::kubernetes::{KubernetesNamespace, KubernetesOptions, NamespaceError};
use self::report::{Reporter, bell};
use self::runner::{Followed, Runner};
pub(crate) use self::status::{DiscoveryStatus, SourceState, SourceStatus, TargetStatus};
pub use self::template::EngineTemplate;
use crate::indexer::Indexer;
use crate::peers::RecoveryStatus;

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
    ) -> io::Result<()> {
        match self {
            Self::File(path) => spawn("discover-file", move || file::watch(path, template, &reporter, &stopped)),
            Self::Dns(options) => {
                tasks.spawn(dns::watch(options, template, reporter));
                Ok(())
            }
            Self::Kubernetes(options) => {
                spawn("discover-pods", move || kubernetes::watch(&options, template, &reporter, &stopped))
            }
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// Engines are discovered until this is dropped.
#[derive(Debug)]
pub(crate) struct Discovery {
    status: Arc<DiscoveryStatus>,
    /// Nothing is sent: everybody notices when it goes.
    _stop: Sender<()>,
    /// They end when this goes.
    _tasks: JoinSet<()>,
}

impl Discovery {
    /// Begins to look and to follow; nothing is registered before `recovery` has ended, which must not meet streams
    /// that it has not begun itself. Needs a runtime around it.
    ///
    /// # Errors
    ///
    /// When there are no threads.
    pub(crate) fn start(
        options: DiscoveryOptions,
        indexer: &Arc<Indexer>,
        recovery: &Arc<RecoveryStatus>,
    ) -> io::Result<Self> {
        let (stop, stopped) = bounded(0);
        let (rung, heard) = bell();
        let status = Arc::new(DiscoveryStatus::default());
        let (mut followed, mut tasks) = (Vec::new(), JoinSet::new());
        for source in options.sources {
            let (reporter, inbox) = Reporter::new(&rung);
            followed.push(Followed::new(source.name().into(), inbox));
            source.start(options.template.clone(), reporter, stopped.clone(), &mut tasks)?;
        }
        let runner = Runner::new(followed, options.grace, indexer, recovery, &status);
        spawn("discovery", move || runner.run(&heard, &stopped))?;
        Ok(Self { status, _stop: stop, _tasks: tasks })
    }

    pub(crate) fn status(&self) -> &Arc<DiscoveryStatus> {
        &self.status
    }
}
