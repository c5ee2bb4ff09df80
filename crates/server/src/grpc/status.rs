//! Mapping of errors to gRPC statuses, in one place, and metrics of requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flash_indexer_access::{AccessError, Grant, LimitExceeded, Scope};
use flash_indexer_grpc_bodies::code_label;
use flash_indexer_prompt::tokenize::FailureReason;
use flash_indexer_registry::{Indexer, PredictError, QueryError, TokenizationError};
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_types::InstanceIdError;
use flash_indexer_types::names::{NameError, shorten};
use tonic::codegen::http::HeaderMap;
use tonic::metadata::MetadataMap;
use tonic::{Code, Extensions, Response, Status};

use super::GrpcState;
use crate::access::{Permission, limit_metric};
use crate::pick_options::PickOptionsError;

/// Error of a call: the status that the client receives, and what is counted.
#[derive(Debug)]
pub(super) struct RpcError {
    status: Status,
    /// Limit that the request exceeded.
    limit: Option<Limit>,
    /// Reason why access is denied.
    denied: Option<&'static str>,
}

impl From<Status> for RpcError {
    fn from(status: Status) -> Self {
        Self { status, limit: None, denied: None }
    }
}

impl From<AccessError> for RpcError {
    fn from(denied: AccessError) -> Self {
        let code = if denied.is_unauthenticated() { Code::Unauthenticated } else { Code::PermissionDenied };
        Self { denied: Some(denied.as_str()), ..Status::new(code, shorten(denied.to_string())).into() }
    }
}

impl From<LimitExceeded> for RpcError {
    fn from(exceeded: LimitExceeded) -> Self {
        let mut status = Status::resource_exhausted(shorten(exceeded.to_string()));
        status.metadata_mut().insert("retry-after", exceeded.retry_after_s.into());
        Self { limit: Some(limit_metric(exceeded.limit)), ..status.into() }
    }
}

impl From<NameError> for RpcError {
    fn from(error: NameError) -> Self {
        Self { limit: Some(Limit::Names), ..Status::invalid_argument(error.to_string()).into() }
    }
}

impl From<InstanceIdError> for RpcError {
    fn from(error: InstanceIdError) -> Self {
        match error {
            InstanceIdError::Empty => Status::invalid_argument(error.to_string()).into(),
            InstanceIdError::Name(error) => error.into(),
        }
    }
}

impl From<QueryError> for RpcError {
    fn from(error: QueryError) -> Self {
        let code = match error {
            QueryError::UnknownModel(_) => Code::NotFound,
            QueryError::Name(error) => return error.into(),
            QueryError::Recovering(_) | QueryError::StoreUnavailable(_) | QueryError::Busy => Code::Unavailable,
            QueryError::UnknownCursor => Code::FailedPrecondition,
        };
        Status::new(code, error.to_string()).into()
    }
}

impl From<PredictError> for RpcError {
    fn from(error: PredictError) -> Self {
        let code = match error {
            PredictError::Query(error) => return error.into(),
            PredictError::UnknownInstance { .. } => Code::NotFound,
            PredictError::TooLong { .. } => Code::InvalidArgument,
        };
        Status::new(code, error.to_string()).into()
    }
}

impl From<PickOptionsError> for RpcError {
    fn from(error: PickOptionsError) -> Self {
        let code = match error {
            PickOptionsError::Number { .. } => Code::InvalidArgument,
            PickOptionsError::Seed(_) => Code::Unavailable,
        };
        Status::new(code, error.to_string()).into()
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
        Status::new(code, shorten(error.to_string())).into()
    }
}

/// Value of a request's `authorization` header.
pub(super) fn authorization(metadata: &MetadataMap) -> Option<&[u8]> {
    metadata.get("authorization").map(|value| value.as_bytes())
}

/// Refuses a request with more than one `authorization` header. A proxy in front of the service may have checked a different one than the
/// service would.
pub(super) fn single_authorization(headers: &HeaderMap) -> Result<(), Status> {
    match headers.get_all("authorization").iter().nth(1) {
        None => Ok(()),
        Some(_) => Err(Status::invalid_argument("the request has more than one header `authorization`; send one")),
    }
}

