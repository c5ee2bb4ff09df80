//! The one place where failures become gRPC statuses.

use std::time::Instant;

use flash_indexer_prompt::tokenize::FailureReason;
use tonic::{Code, Response, Status};

use super::Shared;
use crate::indexer::{PredictError, QueryError};
use crate::tokenization::TokenizationError;

impl From<QueryError> for Status {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::UnknownModel(_) => Self::not_found(error.to_string()),
        }
    }
}

impl From<PredictError> for Status {
    fn from(error: PredictError) -> Self {
        match error {
            PredictError::Query(_) | PredictError::UnknownPod { .. } => Self::not_found(error.to_string()),
            PredictError::TooLong { .. } => Self::invalid_argument(error.to_string()),
        }
    }
}

impl From<TokenizationError> for Status {
    fn from(error: TokenizationError) -> Self {
        let code = match &error {
            TokenizationError::NotConfigured => Code::Unimplemented,
            TokenizationError::Failed(failed) => match failed.reason() {
                FailureReason::QueueFull => Code::ResourceExhausted,
                FailureReason::Stopped
                | FailureReason::LoadFailed
                | FailureReason::ServiceUnreachable
                | FailureReason::ServiceLate => Code::Unavailable,
                FailureReason::UnknownModel => Code::NotFound,
                FailureReason::Chat | FailureReason::Tokenizer => Code::InvalidArgument,
                FailureReason::ServiceRefused | FailureReason::Panicked => Code::Internal,
            },
        };
        Self::new(code, error.to_string())
    }
}

impl Shared {
    /// Counts how a request was answered, and hands the answer on.
    pub(super) fn answered<T>(
        &self,
        method: &'static str,
        start: Instant,
        answer: Result<T, Status>,
    ) -> Result<Response<T>, Status> {
        let code = answer.as_ref().map_or_else(|status| name(status.code()), |_| name(Code::Ok));
        self.indexer.metrics().rpc_answered(method, code, start.elapsed());
        answer.map(Response::new)
    }
}

/// A code's name in metrics; those that nothing here answers are counted together.
const fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "ok",
        Code::InvalidArgument => "invalid_argument",
        Code::NotFound => "not_found",
        Code::ResourceExhausted => "resource_exhausted",
        Code::Unimplemented => "unimplemented",
        Code::Internal => "internal",
        Code::Unavailable => "unavailable",
        _ => "other",
    }
}
