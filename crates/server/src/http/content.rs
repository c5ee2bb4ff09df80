//! Content type of a request's body.

use axum::http::HeaderMap;
use axum::http::header::{CONTENT_TYPE, ORIGIN};

use flash_indexer_types::names::shortened;

use super::error::ApiError;

/// Content type of binary bodies.
const OCTET_STREAM: &str = "application/octet-stream";

/// Forms of a body that an endpoint accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AcceptedForms {
    Json,
    JsonOrBinary,
}

/// Form of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyForm {
    Json,
    /// Numbers in little-endian order; the other fields are in the query string.
    Binary,
}

impl BodyForm {
    /// The form of a body with these headers. Rejects a body that a web page of another origin may have sent without a CORS
    /// preflight.
    ///
    /// A browser sends a preflight before `application/json` and `application/octet-stream`. The other accepted types are
    /// the defaults of clients such as `curl -d`; a browser adds `Origin` or `Sec-Fetch-Site` to requests with these types.
    pub(super) fn of(headers: &HeaderMap, accepted: AcceptedForms) -> Result<Self, ApiError> {
        let given = headers.get(CONTENT_TYPE).map(|given| given.to_str().unwrap_or_default());
        let essence = given.map(|given| given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
        let is_of_browser = headers.contains_key(ORIGIN) || headers.contains_key("sec-fetch-site");
        match essence.as_deref() {
            Some("application/json") => Ok(Self::Json),
            Some(essence) if essence.starts_with("application/") && essence.ends_with("+json") => Ok(Self::Json),
            None | Some("application/x-www-form-urlencoded") if !is_of_browser => Ok(Self::Json),
            Some(OCTET_STREAM) if accepted == AcceptedForms::JsonOrBinary => Ok(Self::Binary),
            None | Some(_) => {
                let given = shortened(given.unwrap_or("none"));
                let json = "send JSON with the header content-type: application/json";
                let binary = match accepted {
                    AcceptedForms::Json => "",
                    AcceptedForms::JsonOrBinary => ", or little-endian numbers with application/octet-stream",
                };
                Err(ApiError::unsupported_type(format!("the body's content type is {given:?}: {json}{binary}")))
            }
        }
    }
}
