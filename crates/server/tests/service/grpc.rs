//! gRPC gives the same answers as HTTP.

use std::pin::Pin;
use std::task::{Context, Poll};

use flash_indexer_core::hashing::{BlockSize, HashVariant, TokenWindow, local_hashes};
use flash_indexer_server::ServerOptions;
use flash_indexer_test_support::wait_for;
use futures_core::Stream;
use serde_json::json;
use tokio::sync::mpsc;
use tonic::transport::Channel;
use tonic::{Code, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

use crate::support::proto::indexer_service_client::IndexerServiceClient;
use crate::support::proto::router_service_client::RouterServiceClient;
use crate::support::proto::{
    DoneRequest, GetPodScoresRequest, PickRequest, PredictRequest, QueryRequest, QueryResponse, RequestPhase,
};
use crate::support::{BLOCK_TOKENS, Engine, PATIENCE, Service, stored, tokens};

fn service(body_bytes_max: usize) -> (Service, Channel) {
    let service = Service::start_with(ServerOptions { grpc_port: Some(0), body_bytes_max, ..ServerOptions::default() });
    let channel = service.channel();
    (service, channel)
}

fn query(blocks: &[u64]) -> QueryRequest {
    QueryRequest { model_name: "m".to_owned(), token_ids: tokens(blocks), ..QueryRequest::default() }
}

/// Messages of a test, sent one after the other.
pub(crate) struct Sent<T>(pub(crate) mpsc::Receiver<T>);

impl<T> Stream for Sent<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.poll_recv(context)
    }
}

#[test]
fn pods_are_scored_as_over_http() {
    let (service, channel) = service(8 << 20);
    let first = Engine::registered(&service, json!("pod-a"), 0, &json!({}));
    let second = Engine::registered(&service, json!(2), 0, &json!({}));
    first.say(&service, 0, &[stored(None, &[1, 2, 3])]);
    second.say(&service, 0, &[stored(None, &[1])]);
    let mut client = IndexerServiceClient::new(channel.clone());
    let request = GetPodScoresRequest {
        model_name: "m".to_owned(),
        token_ids: tokens(&[1, 2, 3, 4]),
        ..GetPodScoresRequest::default()
    };
    let mut scores = |request: GetPodScoresRequest| {
        let answer = service.block_on(client.get_pod_scores(request));
        let answer = answer.map(tonic::Response::into_inner);
        answer.map(|answer| answer.scores.into_iter().map(|pod| (pod.pod, pod.score)).collect::<Vec<_>>())
    };
    let pod = |name: &str, score: f64| (name.to_owned(), score);
    assert_eq!(scores(request.clone()).expect("scores"), [pod("2", 1.0), pod("pod-a", 3.0)]);
    let filter = GetPodScoresRequest { pod_identifiers: vec!["pod-a".to_owned()], ..request.clone() };
    assert_eq!(scores(filter).expect("scores"), [pod("pod-a", 3.0)]);
    let best = GetPodScoresRequest { top_k: 1, ..request.clone() };
    assert_eq!(scores(best).expect("scores"), [pod("pod-a", 3.0)]);
    let salted = GetPodScoresRequest { cache_salt: "x".to_owned(), ..request.clone() };
    assert_eq!(scores(salted).expect("scores"), []);

    let predict = PredictRequest {
        model_name: "m".to_owned(),
        token_ids: tokens(&[1, 2, 3, 4]),
        pod: "2".to_owned(),
        ttl_ms: 600_000,
        ..PredictRequest::default()
    };
    let mut router = RouterServiceClient::new(channel);
    let predicted = service.block_on(router.predict(predict.clone())).expect("it is recorded");
    assert_eq!(predicted.into_inner().blocks, 4);
    assert_eq!(scores(request.clone()).expect("scores"), [pod("2", 4.0), pod("pod-a", 3.0)]);
    let unknown = service.block_on(router.predict(PredictRequest { pod: "unknown".to_owned(), ..predict }));
    assert_eq!(unknown.expect_err("there is no such pod").code(), Code::NotFound);

    let mut code = |request: GetPodScoresRequest| scores(request).expect_err("it cannot be answered").code();
    let text = GetPodScoresRequest { prompt: Some("text".to_owned()), ..request.clone() };
    assert_eq!(code(text.clone()), Code::InvalidArgument, "text and tokens");
    assert_eq!(code(GetPodScoresRequest { token_ids: Vec::new(), ..text.clone() }), Code::Unimplemented);
    let empty = GetPodScoresRequest { prompt: Some(String::new()), token_ids: Vec::new(), ..text };
    assert_eq!(code(empty), Code::Unimplemented, "an empty text is a text, as over HTTP");
    let chat = GetPodScoresRequest { chat_json: "no JSON".to_owned(), token_ids: Vec::new(), ..request.clone() };
    assert_eq!(code(chat), Code::InvalidArgument);
    assert_eq!(code(GetPodScoresRequest { tenant_id: "t".to_owned(), ..request.clone() }), Code::NotFound);
    assert_eq!(code(GetPodScoresRequest { model_name: String::new(), ..request }), Code::InvalidArgument);
    let answered = |code| {
        let labels = [("method", "GetPodScores"), ("code", code)];
        service.metrics().value("flash_indexer_grpc_requests_total", &labels)
    };
    assert_eq!([answered("ok"), answered("unimplemented"), answered("invalid_argument")], [5.0, 2.0, 3.0]);
}

