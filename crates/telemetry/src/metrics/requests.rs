//! Counters and latencies of HTTP requests.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};

use super::declarations::{Declarations, NamedCounters};
use super::histogram::Histogram;
use super::{LabelValue, Metrics};

/// Buckets of request latency, in seconds: from a query of a small index to the first byte of a dump.
pub(super) const DURATIONS: [f64; 17] = [
    50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1.0, 2.5, 5.0, 10.0,
];

/// Endpoint of a request, with labels of low cardinality.
#[derive(Debug, Clone, Copy)]
pub struct Endpoint {
    /// The path of a route.
    pub path: &'static str,
    /// The HTTP method, or `other`.
    pub method: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Path {
    endpoint: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PathAndMethod {
    endpoint: &'static str,
    method: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResponseLabels {
    endpoint: &'static str,
    method: &'static str,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailedLabels {
    endpoint: &'static str,
    status_class: &'static str,
}

flash_indexer_types::named_enum! {
    /// File that is read again while the service runs.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ReloadedFile {
        /// Bearer tokens.
        Tokens = "tokens",
        /// Certificates of the listeners.
        Certificates = "certificates",
        /// Token and certificates for requests to peers.
        PeerCredentials = "peer_credentials",
        /// Limits of tenants.
        Limits = "limits",
        /// Keys of the issuer of JWTs.
        JwtKeys = "jwt_keys",
    }
}

const STATUS_CLASSES: [LabelValue; 2] = [
    ("4xx", "The request was wrong; the answer says how to correct it."),
    ("5xx", "A limit was reached, or the service failed."),
];
const DENIALS: [LabelValue; 9] = [
    ("no_token", "The request has no bearer token."),
    ("unknown_token", "The token is not in the token file."),
    ("scope", "The token lacks the scope that the request needs."),
    ("tenant", "The token is not for the tenant of the request, or not for all tenants."),
    ("jwt_expired", "The JWT has expired."),
    ("jwt_unknown_key", "The key of the JWT is not in the key set."),
    ("jwt_signature", "The signature of the JWT is not one of its key."),
    ("jwt_claims", "The JWT is for another issuer, audience or time, or lacks a claim."),
    ("jwt_form", "The token is not a JWT, or its header is not accepted."),
];
const HANDSHAKE_FAILURES: [LabelValue; 9] = [
    ("not_tls", "The client speaks plain HTTP or gRPC."),
    ("refused_by_client", "The client does not trust the certificate."),
    ("no_client_certificate", "The client shows no certificate."),
    ("client_certificate", "The client's certificate has expired, or is of another authority."),
    ("incompatible", "No TLS version, cipher or protocol in common; gRPC needs HTTP/2."),
    ("timeout", "Not finished within 10 s."),
    ("evicted", "Closed for a new connection, because `--connections-max` was reached."),
    ("closed", "Closed by the client."),
    ("protocol", "Any other violation of TLS."),
];

/// Latencies of requests since the start.
#[derive(Debug, Clone)]
pub struct Latencies {
    /// Upper bound of each bucket, in seconds.
    pub bounds_s: &'static [f64],
    /// Requests in each bucket, and in one more without an upper bound.
    pub counts: Vec<u64>,
}

#[derive(Debug)]
pub(super) struct RequestMetrics {
    durations: Family<Path, Histogram, fn() -> Histogram>,
    requests: Family<ResponseLabels, Counter>,
    errors: Family<FailedLabels, Counter>,
    denied: NamedCounters,
    handshake_failures: NamedCounters,
    reload_failures: [Counter; ReloadedFile::ALL.len()],
    /// `requests` with the labels of the compatible indexer.
    requests_by_method: Option<Family<PathAndMethod, Counter>>,
}

impl RequestMetrics {
    pub(super) fn declare(declarations: &mut Declarations, compat: Option<&mut Registry>) -> Self {
        let durations: Family<Path, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(&DURATIONS));
        let errors = Family::<FailedLabels, Counter>::default();
        let register_both = |registry: &mut Registry| {
            let help = "Time from an HTTP request's head to the head of its response, without the body of a dump";
            registry.register_with_unit("request_duration", help, Unit::Seconds, durations.clone());
            registry.register("errors", "HTTP responses with a 4xx or 5xx status", errors.clone());
        };
        register_both(&mut declarations.registry);
        declarations.describe("errors_total", "status_class", &STATUS_CLASSES);
        let requests = declarations.add("requests", "HTTP responses", Family::default());
        let requests_by_method = compat.map(|compat| {
            register_both(compat);
            let requests = Family::default();
            compat.register("requests", "HTTP responses", Family::clone(&requests));
            requests
        });
        let help = "HTTP and gRPC requests without a known bearer token, or without the permission that they need";
        let denied = declarations.counters_on_demand("access_denied", help, "reason", &DENIALS);
        let help = "TLS handshakes that failed, of HTTP and gRPC";
        let handshake_failures =
            declarations.counters_on_demand("tls_handshake_failures", help, "reason", &HANDSHAKE_FAILURES);
        let help = "Failed reloads of a file; the previous content stays in force";
        let reload_failures = declarations.counters("reload_failures", help, "file", &ReloadedFile::DESCRIPTIONS);
        let help = "Alias of reload_failures of the token file until 1.0";
        declarations.add("token_file_failures", help, reload_failures[ReloadedFile::Tokens as usize].clone());
        Self { durations, requests, errors, denied, handshake_failures, reload_failures, requests_by_method }
    }
}

impl Metrics {
    /// Counts a request that was denied.
    pub fn access_denied(&self, reason: &'static str) {
        self.requests.denied.inc(reason);
    }

    /// Counts a TLS handshake that failed.
    pub fn tls_handshake_failed(&self, reason: &'static str) {
        self.requests.handshake_failures.inc(reason);
    }

    /// Counts a failed read of a file whose previous content stays in force.
    pub fn reload_failed(&self, file: ReloadedFile) {
        self.requests.reload_failures[file as usize].inc();
    }

    /// Latencies of the HTTP requests to these paths and of the gRPC requests of these methods.
    pub fn latencies(&self, paths: &[&'static str], methods: &[&'static str]) -> Latencies {
        let mut counts = [0; DURATIONS.len() + 1];
        for &endpoint in paths {
            if let Some(durations) = self.requests.durations.get(&Path { endpoint }) {
                durations.add_counts(&mut counts);
            }
        }
        self.rpc.add_counts(methods, &mut counts);
        Latencies { bounds_s: &DURATIONS, counts: counts.to_vec() }
    }

    /// Counts a response and records its latency.
    pub fn request_answered(&self, endpoint: Endpoint, status: u16, took: Duration) {
        let Endpoint { path, method } = endpoint;
        self.requests.durations.get_or_create(&Path { endpoint: path }).observe(took.as_secs_f64());
        self.requests.requests.get_or_create(&ResponseLabels { endpoint: path, method, status }).inc();
        if let Some(requests) = &self.requests.requests_by_method {
            requests.get_or_create(&PathAndMethod { endpoint: path, method }).inc();
        }
        let status_class = match status {
            400..500 => "4xx",
            500..600 => "5xx",
            _ => return,
        };
        self.requests.errors.get_or_create(&FailedLabels { endpoint: path, status_class }).inc();
    }
}
