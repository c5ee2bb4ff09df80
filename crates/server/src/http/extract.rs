//! Extractors of bodies and query strings, with JSON errors.

use std::error::Error;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{BodyDataStream, Bytes};
use axum::extract::{ConnectInfo, FromRequest, FromRequestParts, Query, Request};
use axum::http::header::{CONTENT_LENGTH, EXPECT};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Uri};
use chat_template::without_constants;
use flash_indexer_access::Grant;
use flash_indexer_admission::{BodyBytes, ContentEncoding, LARGE_BYTES, READ_DEADLINE};
use flash_indexer_api::{body_error, does_not_fit, parse_with_ignored};
use flash_indexer_traces::{Stage, stage};
use futures_core::Stream;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Api;
use super::content::{AcceptedForms, BodyForm};
use super::error::ApiError;
use flash_indexer_connections::ConnectionHandle;

/// Bytes of a rejected body that are read and discarded. A client that sends its whole body before it reads the response
/// can then read the error. A body that is declared larger is not read, and its client receives the error at once.
const DISCARDED_BYTES_MAX: usize = 256 << 20;
const DISCARD_DEADLINE: Duration = Duration::from_secs(10);

/// Extractor of a JSON body.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned + Send + 'static> FromRequest<Arc<Api>> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, ApiError> {
        receive_json(request, api, |json| parse(json).map(Self)).await
    }
}

/// Extractor of a JSON body, and of the names of its fields that were ignored.
pub(super) struct BodyWithIgnored<T>(pub(super) T, pub(super) Vec<String>);

impl<T: DeserializeOwned + Send + 'static> FromRequest<Arc<Api>> for BodyWithIgnored<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, ApiError> {
        let parse = |json: &[u8]| {
            let parsed = parse_with_ignored(json);
            let (request, ignored) = parsed.map_err(|error| unfit(&error, &body_error::<T>(&error, json)))?;
            Ok(Self(request, ignored))
        };
        receive_json(request, api, parse).await
    }
}

/// Receives a JSON body and parses it.
async fn receive_json<R: Send + 'static>(
    request: Request,
    api: &Arc<Api>,
    parse: impl FnOnce(&[u8]) -> Result<R, ApiError> + Send + 'static,
) -> Result<R, ApiError> {
    let body = receive(request, api, AcceptedForms::Json).await?;
    let parse = async move |_, json: Vec<u8>| {
        let _parse = stage(Stage::Parse);
        parse(&json)
    };
    body.process(parse).await
}

/// Extractor of the service, the grant of a request's token, which the middleware has admitted, and the address of its client. Tests
/// without a socket have no address.
pub(crate) struct Caller {
    pub(crate) api: Arc<Api>,
    pub(crate) grant: Arc<Grant>,
    pub(crate) client: Option<IpAddr>,
}

impl FromRequestParts<Arc<Api>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, ApiError> {
        let grant = parts.extensions.get::<Arc<Grant>>().cloned();
        let grant = grant.ok_or_else(|| ApiError::unavailable("the request was not admitted; report this bug"))?;
        let connection = parts.extensions.get::<ConnectInfo<ConnectionHandle>>();
        Ok(Self { api: Arc::clone(api), grant, client: connection.map(|info| info.0.client()) })
    }
}

/// Connection of a request; none in tests without a socket.
pub(super) fn connection(request: &Request) -> Option<&ConnectionHandle> {
    request.extensions().get::<ConnectInfo<ConnectionHandle>>().map(|info| &info.0)
}

/// A body that was received and is not decompressed yet.
pub(super) struct ReceivedBody {
    api: Arc<Api>,
    form: BodyForm,
    encoding: ContentEncoding,
    bytes: Vec<u8>,
    /// Released when the request is answered.
    received: BodyBytes,
}

/// Receives a body.
pub(super) async fn receive(
    request: Request,
    api: &Arc<Api>,
    accepted: AcceptedForms,
) -> Result<ReceivedBody, ApiError> {
    let _reading = connection(&request).map(ConnectionHandle::reading);
    let body = tokio::time::timeout(READ_DEADLINE, read(request, accepted, api)).await;
    body.map_err(|_| ApiError::too_slow(READ_DEADLINE))?
}

impl ReceivedBody {
    /// Does work on the decompressed body: at once if it is small, on the threads for large requests if it has more than
    /// [`LARGE_BYTES`].
    pub(super) async fn process<R, F>(
        self,
        work: impl FnOnce(BodyForm, Vec<u8>) -> F + Send + 'static,
    ) -> Result<R, ApiError>
    where
        R: Send + 'static,
        F: Future<Output = Result<R, ApiError>> + Send + 'static,
    {
        let (form, bytes_max) = (self.form, self.api.bodies.bytes_max);
        match self.decode_small(bytes_max)? {
            Ok((small, _received)) => work(form, small).await,
            Err(Self { api, encoding, bytes, mut received, .. }) => {
                let client = received.client();
                let work = async move {
                    let body = encoding.decode(bytes, bytes_max).map_err(|error| ApiError::corrupt_encoding(&error))?;
                    let body = within(body, bytes_max)?;
                    received.set(body.len())?;
                    work(form, body).await
                };
                api.bodies.large_requests.run(client, work).await?
            }
        }
    }

