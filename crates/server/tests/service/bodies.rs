//! Binary and compressed bodies get the same answers as JSON.

use std::io::Write;

use flash_indexer_core::hashing::{BlockSize, HashVariant, TokenWindow, local_hashes};
use flash_indexer_server::ServerOptions;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tonic::Code;
use tonic::codec::CompressionEncoding;

use crate::support::proto::indexer_service_client::IndexerServiceClient;
use crate::support::proto::router_service_client::RouterServiceClient;
use crate::support::proto::{GetPodScoresRequest, PredictRequest, QueryRequest};
use crate::support::{BLOCK_TOKENS, Engine, Service, stored, tokens};

const BINARY: (&str, &str) = ("content-type", "application/octet-stream");
const JSON: (&str, &str) = ("content-type", "application/json");

fn little_endian(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

fn hashes(tokens: &[u32]) -> Vec<u64> {
    let size = BlockSize::new(BLOCK_TOKENS).expect("not zero");
    local_hashes(HashVariant::default(), tokens, size, TokenWindow::Block).iter().map(|local| local.0).collect()
}

fn hash_bytes(tokens: &[u32]) -> Vec<u8> {
    hashes(tokens).into_iter().flat_map(u64::to_le_bytes).collect()
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(body).expect("memory takes everything");
    encoder.finish().expect("memory takes everything")
}

fn zstd(body: &[u8]) -> Vec<u8> {
    zstd::encode_all(body, 3).expect("memory takes everything")
}

/// A service with two engines: `pod-a` holds the blocks 1, 2 and 3, and `7` holds block 1.
fn fleet(body_bytes_max: usize) -> (Service, [Engine; 2]) {
    let service = Service::start_with(ServerOptions { grpc_port: Some(0), body_bytes_max, ..ServerOptions::default() });
    let first = Engine::registered(&service, json!("pod-a"), 0, &json!({}));
    let second = Engine::registered(&service, json!(7), 0, &json!({}));
    first.say(&service, 0, &[stored(None, &[1, 2, 3])]);
    second.say(&service, 0, &[stored(None, &[1])]);
    (service, [first, second])
}

/// The error text of a refused request.
fn error((status, answer): (u16, Value)) -> (u16, String) {
    (status, answer["error"].as_str().unwrap_or_else(|| panic!("no error in {status} {answer}")).to_owned())
}

#[test]
fn a_binary_body_is_answered_as_the_same_request_in_json() {
    let (service, _engines) = fleet(8 << 20);
    let prompt = tokens(&[1, 2, 3, 4]);
    let with = |list: Value, fields: Value| {
        let mut request = json!({ "model_name": "m" });
        for (name, value) in list.as_object().into_iter().chain(fields.as_object()).flatten() {
            request[name] = value.clone();
        }
        request
    };
    let by_tokens = |fields| with(json!({ "token_ids": prompt }), fields);
    let (bytes, hash_bytes) = (little_endian(&prompt), hash_bytes(&prompt));
    let cases = [
        ("/query", "", by_tokens(json!({})), &bytes),
        ("/query", "&top_k=1", by_tokens(json!({ "top_k": 1 })), &bytes),
        ("/query", "&min_score=8", by_tokens(json!({ "min_score": 8 })), &bytes),
        ("/query", "&cache_salt=a%20b", by_tokens(json!({ "cache_salt": "a b" })), &bytes),
        (
            "/query_by_hash",
            "&top_k=1",
            with(json!({ "block_hashes": hashes(&prompt) }), json!({ "top_k": 1 })),
            &hash_bytes,
        ),
        ("/score_completions", "", by_tokens(json!({})), &bytes),
        (
            "/score_completions",
            "&detail=true&pods=7&pods=x",
            by_tokens(json!({ "detail": true, "pods": [7, "x"] })),
            &bytes,
        ),
        ("/score_completions", "&truncate_prompt_tokens=4", by_tokens(json!({ "truncate_prompt_tokens": 4 })), &bytes),
        (
            "/score_completions",
            "&truncate_prompt_tokens=%2B4&add_special_tokens=yes",
            by_tokens(json!({ "truncate_prompt_tokens": "+4", "add_special_tokens": "yes" })),
            &bytes,
        ),
        ("/explain", "&instance_id=7&hashes=string", by_tokens(json!({ "instance_id": 7 })), &bytes),
        ("/predict", "&pod=pod-a&ttl_ms=1", by_tokens(json!({ "pod": "pod-a", "ttl_ms": 1 })), &bytes),
    ];
    for (path, fields, request, body) in cases {
        let in_query = if path == "/explain" { "?hashes=string" } else { "" };
        let expected = service.post(&format!("{path}{in_query}"), &request);
        assert_eq!(expected.0, 200, "{path} {request}: {}", expected.1);
        let answered = service.post_bytes(&format!("{path}?model_name=m{fields}"), &[BINARY], body);
        assert_eq!(answered, expected, "{path} {fields}");
    }
    let none = service.post_bytes("/query?model_name=m", &[BINARY], &[]);
    assert_eq!(none, service.post("/query", &json!({ "token_ids": [], "model_name": "m" })));
}

#[test]
fn a_wrong_binary_body_is_refused_with_what_to_send() {
    let (service, _engines) = fleet(8 << 20);
    let body = little_endian(&tokens(&[1]));
    let cases: [(&str, &[u8], u16, &str); 13] = [
        ("/query?model_name=m", &body[..15], 400, "15 bytes, which is not a multiple of 4"),
        ("/query_by_hash?model_name=m", &body[..12], 400, "12 bytes, which is not a multiple of 8"),
        ("/query", &body, 422, "model_name"),
        ("/query?model_name=m&top_k=0", &body, 400, "top_k: expected a whole number of at least 1, got 0"),
        (
            "/query?model_name=m&top_k=few",
            &body,
            400,
            "top_k: expected a whole number of at least 1, got the string \"few\"",
        ),
        ("/query?model_name=m&top_k=null", &body, 400, "top_k has an invalid value"),
        ("/query?model_name=m&top_k=1&top_k=2", &body, 400, "duplicate field `top_k`"),
        ("/query?model_name=m&model=n", &body, 400, "names of one field"),
        ("/query?model_name=m&token_ids=1", &body, 400, "token_ids is in the body"),
        ("/query_by_hash?model_name=m&block_hashes=1", &body, 400, "block_hashes is in the body"),
        ("/score_completions?model_name=m&prompt=x", &body, 400, "alternatives"),
        ("/predict?model_name=m", &body, 422, "missing field `pod`"),
        ("/register?model_name=m", &body, 415, "application/json"),
    ];
    for (path, body, status, part) in cases {
        let (found, error) = error(service.post_bytes(path, &[BINARY], body));
        assert_eq!(found, status, "{path}: {error}");
        assert!(error.contains(part), "{path}: {error}");
    }
    let (status, error) = error(service.post_bytes("/query?model_name=m", &[("content-type", "text/plain")], &body));
    assert!(status == 415 && error.contains("application/octet-stream"), "{status} {error}");
}

#[test]
fn compressed_bodies_are_answered_as_plain_ones() {
    let (service, _engines) = fleet(8 << 20);
    let request = json!({ "token_ids": tokens(&[1, 2, 3]), "model_name": "m" });
    let (json, binary) = (request.to_string(), little_endian(&tokens(&[1, 2, 3])));
    let expected = service.post("/query", &request);
    assert_eq!(expected.0, 200, "{}", expected.1);
    let two_members = [gzip(&json.as_bytes()[..9]), gzip(&json.as_bytes()[9..])].concat();
    for (encoding, body) in [
        ("gzip", gzip(json.as_bytes())),
        ("GZIP", two_members),
        ("x-gzip", gzip(json.as_bytes())),
        ("zstd", zstd(json.as_bytes())),
        ("identity, zstd", zstd(json.as_bytes())),
        ("identity", json.clone().into_bytes()),
    ] {
        let answered = service.post_bytes("/query", &[JSON, ("content-encoding", encoding)], &body);
        assert_eq!(answered, expected, "{encoding}");
    }
    let many_members = gzip(b"").repeat(1_000);
    let (status, answer) = service.post_bytes("/query", &[JSON, ("content-encoding", "gzip")], &many_members);
    assert!(status == 400 && answer.to_string().contains("gzip members; send one"), "{status} {answer}");
    for (encoding, body) in [("gzip", gzip(&binary)), ("zstd", zstd(&binary))] {
        let answered = service.post_bytes("/query?model_name=m", &[BINARY, ("content-encoding", encoding)], &body);
        assert_eq!(answered, expected, "{encoding}");
    }
    let unregister = json!({ "instance_id": 7, "model_name": "m" }).to_string();
    let answered =
        service.post_bytes("/unregister", &[JSON, ("content-encoding", "gzip")], &gzip(unregister.as_bytes()));
    assert_eq!(answered.0, 200, "{}", answered.1);
}

#[test]
fn a_body_is_bounded_after_it_is_decompressed_too() {
    let limit = 100_000;
    let (service, _engines) = fleet(limit);
    let (whole, beyond) = (vec![b' '; limit], vec![b' '; 500 * limit]);
    for (encoding, whole, bomb) in [("gzip", gzip(&whole), gzip(&beyond)), ("zstd", zstd(&whole), zstd(&beyond))] {
        assert!(bomb.len() < limit, "{encoding}: {} bytes", bomb.len());
        let headers = [JSON, ("content-encoding", encoding)];
        let (status, refused) = error(service.post_bytes("/query", &headers, &whole));
        assert!(status == 400 && refused.contains("not JSON"), "{encoding}: {status} {refused}");
        let (status, refused) = error(service.post_bytes("/query", &headers, &bomb));
        assert!(status == 413 && refused.contains("--body-bytes-max"), "{encoding}: {status} {refused}");
    }
    let refused = service.metrics().value("flash_indexer_limit_reached_total", &[("limit", "body_bytes")]);
    assert_eq!(refused, 2.0);
}

#[test]
fn an_unknown_or_broken_encoding_is_refused_with_what_to_send() {
    let (service, _engines) = fleet(8 << 20);
    let body = json!({ "token_ids": [1], "model_name": "m" }).to_string();
    for encoding in ["br", "deflate", "gzip, zstd", "gzip, gzip", "zstandard"] {
        let (status, error) =
            error(service.post_bytes("/query", &[JSON, ("content-encoding", encoding)], body.as_bytes()));
        assert!(status == 415 && error.contains("gzip, zstd"), "{encoding}: {status} {error}");
        assert!(error.contains(encoding), "{encoding}: {error}");
    }
    // A frame that asks for a window of 16 MiB.
    let wide = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x70, 0x01, 0x00, 0x00];
    let (packed, smaller) = (gzip(body.as_bytes()), zstd(body.as_bytes()));
    for (encoding, body) in [
        ("gzip", body.as_bytes()),
        ("zstd", body.as_bytes()),
        ("gzip", &packed[..packed.len() - 9]),
        ("zstd", &smaller[..smaller.len() - 9]),
        ("zstd", &wide),
        ("gzip", &[]),
    ] {
        let (status, error) = error(service.post_bytes("/query", &[JSON, ("content-encoding", encoding)], body));
        assert!(status == 400 && error.contains("failed to decompress the body"), "{encoding}: {status} {error}");
    }
    assert_eq!(service.get("/health").0, 200);
}