impl GrpcState {
    /// The grant of a request's token. Every method needs the scope `query`.
    pub(super) fn admit(&self, authorization: Option<&[u8]>) -> Result<Arc<Grant>, RpcError> {
        Ok(self.access.admit(authorization, Permission::Tenant(Scope::Query))?)
    }

    pub(super) fn in_flight(&self, method: &'static str) -> InFlightRequest {
        InFlightRequest::begin(&self.indexer, method)
    }
}

/// Time before a request's deadline at which its answer is abandoned. The transport would answer `CANCELLED` at the deadline.
const DEADLINE_MARGIN: Duration = Duration::from_millis(5);

/// Deadline of a unary call: its `grpc-timeout` after its head has arrived.
#[derive(Debug, Clone)]
pub(super) struct CallDeadline {
    given: Duration,
    at: Instant,
    /// Whether the method runs, which then keeps the deadline and counts the call.
    is_handled: Arc<AtomicBool>,
}

impl CallDeadline {
    /// The deadline of a call whose head arrives now.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let given = timeout(headers)?;
        let at = Instant::now().checked_add(given.saturating_sub(DEADLINE_MARGIN))?;
        Some(Self { given, at, is_handled: Arc::default() })
    }

    /// Time until the call is abandoned.
    pub(super) fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    pub(super) fn is_handled(&self) -> bool {
        self.is_handled.load(Ordering::Relaxed)
    }

    pub(super) fn exceeded(&self) -> Status {
        Status::deadline_exceeded(format!("failed to answer within {:?}; retry with a later deadline", self.given))
    }
}

/// Waits for an answer until the deadline of its call.
pub(super) async fn within_deadline<T>(
    extensions: &Extensions,
    answer: impl Future<Output = Result<T, RpcError>>,
) -> Result<T, RpcError> {
    let Some(deadline) = extensions.get::<CallDeadline>() else { return answer.await };
    deadline.is_handled.store(true, Ordering::Relaxed);
    tokio::time::timeout_at(deadline.at.into(), answer).await.map_err(|_| deadline.exceeded())?
}

/// The time in `grpc-timeout`: up to eight digits and a unit.
fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
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

impl InFlightRequest {
    pub(super) fn begin(indexer: &Arc<Indexer>, method: &'static str) -> Self {
        Self { indexer: Arc::clone(indexer), method, start: Instant::now(), code: Code::Cancelled }
    }

    /// Records the status of the answer, and converts it to a response.
    pub(super) fn finish<T>(mut self, answer: Result<T, RpcError>) -> Result<Response<T>, Status> {
        let answer = answer.map_err(|RpcError { status, limit, denied }| {
            if let Some(limit) = limit {
                self.indexer.metrics().limit_reached(limit);
            }
            if let Some(denied) = denied {
                self.indexer.metrics().access_denied(denied);
            }
            status
        });
        self.code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
        answer.map(Response::new)
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        self.indexer.metrics().rpc_answered(self.method, code_label(self.code), self.start.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use tonic::codegen::http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(timeout: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(HeaderName::from_static("grpc-timeout"), HeaderValue::from_static(timeout))])
    }

    fn deadline_in(text: &'static str) -> Option<Duration> {
        timeout(&headers(text))
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
        assert_eq!(timeout(&HeaderMap::new()), None);
    }

    #[test]
    fn an_answer_that_comes_too_late_is_deadline_exceeded() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let called = || {
            let mut extensions = Extensions::new();
            extensions.insert(CallDeadline::of(&headers("20m")).expect("a deadline"));
            extensions
        };
        let late = runtime.block_on(within_deadline::<()>(&called(), std::future::pending())).expect_err("no answer");
        assert_eq!(late.status.code(), Code::DeadlineExceeded);
        // The time that the message took counts.
        let extensions = called();
        let deadline = extensions.get::<CallDeadline>().expect("a deadline");
        runtime.block_on(async { tokio::time::sleep_until(deadline.at.into()).await });
        assert_eq!(deadline.left(), Duration::ZERO);
        let late = runtime.block_on(within_deadline::<()>(&extensions, std::future::pending())).expect_err("no answer");
        assert!(late.status.code() == Code::DeadlineExceeded && deadline.is_handled());
        let at_once = runtime.block_on(within_deadline(&called(), std::future::ready(Ok(1))));
        assert_eq!(at_once.expect("an answer"), 1);
    }
}