    /// The body, decompressed, if it is small.
    fn decode_small(mut self, bytes_max: usize) -> Result<Result<(Vec<u8>, BodyBytes), Self>, ApiError> {
        match self.encoding {
            _ if self.bytes.len() > LARGE_BYTES => Ok(Err(self)),
            ContentEncoding::Identity => Ok(Ok((self.bytes, self.received))),
            encoding => {
                let decoded = encoding.decompress(&self.bytes, LARGE_BYTES.min(bytes_max));
                let decoded = within(decoded.map_err(|error| ApiError::corrupt_encoding(&error))?, bytes_max)?;
                if decoded.len() > LARGE_BYTES {
                    return Ok(Err(self));
                }
                self.received.set(decoded.len())?;
                Ok(Ok((decoded, self.received)))
            }
        }
    }
}

/// Rejects a body that is larger than the limit.
fn within(body: Vec<u8>, bytes_max: usize) -> Result<Vec<u8>, ApiError> {
    if body.len() > bytes_max { Err(ApiError::too_large(body.len(), bytes_max)) } else { Ok(body) }
}

/// Parses a JSON body.
pub(super) fn parse<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| unfit(&error, &body_error::<T>(&error, body)))
}

/// Parses a JSON body, which may have the non-JSON constants that the engines' parser accepts. If it has, also returns the body in which
/// these are replaced.
pub(super) fn parse_lenient<T>(
    body: &[u8],
    parse: impl Fn(&[u8]) -> Result<T, ApiError>,
) -> Result<(T, Option<Vec<u8>>), ApiError> {
    match parse(body) {
        Ok(parsed) => Ok((parsed, None)),
        Err(error) => {
            let json = without_constants(body).ok_or(error)?;
            Ok((parse(&json)?, Some(json)))
        }
    }
}

/// The response to a body that cannot be parsed, with its cause.
pub(super) fn unfit(error: &serde_json::Error, cause: &str) -> ApiError {
    match error.is_data() {
        true => ApiError::unprocessable(format!("the request does not fit: {cause}")),
        false => ApiError::bad_request(format!("the body is not JSON: {cause}")),
    }
}

async fn read(request: Request, accepted: AcceptedForms, api: &Arc<Api>) -> Result<ReceivedBody, ApiError> {
    let bytes_max = api.bodies.bytes_max;
    let client = connection(&request).map(ConnectionHandle::client);
    let headers = request.headers();
    let content = BodyForm::of(headers, accepted).and_then(|form| Ok((form, ContentEncoding::of(headers)?)));
    let (claimed, is_discarded) = (claimed_bytes(headers), is_discarded(headers));
    let mut body = request.into_body().into_data_stream();
    let is_too_large = (claimed > bytes_max).then(|| ApiError::too_large(claimed, bytes_max));
    let (form, encoding) = match content.and_then(|content| is_too_large.map_or(Ok(content), Err)) {
        Ok(content) => content,
        Err(error) => {
            if is_discarded {
                discard(&mut body).await;
            }
            return Err(error);
        }
    };
    let mut bytes = Vec::with_capacity(claimed);
    let mut received = api.bodies.budget.body(client);
    while let Some(chunk) = next(&mut body).await {
        let chunk = chunk.map_err(|error| ApiError::bad_request(format!("failed to read the body: {error}")))?;
        if bytes.len() + chunk.len() > bytes_max {
            discard(&mut body).await;
            return Err(ApiError::too_large(bytes.len() + chunk.len(), bytes_max));
        }
        if let Err(reached) = received.add(chunk.len()) {
            drop((bytes, received));
            discard(&mut body).await;
            return Err(reached.into());
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(ReceivedBody { api: Arc::clone(api), form, encoding, bytes, received })
}

/// Reads and discards the body of a rejected request.
pub(super) async fn discard_body(request: Request) {
    if is_discarded(request.headers()) {
        discard(&mut request.into_body().into_data_stream()).await;
    }
}

/// Bytes that a body is declared to have; none if it is chunked.
fn claimed_bytes(headers: &HeaderMap) -> usize {
    headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok()).unwrap_or(0)
}

/// Whether the body of a rejected request is read. A client that expects `100 Continue` has not sent it.
fn is_discarded(headers: &HeaderMap) -> bool {
    !headers.contains_key(EXPECT) && claimed_bytes(headers) <= DISCARDED_BYTES_MAX
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
        check_utf8(&parts.uri)?;
        let query = Query::<T>::from_request_parts(parts, state).await;
        let Query(parameters) = query.map_err(|error| {
            let why = error.source().map_or_else(|| error.body_text(), ToString::to_string);
            ApiError::bad_request(does_not_fit(&why))
        })?;
        Ok(Self(parameters))
    }
}

/// Rejects a query string that is not UTF-8. Other bytes would be read as one replacement character, and two salts would become one.
pub(super) fn check_utf8(uri: &Uri) -> Result<(), ApiError> {
    let mut fields = uri.query().unwrap_or_default().split('&');
    let Some(field) = fields.find(|field| percent_decode_str(field).decode_utf8().is_err()) else { return Ok(()) };
    let name = field.split('=').next().unwrap_or_default();
    Err(ApiError::bad_request(does_not_fit(&format!("{name}: not UTF-8; percent-encode the bytes of UTF-8 text"))))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    #[test]
    fn a_rejected_body_is_read_unless_it_is_awaited_or_huge() {
        let discards = |name: &'static str, value: &str| {
            is_discarded(&HeaderMap::from_iter([(HeaderName::from_static(name), value.parse().expect("a value"))]))
        };
        assert!(discards("content-length", "104857600") && discards("transfer-encoding", "chunked"));
        assert!(!discards("content-length", "1000000000000000000") && !discards("expect", "100-continue"));
    }
}
