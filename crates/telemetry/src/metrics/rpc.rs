//! Counters and latencies of gRPC calls.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Unit;

use super::declarations::{Declarations, is_declared};
use super::histogram::Histogram;
use super::requests::DURATIONS;
use super::{LabelValue, Metrics};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Method {
    method: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodAndCode {
    method: &'static str,
    code: &'static str,
}

const CODES: [LabelValue; 13] = [
    ("ok", "The request was answered."),
    ("cancelled", "The client ended the call."),
    ("deadline_exceeded", "The client's deadline ended the call, or a message did not arrive within 30 s."),
    ("invalid_argument", "A field of the request is missing or wrong."),
    ("not_found", "The model or the instance is not registered."),
    ("resource_exhausted", "A limit was reached."),
    ("unimplemented", "The service does not have the method, or cannot make the prompt."),
    ("failed_precondition", "The cursor is unknown: the client must send the whole prompt."),
    ("internal", "A bug in Flash Indexer."),
    ("unavailable", "A part of the service cannot answer now."),
    ("unauthenticated", "The call has no known bearer token."),
    ("permission_denied", "The token does not permit the call."),
    ("other", "Any other code."),
];

#[derive(Debug)]
pub(super) struct RpcMetrics {
    calls: Family<MethodAndCode, Counter>,
    durations: Family<Method, Histogram, fn() -> Histogram>,
}

impl RpcMetrics {
    pub(super) fn declare(declarations: &mut Declarations) -> Self {
        let help = "gRPC responses by method and status code; each request of a stream counts";
        let calls = declarations.add("grpc_requests", help, Family::default());
        declarations.describe("grpc_requests_total", "code", &CODES);
        let durations: Family<Method, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(&DURATIONS));
        let help = "Time from a gRPC request to its response";
        let durations = declarations.add_with_unit("grpc_request_duration", help, Unit::Seconds, durations);
        Self { calls, durations }
    }
}

impl RpcMetrics {
    /// Adds the latencies of these methods to the count of each bucket.
    pub(super) fn add_counts(&self, methods: &[&'static str], counts: &mut [u64]) {
        for &method in methods {
            if let Some(durations) = self.durations.get(&Method { method }) {
                durations.add_counts(counts);
            }
        }
    }
}

impl Metrics {
    /// Counts a gRPC response and records its latency.
    pub fn rpc_answered(&self, method: &'static str, code: &'static str, took: Duration) {
        debug_assert!(is_declared(&CODES, code));
        self.rpc.calls.get_or_create(&MethodAndCode { method, code }).inc();
        self.rpc.durations.get_or_create(&Method { method }).observe(took.as_secs_f64());
    }
}