#[test]
fn instances_are_picked_as_over_http_and_ends_of_requests_are_reported() {
    let (service, channel) = service(8 << 20);
    let engine = Engine::registered(&service, json!("holder"), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1, 2, 3])]);
    for instance in ["idle", "other"] {
        let body = json!({ "instance_id": instance, "model_name": "m", "block_size": BLOCK_TOKENS, "events": "none" });
        assert_eq!(service.post("/register", &body).0, 201);
    }
    let request = PickRequest {
        model_name: "m".to_owned(),
        token_ids: tokens(&[1, 2, 3, 4]),
        request_id: "r1".to_owned(),
        pick_seed: Some(7),
        pods: vec!["holder".to_owned(), "idle".to_owned()],
        detail: true,
        ..PickRequest::default()
    };
    let mut router = RouterServiceClient::new(channel);
    let picked = service.block_on(router.pick(request.clone())).expect("a pick").into_inner();
    let holder = picked.picked.clone().expect("an instance");
    assert_eq!((holder.pod.as_str(), holder.cost, holder.held_blocks, holder.ready), ("holder", 5.0, 3, true));
    assert_eq!((picked.blocks, picked.seed), (4, 7));
    let costs: Vec<_> = picked.candidates.iter().map(|it| (it.pod.as_str(), it.cost)).collect();
    assert_eq!(costs, [("holder", 5.0), ("idle", 8.0)]);

    let http = |more: serde_json::Value| {
        let mut body = json!({ "model": "m", "token_ids": tokens(&[1, 2, 3, 4]), "pods": ["holder"] });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        service.post("/pick", &body).1
    };
    assert_eq!(http(json!({}))["load"]["requests"], 1, "it is in flight for both interfaces");
    let done = DoneRequest {
        model_name: "m".to_owned(),
        request_id: "r1".to_owned(),
        phase: RequestPhase::Prefill.into(),
        ..DoneRequest::default()
    };
    let mut report = |request: DoneRequest| service.block_on(router.done(request)).map(drop).map_err(|it| it.code());
    assert_eq!(report(done.clone()), Ok(()));
    assert_eq!(http(json!({}))["load"], json!({ "requests": 1, "prefill_blocks": 0, "active_blocks": 4 }));
    let finished = DoneRequest { phase: RequestPhase::Finished.into(), ..done.clone() };
    let unlikely = DoneRequest { prompt_tokens: Some(1), cached_tokens: Some(2), ..finished.clone() };
    assert_eq!(report(unlikely), Err(Code::InvalidArgument));
    assert_eq!(report(finished.clone()), Ok(()));
    assert_eq!(report(finished.clone()), Err(Code::NotFound), "it has finished");
    assert_eq!(report(DoneRequest { phase: 2, ..finished }), Err(Code::InvalidArgument));
    assert_eq!(http(json!({}))["load"]["requests"], 0);

    let predicted = PredictRequest {
        model_name: "m".to_owned(),
        token_ids: tokens(&[1, 2, 3, 4, 5]),
        pod: "holder".to_owned(),
        request_id: "r2".to_owned(),
        ..PredictRequest::default()
    };
    service.block_on(router.predict(predicted)).expect("it is recorded");
    assert_eq!(http(json!({}))["load"]["requests"], 1, "a prediction names a request as well");

    let mut code = |request: PickRequest| service.block_on(router.pick(request)).expect_err("no pick").code();
    assert_eq!(code(PickRequest { pick_temperature: -1.0, ..request.clone() }), Code::InvalidArgument);
    assert_eq!(code(PickRequest { prefill_weight: Some(f64::NAN), ..request.clone() }), Code::InvalidArgument);
    assert_eq!(code(PickRequest { pods: vec!["unknown".to_owned()], ..request.clone() }), Code::NotFound);
    assert_eq!(code(PickRequest { model_name: "unknown".to_owned(), ..request }), Code::NotFound);
}

