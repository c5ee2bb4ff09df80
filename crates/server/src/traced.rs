//! Spans of HTTP and gRPC requests, with the attributes that OpenTelemetry's conventions name.

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode};
use flash_indexer_otlp::{Exporter, OtlpError, OtlpOptions};
use flash_indexer_telemetry::metrics::{Endpoint, Metrics};
use flash_indexer_traces::{KeyValue, RequestSpan, Root, TraceParent, Tracer, attribute, describe};
use flash_indexer_types::ModelKey;
use flash_indexer_types::names::shortened;
use tonic::Code;

/// Makes the spans of a server's requests.
#[derive(Debug, Clone)]
pub(crate) struct RequestTracer {
    tracer: Tracer,
    scheme: &'static str,
}

impl RequestTracer {
    /// Starts the export of spans, if it is configured.
    pub(crate) fn start(
        options: Option<&OtlpOptions>,
        (instance_id, is_encrypted): (&str, bool),
        metrics: &Arc<Metrics>,
    ) -> Result<Option<(Exporter, Self)>, OtlpError> {
        let Some(options) = options else { return Ok(None) };
        let exporter = Exporter::start(options, instance_id, metrics)?;
        let tracer = exporter.tracer().clone();
        Ok(Some((exporter, Self { tracer, scheme: if is_encrypted { "https" } else { "http" } })))
    }

    /// The span of an HTTP request, if it is sampled. `route` is the path of its endpoint; none for an unknown path.
    pub(crate) fn http(
        &self,
        request: &Request,
        endpoint: Endpoint,
        route: Option<&'static str>,
    ) -> Option<RequestSpan> {
        // Scrapes and probes begin no traces.
        let root = if request.method() == Method::POST { Root::Sampled } else { Root::Never };
        let span = self.tracer.request(&trace_parent(request.headers()), root, None)?;
        let (name, method) = match endpoint.method {
            "other" => ("HTTP", "_OTHER"),
            method => (method, method),
        };
        let path = shortened(request.uri().path()).into_owned();
        span.begin(
            route.map_or_else(|| name.to_owned(), |route| format!("{name} {route}")),
            [
                KeyValue::new("http.request.method", method),
                KeyValue::new("url.scheme", self.scheme),
                KeyValue::new("url.path", path),
            ],
        );
        if let Some(route) = route {
            span.set(KeyValue::new("http.route", route));
        }
        Some(span)
    }

    /// The span of a gRPC request to a method such as `flash_indexer.v1.RouterService/Query`, which began at this time, or now. None if it
    /// is not sampled.
    pub(crate) fn rpc(&self, parent: &TraceParent, method: &str, since: Option<SystemTime>) -> Option<RequestSpan> {
        let span = self.tracer.request(parent, Root::Sampled, since)?;
        let method = method.to_owned();
        span.begin(method.clone(), [KeyValue::new("rpc.system.name", "grpc"), KeyValue::new("rpc.method", method)]);
        Some(span)
    }
}

/// The trace context in the headers of a request.
pub(crate) fn trace_parent(headers: &HeaderMap) -> TraceParent {
    TraceParent::read(|name| headers.get_all(name).iter().filter_map(|value| value.to_str().ok()))
}

/// Ends the span of an HTTP request.
pub(crate) fn finish_http(span: &RequestSpan, status: StatusCode) {
    let error = status.is_server_error().then(|| status.as_str());
    span.finish(KeyValue::new("http.response.status_code", i64::from(status.as_u16())), error);
}

/// Ends the span of a gRPC request.
pub(crate) fn finish_rpc(span: &RequestSpan, code: Code) {
    let name = code_name(code);
    let is_of_server = matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    );
    span.finish(KeyValue::new("rpc.response.status_code", name), is_of_server.then_some(name));
}

/// Adds the model and the tenant of a request to its trace.
pub(crate) fn describe_model(key: &ModelKey) {
    describe(|| {
        [
            KeyValue::new(attribute::MODEL, key.model_name.clone()),
            KeyValue::new(attribute::TENANT, key.tenant_id.clone()),
        ]
    });
}

/// Name of a status in traces.
const fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
