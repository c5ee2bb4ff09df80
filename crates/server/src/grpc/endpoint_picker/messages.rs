//! Messages to and from Envoy.

use std::net::{IpAddr, SocketAddr};

use flash_indexer_proto::ext_proc::body_mutation::Mutation;
use flash_indexer_proto::ext_proc::header_value_option::HeaderAppendAction;
use flash_indexer_proto::ext_proc::processing_response::Response;
use flash_indexer_proto::ext_proc::{
    BodyMutation, BodyResponse, CommonResponse, HeaderMap, HeaderMutation, HeaderValue, HeaderValueOption,
    HeadersResponse, HttpStatus, ImmediateResponse, Metadata, ProcessingResponse, StreamedBodyResponse,
};
use flash_indexer_proto::google::value::Kind;
use flash_indexer_proto::google::{Struct, Value};

/// Header, and field of the metadata, with the address of the picked instance.
const DESTINATION: &str = "x-gateway-destination-endpoint";
/// Namespace of the metadata with the address.
const DESTINATION_NAMESPACE: &str = "envoy.lb";
/// Field of the metadata that names the addresses from which one is picked.
const SUBSET: &str = "x-gateway-destination-endpoint-subset";
const SUBSET_NAMESPACE: &str = "envoy.lb.subset_hint";

/// Addresses that a gateway permits for a request. One of them is picked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subset(Vec<String>);

impl Subset {
    /// The subset that the metadata of a request names, in a list or in a text with commas; none if it names none.
    pub(super) fn of(metadata: &Metadata) -> Option<Self> {
        let value = metadata.filter_metadata.get(SUBSET_NAMESPACE)?.fields.get(SUBSET)?;
        let texts: Vec<&str> = match value.kind.as_ref()? {
            Kind::StringValue(text) => vec![text],
            Kind::ListValue(list) => list.values.iter().filter_map(text_of).collect(),
            _ => return None,
        };
        let addresses = texts.into_iter().flat_map(|text| text.split(',')).map(str::trim);
        Some(Self(addresses.filter(|address| !address.is_empty()).map(str::to_owned).collect()))
    }

    /// Whether it has an address, with its port or without one.
    pub(super) fn admits(&self, address: SocketAddr) -> bool {
        let is_it = |text: &String| {
            text.parse().is_ok_and(|given: SocketAddr| given == address)
                || text.parse().is_ok_and(|given: IpAddr| given == address.ip())
        };
        self.0.iter().any(is_it)
    }
}

fn text_of(value: &Value) -> Option<&str> {
    match &value.kind {
        Some(Kind::StringValue(text)) => Some(text),
        _ => None,
    }
}

/// The value of a header.
pub(super) fn header<'m>(headers: Option<&'m HeaderMap>, name: &str) -> Option<&'m str> {
    let header = headers?.headers.iter().find(|header| header.key == name)?;
    match header.raw_value.is_empty() {
        true => Some(&header.value),
        false => std::str::from_utf8(&header.raw_value).ok(),
    }
}

fn set(name: &str, value: String) -> HeaderMutation {
    let header = Some(HeaderValue { key: name.to_owned(), value: String::new(), raw_value: value.into_bytes() });
    let append_action = HeaderAppendAction::OverwriteIfExistsOrAdd.into();
    HeaderMutation { set_headers: vec![HeaderValueOption { header, append_action }] }
}

/// The part of a response that continues a part of the request with the address of the picked instance.
pub(super) fn with_destination(address: SocketAddr) -> CommonResponse {
    // The route may depend on the header.
    let header_mutation = Some(set(DESTINATION, address.to_string()));
    CommonResponse { header_mutation, clear_route_cache: true, ..CommonResponse::default() }
}

