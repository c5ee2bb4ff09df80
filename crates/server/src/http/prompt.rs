//! Requests with a prompt, received as JSON or as a binary body.

use std::sync::Arc;

use axum::extract::{FromRequest, Query, Request};
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use flash_indexer_api::{PromptNumber, PromptRequest, body_error, does_not_fit, read_binary};
use flash_indexer_traces::{Stage, stage};

use super::Api;
use super::content::{AcceptedForms, BodyForm};
use super::error::ApiError;
use super::extract::{self, ReceivedBody, parse_lenient, unfit};

/// Extractor of a request with a prompt, which is not parsed yet.
pub(super) struct PromptBody {
    body: ReceivedBody,
    uri: Uri,
}

/// Request with a prompt.
pub(super) struct ParsedRequest<T> {
    pub(super) request: T,
    /// The JSON of the request; empty for a binary body.
    pub(super) json: Vec<u8>,
}

impl FromRequest<Arc<Api>> for PromptBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, ApiError> {
        let uri = request.uri().clone();
        let body = extract::receive(request, api, AcceptedForms::JsonOrBinary).await?;
        Ok(Self { body, uri })
    }
}

impl PromptBody {
    /// Parses the request and answers it: on the threads for large requests if its body is large.
    pub(super) async fn answer<T, R, F>(
        self,
        answer: impl FnOnce(ParsedRequest<T>) -> F + Send + 'static,
    ) -> Result<Response, ApiError>
    where
        T: PromptRequest + Send,
        R: IntoResponse,
        F: Future<Output = Result<R, ApiError>> + Send + 'static,
    {
        let Self { body, uri } = self;
        let answer = async move |form, body: Vec<u8>| {
            let parse = stage(Stage::Parse);
            let prompted = match form {
                BodyForm::Json => {
                    let read = |json: &[u8]| {
                        T::Number::read_json(json).map_err(|error| unfit(&error, &body_error::<T>(&error, json)))
                    };
                    let (request, json) = parse_lenient(&body, read)?;
                    ParsedRequest { request, json: json.unwrap_or(body) }
                }
                BodyForm::Binary => ParsedRequest { request: from_binary(&body, &uri)?, json: Vec::new() },
            };
            drop(parse);
            let answer = answer(prompted).await?;
            let _answer = stage(Stage::Answer);
            Ok(answer.into_response())
        };
        body.process(answer).await
    }
}

/// Reads a binary body and the other fields of the request in the query string.
fn from_binary<T: PromptRequest>(body: &[u8], uri: &Uri) -> Result<T, ApiError> {
    extract::check_utf8(uri)?;
    let pairs = Query::try_from_uri(uri).map_err(|error| ApiError::bad_request(does_not_fit(&error.body_text())));
    let Query(fields) = pairs?;
    read_binary(body, fields).map_err(ApiError::bad_request)
}
