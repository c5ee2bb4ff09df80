//! Attempts of a request within a deadline.

use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Method, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout_at};

use crate::error::ClientError;

/// Attempts of one call.
const ATTEMPTS_MAX: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Largest answer that is read.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// Part of an unknown error's body that is quoted.
const QUOTED_CHARS_MAX: usize = 200;

/// Connections to a service.
#[derive(Debug, Clone)]
pub(crate) struct Sender {
    pub(crate) http: reqwest::Client,
    pub(crate) url: String,
    pub(crate) token: Option<String>,
    pub(crate) deadline: Duration,
}

/// One request of an endpoint.
pub(crate) struct Call {
    method: Method,
    path: &'static str,
    parameters: Vec<(&'static str, String)>,
    body: Option<(&'static str, Vec<u8>)>,
    /// Whether a repeated request has no additional effect.
    is_repeatable: bool,
}

struct Answer {
    status: StatusCode,
    retry_after: Option<Duration>,
    body: Vec<u8>,
}

impl Call {
    pub(crate) fn get(path: &'static str) -> Self {
        Self { method: Method::GET, path, parameters: Vec::new(), body: None, is_repeatable: true }
    }

    pub(crate) fn json(path: &'static str, body: &impl Serialize) -> Result<Self, ClientError> {
        let bytes = serde_json::to_vec(body).map_err(|source| ClientError::Answer { path, source })?;
        Ok(Self { method: Method::POST, body: Some(("application/json", bytes)), ..Self::get(path) })
    }

    /// A body of little-endian tokens or hashes, whose other fields are in the query string.
    pub(crate) fn binary(path: &'static str, body: Vec<u8>, parameters: Vec<(&'static str, String)>) -> Self {
        let body = Some(("application/octet-stream", body));
        Self { method: Method::POST, body, parameters, ..Self::get(path) }
    }

    pub(crate) fn not_repeatable(self) -> Self {
        Self { is_repeatable: false, ..self }
    }
}

impl Sender {
    /// Makes the attempts of a call, all before the deadline, and reads the answer.
    pub(crate) async fn send<T: DeserializeOwned>(&self, call: Call) -> Result<T, ClientError> {
        let (path, answer) = (call.path, self.answer(&call).await?);
        if !answer.status.is_success() {
            return Err(refused(&answer));
        }
        serde_json::from_slice(&answer.body).map_err(|source| ClientError::Answer { path, source })
    }

    async fn answer(&self, call: &Call) -> Result<Answer, ClientError> {
        let url = self.url_of(call)?;
        let late = || ClientError::Deadline { path: call.path, deadline: self.deadline };
        let deadline = Instant::now() + self.deadline;
        for attempt in 1.. {
            let result = timeout_at(deadline, self.attempt(call, url.clone())).await.map_err(|_| late())?;
            let is_last = attempt == ATTEMPTS_MAX;
            let pause = match &result {
                Ok(answer) if is_refused_for_now(answer.status) && !is_last => {
                    answer.retry_after.unwrap_or_default().max(pause(attempt))
                }
                Err(ClientError::Connection { source, .. })
                    if !is_last && (call.is_repeatable || source.is_connect()) =>
                {
                    pause(attempt)
                }
                _ => return result,
            };
            // A pause that ends after the deadline is skipped: the last outcome is the result.
            if Instant::now() + pause >= deadline {
                return result;
            }
            sleep(pause).await;
        }
        unreachable!("the last attempt returns")
    }

    async fn attempt(&self, call: &Call, url: Url) -> Result<Answer, ClientError> {
        let mut request = self.http.request(call.method.clone(), url).header(ACCEPT, "application/json");
        if let Some((content_type, body)) = &call.body {
            request = request.header(CONTENT_TYPE, *content_type).body(body.clone());
        }
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let failed =
            |error: reqwest::Error| ClientError::Connection { url: self.url.clone(), source: error.without_url() };
        let mut response = request.send().await.map_err(failed)?;
        let seconds = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let mut body = Vec::new();
        while let Some(part) = response.chunk().await.map_err(failed)? {
            if body.len() + part.len() > ANSWER_BYTES_MAX {
                return Err(ClientError::TooLarge { path: call.path, bytes_max: ANSWER_BYTES_MAX });
            }
            body.extend_from_slice(&part);
        }
        Ok(Answer { status: response.status(), retry_after: seconds.map(Duration::from_secs), body })
    }

    fn url_of(&self, call: &Call) -> Result<Url, ClientError> {
        let mut url = self.base_url()?;
        url.set_path(&format!("{}{}", url.path().trim_end_matches('/'), call.path));
        if !call.parameters.is_empty() {
            url.query_pairs_mut().extend_pairs(&call.parameters);
        }
        Ok(url)
    }

    /// The URL of the service, checked.
    pub(crate) fn base_url(&self) -> Result<Url, ClientError> {
        let wrong = |cause: String| ClientError::Url { url: self.url.clone(), cause };
        let url = Url::parse(&self.url).map_err(|error| wrong(error.to_string()))?;
        match url.scheme() {
            "http" | "https" => Ok(url),
            _ => Err(wrong("its scheme is neither http nor https".to_owned())),
        }
    }
}

fn is_refused_for_now(status: StatusCode) -> bool {
    matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
}

/// Between a half and the whole of a time that doubles with each attempt, so clients do not retry all at once.
fn pause(attempt: u32) -> Duration {
    let longest = FIRST_PAUSE * 2_u32.pow(attempt - 1);
    let share = getrandom::u32().map_or(1.0, |random| f64::from(random) / f64::from(u32::MAX));
    longest.mul_f64(0.5 + share / 2.0)
}

fn refused(answer: &Answer) -> ClientError {
    #[derive(Deserialize)]
    struct Body {
        error: String,
    }
    let message = serde_json::from_slice(&answer.body).map_or_else(
        |_| String::from_utf8_lossy(&answer.body).chars().take(QUOTED_CHARS_MAX).collect(),
        |Body { error }| error,
    );
    ClientError::Refused { status: answer.status.as_u16(), message }
}
