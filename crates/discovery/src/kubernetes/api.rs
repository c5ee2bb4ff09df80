//! Client of the Kubernetes API: lists and watches pods.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body, http::Response};

use super::pod_list::Pod;
use crate::template::url_host;

/// Pods in one page of a list.
const PAGE_PODS: &str = "500";
/// Limit of the pods of a list.
const PODS_MAX: usize = 1 << 14;
/// Limit of one page of a list.
const PAGE_BYTES_MAX: u64 = 128 << 20;
/// Limit of one event.
const EVENT_BYTES_MAX: u64 = 4 << 20;
/// Limit of an error's body.
const ERROR_BYTES_MAX: u64 = 64 << 10;
/// Seconds after which the server ends a watch. A connection without data for longer is dead.
const WATCH_S: u64 = 60;
const READ_DEADLINE: Duration = Duration::from_secs(WATCH_S + 15);
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// A failed request to the API.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    #[error(
        "failed to read the service account for the Kubernetes API: {0}; run in a pod with a service account, or give \
         --discovery-kubernetes-api, such as the URL of kubectl proxy"
    )]
    NotInCluster(io::Error),
    #[error(
        "failed to read the namespace of this pod: {0}; give --discovery-kubernetes-namespace, * for all namespaces"
    )]
    NoNamespace(io::Error),
    #[error("failed to reach the Kubernetes API: {0}; check its address and the network")]
    Unreachable(#[from] ureq::Error),
    #[error("failed to read from the Kubernetes API: {0}; the service tries again")]
    Broken(#[from] io::Error),
    #[error("the Kubernetes API denied access: {0}; the service account needs get, list and watch for pods")]
    Forbidden(String),
    #[error("the Kubernetes API responded with {status}: {message}; see the log of its server")]
    Refused { status: u16, message: String },
    #[error("failed to parse the response of the Kubernetes API: {0}; check that its address is that of an API server")]
    Malformed(#[from] serde_json::Error),
    #[error("the selector matches more than {PODS_MAX} pods: narrow it")]
    TooMany,
    /// The requested version has expired.
    #[error("the watched version has expired in the Kubernetes API")]
    Expired,
}

/// URL and credentials of the API.
pub(super) struct Access {
    url: String,
    namespace: Option<String>,
    /// Path of the token, which is read for each request because it is renewed.
    token: Option<PathBuf>,
    roots: Option<Vec<Certificate<'static>>>,
}

impl Access {
    /// Access through a proxy that adds credentials.
    pub(super) fn proxy(url: &str, namespace: Option<String>) -> Self {
        Self { url: url.trim_end_matches('/').to_owned(), namespace, token: None, roots: None }
    }

    /// Access as a pod of the cluster.
    pub(super) fn in_cluster(account: &Path, namespace: Option<String>) -> io::Result<Self> {
        let variable = |name: &str| {
            std::env::var(name).map_err(|_| io::Error::other(format!("{name} is not set; every pod has it")))
        };
        let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
        let host = url_host(&host);
        let pem = fs::read(account.join("ca.crt"))?;
        let roots = parse_pem(&pem).filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        });
        let token = account.join("token");
        fs::metadata(&token)?;
        Ok(Self { url: format!("https://{host}:{port}"), namespace, token: Some(token), roots: Some(roots.collect()) })
    }
}

/// An event of a watch.
pub(super) enum WatchEvent {
    Set(Pod),
    Deleted(Pod),
    Bookmark(String),
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodList {
    metadata: ListMetadata,
    items: Vec<Pod>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListMetadata {
    resource_version: String,
    r#continue: String,
}

#[derive(Deserialize)]
struct RawEvent {
    r#type: String,
    object: Box<serde_json::value::RawValue>,
}

/// Status object of a failed request.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
    message: String,
}

/// Blocking client for the pods of one selector.
pub(super) struct Api<'a> {
    agent: Agent,
    access: Access,
    selector: &'a str,
}

impl<'a> Api<'a> {
    pub(super) fn new(access: Access, selector: &'a str) -> Self {
        let roots = access.roots.as_deref().map_or(RootCerts::WebPki, RootCerts::new_with_certs);
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // The API never redirects, and a token must not reach another host.
            .max_redirects(0)
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .timeout_connect(Some(CONNECT_DEADLINE))
            .timeout_recv_response(Some(ANSWER_DEADLINE))
            .timeout_per_read(Some(READ_DEADLINE))
            .build();
        Self { agent: config.into(), access, selector }
    }

