//! Extractors of bodies and query strings, with JSON errors.

use std::error::Error;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{BodyDataStream, Bytes};
use axum::extract::{ConnectInfo, FromRequest, FromRequestParts, Query, Request};
use axum::http::header::{CONTENT_LENGTH, EXPECT};
use axum::http::request::Parts;
use flash_indexer_access::Grant;
use futures_core::Stream;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use super::Api;
use super::content::{Accepted, BodyForm, ContentEncoding};
use super::error::ApiError;
use crate::connections::ConnectionHandle;

/// Bytes of a rejected body that are read and discarded. A client that sends its whole body before it reads the response
/// can then read the error.
const DISCARDED_BYTES_MAX: usize = 256 << 20;
const DISCARD_DEADLINE: Duration = Duration::from_secs(10);

/// Longest time for a client to send a body.
const READ_DEADLINE: Duration = Duration::from_secs(30);

/// Extractor of a JSON body.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Arc<Api>> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, ApiError> {
        parse(&bytes(request, api).await?).map(Self)
    }
}

/// Extractor of the grant of a request's token, which the middleware has admitted.
pub(super) struct Access(pub(super) Arc<Grant>);

impl FromRequestParts<Arc<Api>> for Access {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Api>) -> Result<Self, ApiError> {
        let grant = parts.extensions.get::<Arc<Grant>>().cloned();
        grant.map(Self).ok_or_else(|| ApiError::unavailable("the request was not admitted; report this bug"))
    }
}

/// Connection of a request; none in tests without a socket.
pub(super) fn connection(request: &Request) -> Option<&ConnectionHandle> {
    request.extensions().get::<ConnectInfo<ConnectionHandle>>().map(|info| &info.0)
}

/// Reads the bytes of a JSON body.
pub(super) async fn bytes(request: Request, api: &Api) -> Result<Vec<u8>, ApiError> {
    body(request, api, Accepted::Json).await.map(|(_, bytes)| bytes)
}

/// Reads the bytes of a body, decompressed.
pub(super) async fn body(request: Request, api: &Api, accepted: Accepted) -> Result<(BodyForm, Vec<u8>), ApiError> {
    let _reading = connection(&request).map(ConnectionHandle::reading);
    let body = tokio::time::timeout(READ_DEADLINE, read(request, accepted, api.body_bytes_max)).await;
    body.map_err(|_| ApiError::too_slow(READ_DEADLINE))?
}

/// Parses a JSON body.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| unfit(&error))
}

/// The response to a body that cannot be parsed.
pub(super) fn unfit(error: &serde_json::Error) -> ApiError {
    match error.classify() {
        Category::Data => ApiError::unprocessable(format!("the request does not fit: {error}")),
        Category::Syntax | Category::Eof | Category::Io => {
            ApiError::bad_request(format!("the body is not JSON: {error}"))
        }
    }
}

async fn read(request: Request, accepted: Accepted, bytes_max: usize) -> Result<(BodyForm, Vec<u8>), ApiError> {
    let headers = request.headers();
    let content = BodyForm::of(headers, accepted).and_then(|form| Ok((form, ContentEncoding::of(headers)?)));
    let claimed = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok()).unwrap_or(0);
    let expects_continue = headers.contains_key(EXPECT);
    let mut body = request.into_body().into_data_stream();
    let is_too_large = (claimed > bytes_max).then(|| ApiError::too_large(claimed, bytes_max));
    let (form, encoding) = match content.and_then(|content| is_too_large.map_or(Ok(content), Err)) {
        Ok(content) => content,
        Err(error) => {
            if !expects_continue {
                discard(&mut body).await;
            }
            return Err(error);
        }
    };
    let mut bytes = Vec::with_capacity(claimed);
    while let Some(chunk) = next(&mut body).await {
        let chunk = chunk.map_err(|error| ApiError::bad_request(format!("failed to read the body: {error}")))?;
        if bytes.len() + chunk.len() > bytes_max {
            discard(&mut body).await;
            return Err(ApiError::too_large(bytes.len() + chunk.len(), bytes_max));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok((form, encoding.decode(bytes, bytes_max)?))
}

/// Reads and discards the body of a rejected request.
pub(super) async fn discard_body(request: Request) {
    if !request.headers().contains_key(EXPECT) {
        discard(&mut request.into_body().into_data_stream()).await;
    }
}

async fn discard(body: &mut BodyDataStream) {
    let discard_all = async {
        let mut discarded = 0;
        while let Some(Ok(chunk)) = next(body).await
            && discarded < DISCARDED_BYTES_MAX
        {
            discarded += chunk.len();
        }
    };
    // After the deadline or the limit, the client sees a closed connection instead of the error.
    let _ = tokio::time::timeout(DISCARD_DEADLINE, discard_all).await;
}

async fn next(body: &mut BodyDataStream) -> Option<Result<Bytes, axum::Error>> {
    poll_fn(|context| Pin::new(&mut *body).poll_next(context)).await
}

/// Extractor of the query string's parameters.
pub(crate) struct Parameters<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Parameters<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        let Query(parameters) = query.map_err(|error| {
            let why = error.source().map_or_else(|| error.body_text(), ToString::to_string);
            ApiError::bad_request(format!("the query string does not fit: {why}"))
        })?;
        Ok(Self(parameters))
    }
}
