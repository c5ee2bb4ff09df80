//! Mapping of errors to HTTP statuses, in one place.

use std::time::Duration;

use axum::Json;
use axum::http::header::{ACCEPT_ENCODING, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use flash_indexer_access::{AccessError, LimitExceeded};
use flash_indexer_admission::{BodyBudgetReached, ENCODINGS, LargeRequestError, UnknownEncoding};
use flash_indexer_api::ErrorBody;
use flash_indexer_prompt::tokenize::FailureReason;
use flash_indexer_registry::{
    DigestError, PredictError, PrefixTextError, QueryError, RegistrationError, TokenizationError,
};
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_types::names::{NameError, shorten, shortened};
use flash_indexer_types::{InstanceIdError, SharedCachesError};

use tokio::task::JoinError;
use tracing::error;

use crate::access::limit_metric;

/// Error response: a status and a message with a remedy for the client.
#[derive(Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// Value of `Retry-After`, in seconds.
    retry_after_s: Option<u32>,
    /// Value of `Accept-Encoding`.
    accepted_encodings: Option<&'static str>,
    /// Limit that the request exceeded, which the middleware counts.
    pub(crate) limit: Option<Limit>,
    /// Reason why access is denied, counted by the middleware.
    denied: Option<&'static str>,
}

/// Reason why a response denies access.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeniedReason(pub(super) &'static str);

impl ApiError {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        // A message may repeat a client's text.
        Self {
            status,
            message: shorten(message.into()),
            retry_after_s: None,
            accepted_encodings: None,
            limit: None,
            denied: None,
        }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn unprocessable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, message)
    }

    /// The error for a request without a field, or without any of several alternatives.
    pub(super) fn missing_field(names: &str) -> Self {
        Self::unprocessable(format!("the request does not fit: missing field {names}"))
    }

    /// The error for `after` in a request that must have the entire prompt.
    pub(super) fn whole_prompt_needed() -> Self {
        Self::unprocessable("the request does not fit: `after` is for queries; send the whole prompt")
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    pub(super) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, message)
    }

    pub(crate) fn wrong_method(message: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, message)
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    /// The error for a request that may succeed in a second.
    pub(super) fn busy(message: impl Into<String>) -> Self {
        Self { retry_after_s: Some(1), ..Self::unavailable(message) }
    }

    pub(super) fn unsupported_type(message: String) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message)
    }

    pub(crate) fn corrupt_encoding(error: &std::io::Error) -> Self {
        Self::bad_request(format!(
            "failed to decompress the body: {error}; compress it as the header content-encoding says"
        ))
    }

    pub(crate) fn too_slow(deadline: Duration) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, format!("the body did not arrive within {deadline:?}: send it again"))
    }

    pub(crate) fn too_large(bytes: usize, bytes_max: usize) -> Self {
        let message = format!(
            "the body has at least {bytes} bytes, and at most {bytes_max} are taken: send less, or raise --body-bytes-max"
        );
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(ErrorBody { error: self.message })).into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(encodings) = self.accepted_encodings {
            response.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static(encodings));
        }
        if let Some(limit) = self.limit {
            response.extensions_mut().insert(limit);
        }
        if let Some(reason) = self.denied {
            response.extensions_mut().insert(DeniedReason(reason));
        }
        response
    }
}

impl From<JoinError> for ApiError {
    fn from(failed: JoinError) -> Self {
        if !failed.is_panic() {
            return Self::unavailable("the service is stopping");
        }
        error!(%failed, "request panicked; report this bug with the log");
        Self::unavailable("the request panicked; report this bug with the log")
    }
}

impl From<LargeRequestError> for ApiError {
    fn from(error: LargeRequestError) -> Self {
        match error {
            // The threads have counted it.
            LargeRequestError::Full => Self::busy(error.to_string()),
            LargeRequestError::Ended(error) => error.into(),
        }
    }
}

impl From<BodyBudgetReached> for ApiError {
    fn from(error: BodyBudgetReached) -> Self {
        // The budget has counted it.
        Self::busy(error.to_string())
    }
}

impl From<UnknownEncoding> for ApiError {
    fn from(UnknownEncoding(given): UnknownEncoding) -> Self {
        let given = shortened(&given);
        let message = format!("the body's content encoding is {given:?}: send one of {ENCODINGS}, or no encoding");
        Self { accepted_encodings: Some(ENCODINGS), ..Self::unsupported_type(message) }
    }
}

impl From<AccessError> for ApiError {
    fn from(denied: AccessError) -> Self {
        let status = if denied.is_unauthenticated() { StatusCode::UNAUTHORIZED } else { StatusCode::FORBIDDEN };
        Self { denied: Some(denied.as_str()), ..Self::new(status, denied.to_string()) }
    }
}

