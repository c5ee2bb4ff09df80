//! Requests to the collector, and its answers.

use std::time::Duration;

use flash_indexer_credentials::{ClientCredentials, tls_remedy};
use flash_indexer_types::names::{shorten, shortened};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanData;
use prost::Message;
use ureq::Agent;
use ureq::http::header::RETRY_AFTER;

use crate::endpoint::OtlpEndpoint;

/// Longest time to connect.
const CONNECT_DEADLINE: Duration = Duration::from_secs(3);
/// Longest answer, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// A collector of spans.
#[derive(Debug)]
pub(crate) struct Collector {
    endpoint: OtlpEndpoint,
    agent: Agent,
    /// Longest time for a request.
    send_deadline: Duration,
    resource: ResourceAttributesWithSchema,
}

/// Outcome of a batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The collector accepted it, except for `rejected` of its spans, for this reason.
    Accepted { rejected: u64, cause: String },
    /// The collector rejects it permanently.
    Refused { cause: String },
    /// The collector did not receive it, or requests it again after a pause.
    Failed { cause: String, retry_after: Option<Duration> },
}

impl Collector {
    pub(crate) fn new(
        endpoint: &OtlpEndpoint,
        send_deadline: Duration,
        credentials: &ClientCredentials,
        resource: &Resource,
    ) -> Self {
        let config = credentials
            .apply(Agent::config_builder())
            .http_status_as_error(false)
            // Spans go to the collector that the operator named.
            .max_redirects(0)
            .timeout_connect(Some(CONNECT_DEADLINE))
            .build();
        Self { endpoint: endpoint.clone(), agent: config.into(), send_deadline, resource: resource.into() }
    }

    pub(crate) fn endpoint(&self) -> &OtlpEndpoint {
        &self.endpoint
    }

    /// Encodes a batch as the body of a request.
    pub(crate) fn encode(&self, spans: Vec<SpanData>) -> Vec<u8> {
        let resource_spans = group_spans_by_resource_and_scope(spans, &self.resource);
        ExportTraceServiceRequest { resource_spans }.encode_to_vec()
    }

    /// Sends a body, and waits for the answer, at most for `left`.
    pub(crate) fn send(&self, body: &[u8], left: Option<Duration>) -> Delivery {
        let deadline = left.map_or(self.send_deadline, |left| left.min(self.send_deadline));
        let request = self.agent.post(self.endpoint.as_str()).content_type("application/x-protobuf");
        let mut response = match request.config().timeout_global(Some(deadline)).build().send(body) {
            Ok(response) => response,
            Err(error) => return Delivery::Failed { cause: self.explain(&error), retry_after: None },
        };
        let status = response.status();
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|after| after.to_str().ok()?.parse().ok());
        let retry_after = retry_after.map(Duration::from_secs);
        let answer = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec().unwrap_or_default();
        match status.as_u16() {
            200..=299 => {
                let answer = ExportTraceServiceResponse::decode(&*answer).unwrap_or_default();
                let partial = answer.partial_success.unwrap_or_default();
                let rejected = u64::try_from(partial.rejected_spans).unwrap_or_default();
                Delivery::Accepted { rejected, cause: shorten(partial.error_message) }
            }
            429 | 502 | 503 | 504 => Delivery::Failed { cause: format!("it answered {status}"), retry_after },
            _ => {
                // A status message of protobuf, or a text.
                let text = String::from_utf8_lossy(&answer);
                let printable: String = text.chars().filter(|char| !char.is_control()).collect();
                Delivery::Refused { cause: format!("it answered {status}: {}", shortened(printable.trim())) }
            }
        }
    }

    fn explain(&self, error: &ureq::Error) -> String {
        let remedy = tls_remedy(error).or_else(|| {
            let may_be_grpc = self.endpoint.has_grpc_port();
            may_be_grpc
                .then_some("4317 is usually the port of OTLP over gRPC: give that of OTLP over HTTP, usually 4318")
        });
        remedy.map_or_else(|| error.to_string(), |remedy| format!("{error}; {remedy}"))
    }
}