#[test]
fn rpcs_take_numbers_as_bytes() {
    let (service, _engines) = fleet(8 << 20);
    let prompt = tokens(&[1, 2, 3, 4]);
    let mut router = RouterServiceClient::new(service.channel());
    let mut query = |request: QueryRequest| {
        let request = QueryRequest { model_name: "m".to_owned(), ..request };
        service.block_on(router.query(request)).map(|answer| answer.into_inner().ranks)
    };
    let plain = query(QueryRequest { token_ids: prompt.clone(), ..QueryRequest::default() }).expect("an answer");
    assert_eq!(plain.iter().map(|rank| rank.gpu).collect::<Vec<_>>(), [4, 12]);
    let binary = QueryRequest { token_bytes: little_endian(&prompt), ..QueryRequest::default() };
    assert_eq!(query(binary.clone()).expect("an answer"), plain);
    let hashed = QueryRequest { hash_bytes: hash_bytes(&prompt), ..QueryRequest::default() };
    assert_eq!(query(hashed.clone()).expect("an answer"), plain);

    let mut refused = |request: QueryRequest, part: &str| {
        let status = query(request).expect_err("it is refused");
        assert!(status.code() == Code::InvalidArgument && status.message().contains(part), "{status}");
    };
    refused(QueryRequest { token_ids: vec![1], ..binary.clone() }, "token_ids and token_bytes");
    refused(QueryRequest { block_hashes: vec![1], ..hashed.clone() }, "block_hashes and hash_bytes");
    refused(QueryRequest { hash_bytes: hash_bytes(&prompt), ..binary.clone() }, "alternatives");
    refused(QueryRequest { cache_salt: "x".to_owned(), ..hashed.clone() }, "cache_salt");
    refused(QueryRequest { token_bytes: vec![0; 7], ..QueryRequest::default() }, "7 bytes");
    refused(QueryRequest { hash_bytes: vec![0; 12], ..QueryRequest::default() }, "12 bytes");

    let predict = PredictRequest {
        model_name: "m".to_owned(),
        pod: "7".to_owned(),
        token_bytes: little_endian(&prompt),
        ..PredictRequest::default()
    };
    let mut router = RouterServiceClient::new(service.channel());
    assert_eq!(service.block_on(router.predict(predict.clone())).expect("it is recorded").into_inner().blocks, 4);
    let both = service.block_on(router.predict(PredictRequest { token_ids: vec![1], ..predict }));
    assert_eq!(both.expect_err("it is refused").code(), Code::InvalidArgument);

    let mut scores = IndexerServiceClient::new(service.channel());
    let mut score = |request: GetPodScoresRequest| service.block_on(scores.get_pod_scores(request));
    let request = GetPodScoresRequest {
        model_name: "m".to_owned(),
        token_bytes: little_endian(&prompt),
        ..GetPodScoresRequest::default()
    };
    let found = score(request.clone()).expect("scores").into_inner().scores;
    let found: Vec<_> = found.iter().map(|pod| (pod.pod.as_str(), pod.score)).collect();
    assert_eq!(found, [("7", 4.0), ("pod-a", 3.0)]);
    let both = score(GetPodScoresRequest { prompt: Some("text".to_owned()), ..request });
    assert_eq!(both.expect_err("it is refused").code(), Code::InvalidArgument);
}

#[test]
fn rpcs_may_be_compressed_and_are_bounded_after_it() {
    let (service, _engines) = fleet(10_000);
    let query = |tokens: &[u32]| QueryRequest {
        model_name: "m".to_owned(),
        token_bytes: little_endian(tokens),
        ..QueryRequest::default()
    };
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Zstd] {
        let mut router = RouterServiceClient::new(service.channel()).send_compressed(encoding);
        let answer = service.block_on(router.query(query(&tokens(&[1, 2])))).expect("an answer").into_inner();
        assert_eq!(answer.ranks.iter().map(|rank| rank.gpu).collect::<Vec<_>>(), [4, 8]);
        let bomb = service.block_on(router.query(query(&vec![0; 1_000_000]))).expect_err("it is refused");
        assert_eq!(bomb.code(), Code::ResourceExhausted, "{bomb}");
    }
}
