//! Mapping of errors to gRPC statuses, in one place, and metrics of requests.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use flash_indexer_prompt::tokenize::FailureReason;
use tonic::{Code, Response, Status};

use super::Shared;
use flash_indexer_registry::TokenizationError;
use flash_indexer_registry::{Indexer, PredictError, QueryError};
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_types::InstanceIdError;
use flash_indexer_types::names::{NameError, shorten};

/// Error of a call, as the status that the client receives.
#[derive(Debug)]
pub(super) struct RpcError(pub(super) Status);

impl From<Status> for RpcError {
    fn from(status: Status) -> Self {
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
            QueryError::StoreUnavailable(_) => Self(Status::unavailable(error.to_string())),
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
                FailureReason::Unsupported => Code::Unimplemented,
                FailureReason::ServiceRefused | FailureReason::Panicked => Code::Internal,
            },
        };
        Self(Status::new(code, shorten(error.to_string())))
    }
}

/// Request in flight. It is counted when it is dropped; without [`InFlightRequest::finish`], as cancelled by its client or
/// its deadline.
pub(super) struct InFlightRequest {
    indexer: Arc<Indexer>,
    method: &'static str,
    start: Instant,
    code: Code,
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
        answer.map(Response::new)
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        self.indexer.metrics().rpc_answered(self.method, name(self.code), self.start.elapsed());
    }
}

/// Label of a status code in metrics. Codes that this service never returns share a label.
const fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "ok",
        Code::Cancelled => "cancelled",
        Code::InvalidArgument => "invalid_argument",
        Code::NotFound => "not_found",
        Code::ResourceExhausted => "resource_exhausted",
        Code::Unimplemented => "unimplemented",
        Code::FailedPrecondition => "failed_precondition",
        Code::Internal => "internal",
        Code::Unavailable => "unavailable",
        _ => "other",
    }
}
