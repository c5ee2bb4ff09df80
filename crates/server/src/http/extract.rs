//! Bodies and query strings, with errors in the API's own form.

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use super::error::ApiError;

/// A JSON body, whatever the content type says.
pub(crate) struct Body<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = Bytes::from_request(request, state).await.map_err(unreadable)?;
        let parsed = serde_json::from_slice(&bytes).map_err(|error| match error.classify() {
            Category::Data => ApiError::unprocessable(format!("the request does not fit: {error}")),
            Category::Syntax | Category::Eof | Category::Io => {
                ApiError::bad_request(format!("the body is not JSON: {error}"))
            }
        })?;
        Ok(Self(parsed))
    }
}

fn unreadable(rejection: BytesRejection) -> ApiError {
    match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => ApiError::with_status(
            StatusCode::PAYLOAD_TOO_LARGE,
            "the body is too large: send less, or raise --body-bytes-max",
        ),
        _ => ApiError::bad_request(format!("failed to read the body: {rejection}")),
    }
}

/// Parameters of the query string.
pub(crate) struct Parameters<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Parameters<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        let Query(parameters) = query.map_err(|error| ApiError::bad_request(error.body_text()))?;
        Ok(Self(parameters))
    }
}
