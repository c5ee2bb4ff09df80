//! Mapping of errors to gRPC statuses, in one place, and metrics of requests.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flash_indexer_access::{Denied, Grant, LimitExceeded, Scope};
use flash_indexer_prompt::tokenize::FailureReason;
use flash_indexer_registry::{Indexer, PredictError, QueryError, TokenizationError};
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_types::InstanceIdError;
use flash_indexer_types::names::{NameError, shorten};
use tonic::metadata::MetadataMap;
use tonic::{Code, Response, Status};

use super::Shared;
use crate::access::{Permission, limit_metric};
use crate::pick_options::PickOptionsError;

/// Error of a call, as the status that the client receives.
#[derive(Debug)]
pub(super) struct RpcError(pub(super) Status);

impl From<Status> for RpcError {
    fn from(status: Status) -> Self {
        Self(status)
    }
}

impl From<Denied> for RpcError {
    fn from(denied: Denied) -> Self {
        let code = if denied.is_unauthenticated() { Code::Unauthenticated } else { Code::PermissionDenied };
        let mut status = Status::new(code, shorten(denied.to_string()));
        status.set_source(Arc::new(denied));
        Self(status)
    }
}

impl From<LimitExceeded> for RpcError {
    fn from(exceeded: LimitExceeded) -> Self {
        let mut status = Status::resource_exhausted(shorten(exceeded.to_string()));
        status.metadata_mut().insert("retry-after", exceeded.retry_after_s.into());
        status.set_source(Arc::new(exceeded));
        Self(status)
    }
}

impl From<NameError> for RpcError {
    fn from(error: NameError) -> Self {
        let mut status = Status::invalid_argument(error.to_string());
        status.set_source(Arc::new(error));
        Self(status)
    }
}

impl From<InstanceIdError> for RpcError {
    fn from(error: InstanceIdError) -> Self {
        match error {
            InstanceIdError::Empty => Self(Status::invalid_argument(error.to_string())),
            InstanceIdError::Name(error) => error.into(),
        }
    }
}

impl From<QueryError> for RpcError {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::UnknownModel(_) => Self(Status::not_found(error.to_string())),
            QueryError::Name(error) => error.into(),
            QueryError::StoreUnavailable(_) | QueryError::Busy => Self(Status::unavailable(error.to_string())),
            QueryError::UnknownCursor => Self(Status::failed_precondition(error.to_string())),
        }
    }
}

impl From<PredictError> for RpcError {
    fn from(error: PredictError) -> Self {
        match error {
            PredictError::Query(error) => error.into(),
            PredictError::UnknownPod { .. } => Self(Status::not_found(error.to_string())),
            PredictError::TooLong { .. } => Self(Status::invalid_argument(error.to_string())),
        }
    }
}

impl From<PickOptionsError> for RpcError {
    fn from(error: PickOptionsError) -> Self {
        match error {
            PickOptionsError::Number { .. } => Self(Status::invalid_argument(error.to_string())),
            PickOptionsError::Seed(_) => Self(Status::unavailable(error.to_string())),
        }
    }
}

impl From<TokenizationError> for RpcError {
    fn from(error: TokenizationError) -> Self {
        let code = match &error {
            TokenizationError::NotConfigured => Code::Unimplemented,
            TokenizationError::Failed(failed) => match failed.reason() {
                FailureReason::QueueFull => Code::ResourceExhausted,
                FailureReason::Withdrawn => Code::Cancelled,
                FailureReason::Stopped
                | FailureReason::LoadFailed
                | FailureReason::ServiceUnreachable
                | FailureReason::ServiceTimedOut => Code::Unavailable,
                FailureReason::UnknownModel => Code::NotFound,
                FailureReason::Chat | FailureReason::Tokenizer => Code::InvalidArgument,
                FailureReason::TooLong => Code::OutOfRange,
                FailureReason::Unsupported => Code::Unimplemented,
                FailureReason::ServiceRefused | FailureReason::Panicked => Code::Internal,
            },
        };
        Self(Status::new(code, shorten(error.to_string())))
    }
}

/// Value of a request's `authorization` header.
pub(super) fn authorization(metadata: &MetadataMap) -> Option<&[u8]> {
    metadata.get("authorization").map(|value| value.as_bytes())
}

impl Shared {
    /// The grant of a request's token. Every method needs the scope `query`.
    pub(super) fn admit(&self, authorization: Option<&[u8]>) -> Result<Arc<Grant>, RpcError> {
        Ok(self.access.admit(authorization, Permission::Tenant(Scope::Query))?)
    }
}

/// Time before a request's deadline at which its answer is given up. The transport would answer `CANCELLED` at the deadline.
const DEADLINE_MARGIN: Duration = Duration::from_millis(5);