    /// Lists all pods. Returns them with the version of the list.
    pub(super) fn list(&self) -> Result<(Vec<Pod>, String), ApiError> {
        let (mut pods, mut next) = (Vec::new(), String::new());
        loop {
            let mut parameters = vec![("limit", PAGE_PODS)];
            if !next.is_empty() {
                parameters.push(("continue", &next));
            }
            let mut page = self.get(&parameters)?;
            let bytes = page.body_mut().with_config().limit(PAGE_BYTES_MAX).read_to_vec()?;
            let PodList { metadata, items } = read(&bytes)?;
            pods.extend(items);
            if pods.len() > PODS_MAX {
                return Err(ApiError::TooMany);
            }
            if metadata.r#continue.is_empty() {
                return Ok((pods, metadata.resource_version));
            }
            next = metadata.r#continue;
        }
    }

    /// Watches the pods from this version on, until the server ends the watch.
    pub(super) fn watch(
        &self,
        version: &str,
    ) -> Result<impl Iterator<Item = Result<WatchEvent, ApiError>> + use<>, ApiError> {
        let seconds = WATCH_S.to_string();
        let parameters = [
            ("watch", "1"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version),
            ("timeoutSeconds", seconds.as_str()),
        ];
        let response = self.get(&parameters)?;
        let body = response.into_body().into_with_config().limit(u64::MAX).reader();
        let mut lines = BufReader::new(body);
        Ok(std::iter::from_fn(move || next_event(&mut lines).transpose()))
    }

    fn get(&self, parameters: &[(&str, &str)]) -> Result<Response<Body>, ApiError> {
        let path = match &self.access.namespace {
            Some(namespace) => format!("{}/api/v1/namespaces/{namespace}/pods", self.access.url),
            None => format!("{}/api/v1/pods", self.access.url),
        };
        let mut request = self.agent.get(path).query("labelSelector", self.selector);
        for (name, value) in parameters {
            request = request.query(name, value);
        }
        if let Some(path) = &self.access.token {
            let token = fs::read_to_string(path).map_err(ApiError::NotInCluster)?;
            request = request.header("authorization", format!("Bearer {}", token.trim()));
        }
        let mut response = request.header("accept", "application/json").call()?;
        let status = response.status().as_u16();
        if response.status().is_success() {
            return Ok(response);
        }
        let text = response.body_mut().with_config().limit(ERROR_BYTES_MAX).read_to_string().unwrap_or_default();
        let status_object: Status = serde_json::from_str(&text).unwrap_or_default();
        Err(refusal(status, if status_object.message.is_empty() { text } else { status_object.message }))
    }
}

fn refusal(status: u16, message: String) -> ApiError {
    match status {
        410 => ApiError::Expired,
        401 | 403 => ApiError::Forbidden(message),
        status => ApiError::Refused { status, message },
    }
}

fn next_event(lines: &mut impl BufRead) -> Result<Option<WatchEvent>, ApiError> {
    let mut line = Vec::new();
    lines.take(EVENT_BYTES_MAX).read_until(b'\n', &mut line)?;
    match line.last() {
        None => return Ok(None),
        Some(b'\n') => {}
        Some(_) => return Err(io::Error::other("the watch ended within an event, or the event is too long").into()),
    }
    let RawEvent { r#type: kind, object } = read(&line)?;
    Ok(Some(match kind.as_str() {
        "ADDED" | "MODIFIED" => WatchEvent::Set(read(object.get().as_bytes())?),
        "DELETED" => WatchEvent::Deleted(read(object.get().as_bytes())?),
        "BOOKMARK" => WatchEvent::Bookmark(read::<Pod>(object.get().as_bytes())?.version().to_owned()),
        _ => {
            let Status { code, message } = read(object.get().as_bytes())?;
            return Err(refusal(code, message));
        }
    }))
}

fn read<T: DeserializeOwned>(json: &[u8]) -> Result<T, ApiError> {
    Ok(serde_json::from_slice(json)?)
}
