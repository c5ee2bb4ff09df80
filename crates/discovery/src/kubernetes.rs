//! Pods of a cluster that a label selector picks: those that are ready are engines.

mod api;
mod pod_list;

use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use self::api::{Access, Api, ApiError, WatchEvent};
use self::pod_list::PodSet;
use super::report::Reporter;
use super::template::EngineTemplate;

/// Where a pod finds who it is.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Waits after failures: the first, and the longest.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Pods that are engines.
#[derive(Debug, Clone)]
pub struct KubernetesOptions {
    /// Which pods, such as `app=vllm,tier!=test`.
    pub selector: String,
    /// Where they are.
    pub namespace: KubernetesNamespace,
    /// URL of an API server, or of a proxy before it, that asks for no token; none for the one of the cluster that this
    /// runs in.
    pub api: Option<String>,
}

/// Namespaces that pods are looked for in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KubernetesNamespace {
    /// That of this pod.
    Own,
    /// One.
    Named(String),
    /// All; instances are then called `namespace/pod`.
    All,
}

/// A text is not the name of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("bad namespace {0:?}: give one of lower-case letters, digits and -, or * for all")]
pub struct NamespaceError(String);

impl FromStr for KubernetesNamespace {
    type Err = NamespaceError;

    fn from_str(text: &str) -> Result<Self, NamespaceError> {
        let is_name = |text: &str| text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
        match text {
            "*" => Ok(Self::All),
            name if (1..=63).contains(&name.len()) && is_name(name) => Ok(Self::Named(name.to_owned())),
            other => Err(NamespaceError(other.chars().take(128).collect())),
        }
    }
}

impl KubernetesOptions {
    /// Its name in answers, logs and metrics.
    pub(super) fn name(&self) -> String {
        match &self.namespace {
            KubernetesNamespace::Own => format!("kubernetes:{}", self.selector),
            KubernetesNamespace::Named(namespace) => format!("kubernetes:{namespace}:{}", self.selector),
            KubernetesNamespace::All => format!("kubernetes:*:{}", self.selector),
        }
    }

    /// How its pods are asked for.
    fn access(&self) -> Result<Access, ApiError> {
        let account = Path::new(SERVICE_ACCOUNT);
        let own_namespace = || std::fs::read_to_string(account.join("namespace"));
        let namespace = match &self.namespace {
            KubernetesNamespace::Own => Some(own_namespace().map_err(ApiError::NoNamespace)?.trim().to_owned()),
            KubernetesNamespace::Named(namespace) => Some(namespace.clone()),
            KubernetesNamespace::All => None,
        };
        match &self.api {
            Some(url) => Ok(Access::proxy(url, namespace)),
            None => Access::in_cluster(account, namespace).map_err(ApiError::NotInCluster),
        }
    }
}

/// Follows the pods until `stopped`.
pub(super) fn watch(
    options: &KubernetesOptions,
    template: EngineTemplate,
    reporter: &Reporter,
    stopped: &Receiver<()>,
) {
    let mut follower = PodWatcher { pods: PodSet::new(template, options.namespace.clone()), reporter, stopped };
    let mut wait = BACK_OFF.0;
    loop {
        let started = Instant::now();
        let followed = options.access().and_then(|access| follower.follow(&Api::new(access, &options.selector)));
        match followed {
            // The version that was watched from is too old: everything is listed anew.
            Ok(()) | Err(ApiError::Gone) => wait = BACK_OFF.0,
            Err(error) => {
                reporter.failed(format!("{error}; pods that it named before stay"));
                wait = if started.elapsed() > wait { BACK_OFF.0 } else { (wait * 2).min(BACK_OFF.1) };
            }
        }
        if stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

struct PodWatcher<'f> {
    pods: PodSet,
    reporter: &'f Reporter,
    stopped: &'f Receiver<()>,
}

impl PodWatcher<'_> {
    /// Lists the pods and watches them for as long as that goes well.
    fn follow(&mut self, api: &Api) -> Result<(), ApiError> {
        let mut version = self.list(api)?;
        loop {
            let started = Instant::now();
            for event in api.watch(&version)? {
                if self.is_stopped() {
                    return Ok(());
                }
                match event? {
                    WatchEvent::Is(pod) => {
                        version = pod.version().to_owned();
                        self.pods.set(&pod);
                    }
                    WatchEvent::IsGone(pod) => {
                        version = pod.version().to_owned();
                        self.pods.remove(&pod);
                    }
                    WatchEvent::Bookmark(at) => version = at,
                }
                self.reporter.found(self.pods.found());
            }
            // It ends now and then, and goes on from there.
            self.reporter.found(self.pods.found());
            let pause = BACK_OFF.0.saturating_sub(started.elapsed());
            if self.stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                return Ok(());
            }
        }
    }

    /// Replaces everything that is known, and returns the version of it.
    fn list(&mut self, api: &Api) -> Result<String, ApiError> {
        let (pods, version) = api.list()?;
        self.pods.replace(&pods);
        self.reporter.found(self.pods.found());
        Ok(version)
    }

    fn is_stopped(&self) -> bool {
        self.stopped.try_recv() != Err(crossbeam_channel::TryRecvError::Empty)
    }
}