/// Waits for an answer until the deadline in a request's `grpc-timeout`.
pub(super) async fn within_deadline<T>(
    metadata: &MetadataMap,
    answer: impl Future<Output = Result<T, RpcError>>,
) -> Result<T, RpcError> {
    let Some(deadline) = deadline(metadata) else { return answer.await };
    let answer = tokio::time::timeout(deadline.saturating_sub(DEADLINE_MARGIN), answer);
    let late =
        |_| Status::deadline_exceeded(format!("failed to answer within {deadline:?}; retry with a later deadline"));
    answer.await.map_err(late)?
}

/// The deadline of a request: up to eight digits and a unit.
fn deadline(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (count, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let count: u64 = count.parse().ok().filter(|_| count.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

/// Request in flight. It is counted when it is dropped; without [`InFlightRequest::finish`], as cancelled by its client or
/// a deadline that passed before [`within_deadline`] answered.
pub(super) struct InFlightRequest {
    indexer: Arc<Indexer>,
    method: &'static str,
    start: Instant,
    code: Code,
}

/// Counts an answer that was made at once. Only failures of a stream as a whole are answered so.
pub(super) fn finished<T>(
    indexer: &Arc<Indexer>,
    method: &'static str,
    answer: Result<T, RpcError>,
) -> Result<T, Status> {
    let request =
        InFlightRequest { indexer: Arc::clone(indexer), method, start: Instant::now(), code: Code::Cancelled };
    request.finish(answer).map(Response::into_inner)
}

impl Shared {
    pub(super) fn in_flight(&self, method: &'static str) -> InFlightRequest {
        InFlightRequest { indexer: Arc::clone(&self.indexer), method, start: Instant::now(), code: Code::Cancelled }
    }
}

impl InFlightRequest {
    /// Records the status of the answer, and converts it to a response.
    pub(super) fn finish<T>(mut self, answer: Result<T, RpcError>) -> Result<Response<T>, Status> {
        let answer = answer.map_err(|RpcError(status)| status);
        self.code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
        if answer.as_ref().is_err_and(|status| status.source().is_some_and(|source| source.is::<NameError>())) {
            self.indexer.metrics().limit_reached(Limit::Names);
        }
        if let Err(status) = &answer
            && let Some(denied) = status.source().and_then(|source| source.downcast_ref::<Denied>())
        {
            self.indexer.metrics().access_denied(denied.as_str());
        }
        if let Err(status) = &answer
            && let Some(exceeded) = status.source().and_then(|source| source.downcast_ref::<LimitExceeded>())
        {
            self.indexer.metrics().limit_reached(limit_metric(exceeded.limit));
        }
        answer.map(Response::new)
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        self.indexer.metrics().rpc_answered(self.method, code_label(self.code), self.start.elapsed());
    }
}

/// Label of a status code in metrics. Codes that this service never returns share a label.
pub(super) const fn code_label(code: Code) -> &'static str {
    match code {
        Code::Ok => "ok",
        Code::Cancelled => "cancelled",
        Code::DeadlineExceeded => "deadline_exceeded",
        Code::InvalidArgument => "invalid_argument",
        Code::NotFound => "not_found",
        Code::ResourceExhausted => "resource_exhausted",
        Code::Unimplemented => "unimplemented",
        Code::FailedPrecondition => "failed_precondition",
        Code::Internal => "internal",
        Code::Unavailable => "unavailable",
        Code::Unauthenticated => "unauthenticated",
        Code::PermissionDenied => "permission_denied",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deadline_in(text: &'static str) -> Option<Duration> {
        let mut metadata = MetadataMap::new();
        metadata.insert("grpc-timeout", text.parse().expect("a value"));
        deadline(&metadata)
    }

    #[test]
    fn deadlines_are_read_with_their_unit() {
        let seconds = Duration::from_secs;
        for (text, expected) in [("1H", seconds(3600)), ("2M", seconds(120)), ("99999999S", seconds(99_999_999))] {
            assert_eq!(deadline_in(text), Some(expected), "{text}");
        }
        for (text, expected) in [("300m", 300_000_000), ("7u", 7_000), ("0n", 0)] {
            assert_eq!(deadline_in(text), Some(Duration::from_nanos(expected)), "{text}");
        }
        for text in ["", "S", "1", "-1S", "999999999S", "1x", "1 S"] {
            assert_eq!(deadline_in(text), None, "{text}");
        }
        assert_eq!(deadline(&MetadataMap::new()), None);
    }

    #[test]
    fn an_answer_that_comes_too_late_is_deadline_exceeded() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let mut metadata = MetadataMap::new();
        metadata.insert("grpc-timeout", "20m".parse().expect("a value"));
        let late = runtime.block_on(within_deadline::<()>(&metadata, std::future::pending())).expect_err("no answer");
        assert_eq!(late.0.code(), Code::DeadlineExceeded);
        let at_once = runtime.block_on(within_deadline(&metadata, std::future::ready(Ok(1))));
        assert_eq!(at_once.expect("an answer"), 1);
    }
}
