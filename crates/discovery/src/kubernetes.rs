//! Discovery source: ready pods of a label selector in a Kubernetes cluster.

mod api;
mod pod_list;

use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};

use self::api::{Access, Api, ApiError, WatchEvent};
use self::pod_list::PodSet;
use super::report::Reporter;
use super::template::EngineTemplate;

/// Directory of a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Pauses after failures: the first, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Options of a Kubernetes source.
#[derive(Debug, Clone)]
pub struct KubernetesOptions {
    /// Label selector, such as `app=vllm,tier!=test`.
    pub selector: String,
    /// Namespaces of the pods.
    pub namespace: KubernetesNamespace,
    /// URL of an API server or proxy that requires no token; none for the API of the cluster that this runs in.
    pub api: Option<String>,
}

/// Namespaces of the pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KubernetesNamespace {
    /// The namespace of this pod.
    Own,
    /// One namespace.
    Named(String),
    /// All namespaces. Instances are then named `namespace/pod`.
    All,
}

/// A text that is not the name of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid namespace {0:?}: give one of lower-case letters, digits and -, or * for all")]
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
    /// Name of the source, without its kind.
    pub(super) fn name(&self) -> String {
        match &self.namespace {
            KubernetesNamespace::Own => self.selector.to_string(),
            KubernetesNamespace::Named(namespace) => format!("{namespace}:{}", self.selector),
            KubernetesNamespace::All => format!("*:{}", self.selector),
        }
    }

    /// Access to the API.
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

/// Watches the pods until `stopped`.
pub(super) fn watch(
    options: &KubernetesOptions,
    template: EngineTemplate,
    reporter: &Reporter,
    stopped: &Receiver<()>,
) {
    let mut pods = PodSet::new(template, options.namespace.clone());
    let mut wait = BACKOFF.0;
    loop {
        let started = Instant::now();
        let api = options.access().map(|access| Api::new(access, &options.selector));
        match api.and_then(|api| list_and_watch(&api, &mut pods, reporter, stopped)) {
            // The watched version has expired: the pods are listed again.
            Ok(()) | Err(ApiError::Expired) => wait = BACKOFF.0,
            Err(error) => {
                reporter.failed(format!("{error}; its engines stay registered"));
                wait = if started.elapsed() > wait { BACKOFF.0 } else { (wait * 2).min(BACKOFF.1) };
            }
        }
        if stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// Lists the pods, then watches them until an error.
fn list_and_watch(
    api: &Api<'_>,
    pods: &mut PodSet,
    reporter: &Reporter,
    stopped: &Receiver<()>,
) -> Result<(), ApiError> {
    let (listed, mut version) = api.list()?;
    pods.replace(&listed);
    reporter.found(pods.found());
    loop {
        let started = Instant::now();
        for event in api.watch(&version)? {
            if stopped.try_recv() != Err(TryRecvError::Empty) {
                return Ok(());
            }
            match event? {
                WatchEvent::Set(pod) => {
                    version = pod.version().to_owned();
                    pods.set(&pod);
                }
                WatchEvent::Deleted(pod) => {
                    version = pod.version().to_owned();
                    pods.remove(&pod);
                }
                WatchEvent::Bookmark(at) => version = at,
            }
            reporter.found(pods.found());
        }
        // The server ends each watch after a while. The next one continues from the last version.
        reporter.found(pods.found());
        let pause = BACKOFF.0.saturating_sub(started.elapsed());
        if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return Ok(());
        }
    }
}