impl From<LimitExceeded> for ApiError {
    fn from(exceeded: LimitExceeded) -> Self {
        let limit = Some(limit_metric(exceeded.limit));
        let retry_after_s = Some(exceeded.retry_after_s);
        Self { limit, retry_after_s, ..Self::new(StatusCode::TOO_MANY_REQUESTS, exceeded.to_string()) }
    }
}

impl From<NameError> for ApiError {
    fn from(error: NameError) -> Self {
        Self { limit: Some(Limit::Names), ..Self::bad_request(error.to_string()) }
    }
}

impl From<InstanceIdError> for ApiError {
    fn from(error: InstanceIdError) -> Self {
        match error {
            InstanceIdError::Empty => Self::unprocessable(error.to_string()),
            InstanceIdError::Name(error) => error.into(),
        }
    }
}

impl From<SharedCachesError> for ApiError {
    fn from(error: SharedCachesError) -> Self {
        match error {
            SharedCachesError::TooMany { .. } => {
                Self { limit: Some(Limit::SharedCaches), ..Self::bad_request(error.to_string()) }
            }
            SharedCachesError::Id(error) => error.into(),
            SharedCachesError::Instance(_) => Self::bad_request(error.to_string()),
        }
    }
}

impl From<RegistrationError> for ApiError {
    fn from(error: RegistrationError) -> Self {
        let status = match &error {
            RegistrationError::Tenant(exceeded) => {
                // The registry has counted it.
                return Self { limit: None, ..Self::from(exceeded.clone()) };
            }
            RegistrationError::Endpoint(_)
            | RegistrationError::SharedCache(_)
            | RegistrationError::Name(_)
            | RegistrationError::Address(_) => StatusCode::BAD_REQUEST,
            RegistrationError::BlockSize { .. } | RegistrationError::Rank { .. } => StatusCode::CONFLICT,
            RegistrationError::TooMany { .. }
            | RegistrationError::Memory { .. }
            | RegistrationError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, error.to_string())
    }
}

impl From<QueryError> for ApiError {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::UnknownModel(_) => Self::not_found(error.to_string()),
            QueryError::Name(error) => error.into(),
            QueryError::Recovering(_) | QueryError::Busy => Self::busy(error.to_string()),
            QueryError::StoreUnavailable(_) => Self::unavailable(error.to_string()),
            QueryError::UnknownCursor => Self::new(StatusCode::CONFLICT, error.to_string()),
        }
    }
}

impl From<PredictError> for ApiError {
    fn from(error: PredictError) -> Self {
        match error {
            PredictError::Query(error) => error.into(),
            PredictError::UnknownInstance { .. } => Self::not_found(error.to_string()),
            PredictError::TooLong { .. } => Self::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()),
        }
    }
}

impl From<TokenizationError> for ApiError {
    fn from(error: TokenizationError) -> Self {
        let status = match &error {
            TokenizationError::NotConfigured => StatusCode::NOT_IMPLEMENTED,
            TokenizationError::Failed(failed) => match failed.reason() {
                FailureReason::QueueFull
                | FailureReason::Stopped
                | FailureReason::Withdrawn
                | FailureReason::LoadFailed
                | FailureReason::ServiceUnreachable
                | FailureReason::ServiceTimedOut => StatusCode::SERVICE_UNAVAILABLE,
                FailureReason::ServiceRefused => StatusCode::BAD_GATEWAY,
                FailureReason::UnknownModel => StatusCode::NOT_FOUND,
                FailureReason::Unsupported => StatusCode::NOT_IMPLEMENTED,
                FailureReason::Chat | FailureReason::Tokenizer => StatusCode::BAD_REQUEST,
                FailureReason::TooLong => StatusCode::UNPROCESSABLE_ENTITY,
                FailureReason::Panicked => StatusCode::INTERNAL_SERVER_ERROR,
            },
        };
        let retry_after_s = (status == StatusCode::SERVICE_UNAVAILABLE).then_some(1);
        Self { retry_after_s, ..Self::new(status, error.to_string()) }
    }
}

impl From<PrefixTextError> for ApiError {
    fn from(error: PrefixTextError) -> Self {
        let status = match error {
            PrefixTextError::NotKept => StatusCode::CONFLICT,
            PrefixTextError::UnknownPrompt => StatusCode::NOT_FOUND,
            PrefixTextError::NoTokenizers => StatusCode::NOT_IMPLEMENTED,
            PrefixTextError::UnknownModel(error) => return error.into(),
            PrefixTextError::Tokenizer(error) => return error.into(),
        };
        Self::new(status, error.to_string())
    }
}

impl From<DigestError> for ApiError {
    fn from(error: DigestError) -> Self {
        let status = match &error {
            DigestError::Recovering(_) => return Self::busy(error.to_string()),
            DigestError::Unknown(_) => StatusCode::NOT_FOUND,
            DigestError::NotReached(..) | DigestError::Partial(_) => StatusCode::CONFLICT,
            DigestError::Stopping => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, error.to_string())
    }
}