#[test]
fn queries_are_answered_as_over_http() {
    let (service, channel) = service(8 << 20);
    let engine = Engine::registered(&service, json!("pod-a"), 3, &json!({}));
    let _cold = Engine::registered(&service, json!("pod-b"), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1, 2, 3]), stored(None, &[9])]);
    let mut client = RouterServiceClient::new(channel);
    let mut ask =
        |request: QueryRequest| service.block_on(client.query(request)).map(|answer| answer.into_inner().ranks);
    let ranks = ask(QueryRequest { tree_sizes: true, ..query(&[1, 2, 4]) }).expect("an answer");
    let found: Vec<_> = ranks
        .iter()
        .map(|rank| (rank.instance_id.as_str(), rank.dp_rank, rank.gpu, rank.longest_matched, rank.trust.as_str()))
        .collect();
    assert_eq!(found, [("pod-a", 3, 8, 8, "exact"), ("pod-b", 0, 0, 0, "cold")]);
    assert_eq!(ranks.iter().map(|rank| rank.tree_size).collect::<Vec<_>>(), [Some(4), Some(0)]);
    let http = service.query(&json!({ "token_ids": tokens(&[1, 2, 4]), "model_name": "m" }));
    assert_eq!(http["scores"]["pod-a"]["3"], json!(ranks[0].gpu));

    let size = BlockSize::new(BLOCK_TOKENS).expect("not zero");
    let locals = local_hashes(HashVariant::default(), &tokens(&[1, 2, 4]), size, TokenWindow::Block);
    let hashes = locals.iter().map(|local| local.0).collect();
    let hashed = QueryRequest { token_ids: Vec::new(), block_hashes: hashes, top_k: 1, ..query(&[]) };
    let ranks = ask(hashed.clone()).expect("an answer");
    assert_eq!((ranks.len(), ranks[0].gpu, ranks[0].tree_size), (1, 8, None));
    let mut code = |request: QueryRequest| ask(request).expect_err("it cannot be answered").code();
    assert_eq!(code(QueryRequest { token_ids: vec![1], ..hashed.clone() }), Code::InvalidArgument);
    assert_eq!(code(QueryRequest { cache_salt: "x".to_owned(), ..hashed }), Code::InvalidArgument);
    assert_eq!(code(QueryRequest { model_name: "n".to_owned(), ..query(&[]) }), Code::NotFound);
}

async fn answers(
    mut client: RouterServiceClient<Channel>,
    requests: mpsc::Receiver<QueryRequest>,
) -> Streaming<QueryResponse> {
    client.query_stream(Sent(requests)).await.expect("a stream").into_inner()
}

#[test]
fn a_stream_answers_each_request_and_ends_with_the_service() {
    let (service, channel) = service(8 << 20);
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1, 2])]);
    let (sender, requests) = mpsc::channel(8);
    let mut stream = service.block_on(answers(RouterServiceClient::new(channel), requests));
    service.block_on(async {
        for (request_id, model_name) in [(1, "m"), (2, "unknown"), (3, "m")] {
            let model_name = model_name.to_owned();
            sender.send(QueryRequest { request_id, model_name, ..query(&[1, 2, 3]) }).await.expect("it is taken");
        }
        for request_id in 1..=3 {
            let answer = stream.message().await.expect("no failure").expect("an answer");
            assert_eq!(answer.request_id, request_id);
            match answer.error {
                None => assert_eq!((answer.ranks.len(), answer.ranks[0].gpu), (1, 8)),
                Some(error) => assert_eq!((request_id, error.code), (2, Code::NotFound.into())),
            }
        }
    });
    let runtime = service.stop();
    let end = runtime.block_on(stream.message()).expect_err("the service has ended");
    assert_eq!(end.code(), Code::Unavailable, "{end}");
}

#[test]
fn messages_are_bounded() {
    let (service, channel) = service(1_000);
    let mut client = RouterServiceClient::new(channel);
    let large = query(&(0..500).collect::<Vec<_>>());
    let refused = service.block_on(client.query(large)).expect_err("it is too large");
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
}

#[test]
fn reflection_and_health_tell_of_the_services() {
    let (service, channel) = service(8 << 20);
    let mut health = HealthClient::new(channel.clone());
    for name in ["", "indexer.v1.IndexerService", "flash_indexer.v1.RouterService"] {
        wait_for("health", PATIENCE, || {
            let request = HealthCheckRequest { service: name.to_owned() };
            let answer = service.block_on(health.check(request)).ok()?.into_inner();
            (answer.status() == ServingStatus::Serving).then_some(())
        });
    }
    let (sender, requests) = mpsc::channel(1);
    let listed: ServerReflectionResponse = service.block_on(async {
        let message_request = Some(MessageRequest::ListServices(String::new()));
        sender.send(ServerReflectionRequest { host: String::new(), message_request }).await.expect("it is taken");
        let mut client = ServerReflectionClient::new(channel);
        let mut stream = client.server_reflection_info(Sent(requests)).await.expect("a stream").into_inner();
        stream.message().await.expect("no failure").expect("an answer")
    });
    let Some(MessageResponse::ListServicesResponse(services)) = listed.message_response else {
        panic!("no list of services: {listed:?}")
    };
    let names: Vec<&str> = services.service.iter().map(|service| service.name.as_str()).collect();
    for name in ["indexer.v1.IndexerService", "flash_indexer.v1.RouterService", "grpc.health.v1.Health"] {
        assert!(names.contains(&name), "{names:?}");
    }
}