/// Metadata with the address of the picked instance.
pub(super) fn destination_metadata(address: SocketAddr) -> Struct {
    let text = Value { kind: Some(Kind::StringValue(address.to_string())) };
    let inner = Struct { fields: [(DESTINATION.to_owned(), text)].into() };
    let inner = Value { kind: Some(Kind::StructValue(inner)) };
    Struct { fields: [(DESTINATION_NAMESPACE.to_owned(), inner)].into() }
}

pub(super) fn request_headers(response: CommonResponse) -> Response {
    Response::RequestHeaders(HeadersResponse { response: Some(response) })
}

pub(super) fn response_headers() -> Response {
    Response::ResponseHeaders(HeadersResponse { response: Some(CommonResponse::default()) })
}

pub(super) fn request_body(response: CommonResponse) -> Response {
    Response::RequestBody(BodyResponse { response: Some(response) })
}

pub(super) fn response_body(response: CommonResponse) -> Response {
    Response::ResponseBody(BodyResponse { response: Some(response) })
}

/// A chunk of a body in the mode `FULL_DUPLEX_STREAMED`.
pub(super) fn chunk(body: Vec<u8>, end_of_stream: bool) -> CommonResponse {
    let streamed = Mutation::StreamedResponse(StreamedBodyResponse { body, end_of_stream });
    let body_mutation = Some(BodyMutation { mutation: Some(streamed) });
    CommonResponse { body_mutation, ..CommonResponse::default() }
}

/// An answer to the client instead of the request: a JSON error.
pub(super) fn refusal(code: u16, error: &str) -> Response {
    let body = serde_json::json!({ "error": { "message": error, "code": code } }).to_string().into_bytes();
    Response::ImmediateResponse(ImmediateResponse {
        status: Some(HttpStatus { code: code.into() }),
        headers: Some(set("content-type", "application/json".to_owned())),
        body,
        details: "endpoint_picker".to_owned(),
    })
}

/// A response without metadata and without another mode.
pub(super) fn plain(response: Response) -> ProcessingResponse {
    ProcessingResponse { response: Some(response), ..ProcessingResponse::default() }
}

#[cfg(test)]
mod tests {
    use flash_indexer_proto::google::ListValue;

    use super::*;

    fn text(text: &str) -> Value {
        Value { kind: Some(Kind::StringValue(text.to_owned())) }
    }

    fn metadata(value: Value) -> Metadata {
        let subset = Struct { fields: [(SUBSET.to_owned(), value)].into() };
        Metadata { filter_metadata: [(SUBSET_NAMESPACE.to_owned(), subset)].into() }
    }

    #[test]
    fn a_subset_is_a_list_or_a_text_with_commas() {
        let list = ListValue { values: vec![text("10.0.0.1:8000"), Value::default(), text("10.0.0.2")] };
        for value in [text("10.0.0.1:8000, 10.0.0.2,"), Value { kind: Some(Kind::ListValue(list)) }] {
            let subset = Subset::of(&metadata(value)).expect("a subset");
            let admits = |address: &str| subset.admits(address.parse().expect("an address"));
            assert!(admits("10.0.0.1:8000") && admits("10.0.0.2:9"));
            assert!(!admits("10.0.0.1:8001") && !admits("10.0.0.3:8000"));
        }
        assert_eq!(Subset::of(&Metadata::default()), None);
        assert_eq!(Subset::of(&metadata(text(""))), Some(Subset(Vec::new())), "it permits no address");
    }

    #[test]
    fn a_header_is_text_or_bytes() {
        let of = |key: &str, value: &str, raw: &[u8]| HeaderValue {
            key: key.to_owned(),
            value: value.to_owned(),
            raw_value: raw.to_vec(),
        };
        let headers = HeaderMap { headers: vec![of("a", "1", b""), of(":path", "", b"/x"), of("c", "", b"\xff")] };
        assert_eq!(header(Some(&headers), "a"), Some("1"));
        assert_eq!(header(Some(&headers), ":path"), Some("/x"));
        assert_eq!(header(Some(&headers), "c"), None);
        assert_eq!(header(None, "a"), None);
    }
}
