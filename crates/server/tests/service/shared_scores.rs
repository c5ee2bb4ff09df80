//! Replicas that share an index through Redis score the pods of all, answer over gRPC as one service would, and report when the store is
//! unavailable.

use flash_indexer_server::ServerOptions;
use flash_indexer_test_support::{RedisNode, redis_server, wait_for};
use flash_indexer_wire::EngineEvent;
use serde_json::{Value, json};
use tonic::Code;
use tonic::transport::Channel;

use crate::support::proto::indexer_service_client::IndexerServiceClient;
use crate::support::proto::router_service_client::RouterServiceClient;
use crate::support::proto::{GetPodScoresRequest, GetPodScoresResponse, PredictRequest, QueryRequest, QueryResponse};
use crate::support::{Engine, PATIENCE, Service, removed, replica, stored, to_host, tokens};

/// A service with clients for all of its interfaces.
struct Asked {
    service: Service,
    channel: Channel,
}

/// Answers of a service for a prompt, over every interface.
#[derive(Debug, PartialEq)]
struct Said {
    plain: Value,
    detailed: Value,
    header: Option<String>,
    scores: GetPodScoresResponse,
    query: QueryResponse,
    streamed: QueryResponse,
}

impl Asked {
    fn of(service: Service) -> Self {
        let channel = service.channel();
        Self { service, channel }
    }

    fn alone() -> Self {
        Self::of(Service::start_with(ServerOptions { grpc_port: Some(0), ..ServerOptions::default() }))
    }

    /// The scores in detail.
    fn detailed(&self, prompt: &[u64]) -> Value {
        self.service.post("/score_completions", &body(prompt, json!({ "detail": true }))).1
    }

    fn said(&self, prompt: &[u64]) -> Option<Said> {
        let plain = body(prompt, json!({}));
        let (status, scores) = self.service.post("/score_completions", &plain);
        let query = QueryRequest { model_name: "m".to_owned(), token_ids: tokens(prompt), ..QueryRequest::default() };
        let request = GetPodScoresRequest {
            model_name: "m".to_owned(),
            token_ids: tokens(prompt),
            ..GetPodScoresRequest::default()
        };
        let (mut indexer, mut router) =
            (IndexerServiceClient::new(self.channel.clone()), RouterServiceClient::new(self.channel.clone()));
        self.service.block_on(async {
            let mut stream = router.query_stream(Once(Some(query.clone()))).await.ok()?.into_inner();
            Some(Said {
                plain: Some(scores).filter(|_| status == 200)?,
                detailed: self.detailed(prompt),
                header: self.service.header("/score_completions", &plain, "flash-indexer-store"),
                scores: indexer.get_pod_scores(request).await.ok()?.into_inner(),
                query: router.query(query).await.ok()?.into_inner(),
                streamed: stream.message().await.ok()??,
            })
        })
    }
}

impl Said {
    /// The expected answers of a replica whose store is in this state.
    fn with_store(mut self, store: &str) -> Self {
        self.detailed["store"] = json!(store);
        self.header = Some(store.to_owned());
        for field in [&mut self.scores.store, &mut self.query.store, &mut self.streamed.store] {
            *field = store.to_owned();
        }
        self
    }
}

/// A stream of one item.
struct Once<T>(Option<T>);

impl<T: Unpin> futures_core::Stream for Once<T> {
    type Item = T;

    fn poll_next(mut self: std::pin::Pin<&mut Self>, _: &mut std::task::Context<'_>) -> std::task::Poll<Option<T>> {
        std::task::Poll::Ready(self.0.take())
    }
}

fn body(prompt: &[u64], more: Value) -> Value {
    let mut body = json!({ "model": "m", "token_ids": tokens(prompt) });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body
}

/// Waits until a replica gives the same answers for these prompts as a service that listens to all engines itself.
fn wait_for_the_same(replica: &Asked, one: &Asked, prompts: &[&[u64]]) {
    for prompt in prompts {
        let expected = one.said(prompt).expect("it knows the model").with_store("ok");
        let is_same = || (replica.said(prompt).as_ref() == Some(&expected)).then_some(());
        wait_for(&format!("{expected:?}"), PATIENCE, is_same);
    }
}

/// Moves the last blocks of a sequence to host memory, so no block is in faster memory than a block before it.
fn offloaded(hashes: &[u64]) -> Vec<EngineEvent<'static>> {
    hashes.iter().map(|&hash| to_host(hash)).chain([removed(hashes)]).collect()
}

#[test]
fn two_replicas_answer_as_one_service_that_listens_to_all() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    let [a, b] = [(); 2].map(|()| Asked::of(replica(&node)));
    let one = Asked::alone();
    let engine = |replica: &Asked, instance: Value, rank: u32| {
        let engine = Engine::registered(&replica.service, instance, rank, &json!({}));
        engine.register(&one.service, &json!({}));
        engine
    };
    // Each replica has one rank of the pod `split`.
    let near = engine(&a, json!(1), 0);
    let split = [engine(&a, json!("split"), 0), engine(&b, json!("split"), 1)];
    let far = engine(&b, json!("far"), 0);
    let prompts: [&[u64]; 4] = [&[1, 2, 3, 4, 5, 6, 7], &[1, 2, 8, 9], &[9], &[]];
    let same = || [&a, &b].map(|replica| wait_for_the_same(replica, &one, &prompts));
    same();
    near.say_to_both((&a.service, &one.service), 0, &[stored(None, &[1, 2, 3, 4, 5, 6])]);
    split[0].say_to_both((&a.service, &one.service), 0, &[stored(None, &[1, 2, 3])]);
    split[1].say_to_both((&b.service, &one.service), 0, &[stored(None, &[1, 2, 8]), stored(Some(2), &[3, 4, 5])]);
    far.say_to_both((&b.service, &one.service), 0, &[stored(None, &[9]), stored(None, &[1, 2, 3, 4, 5, 6, 7])]);
    same();
    near.say_to_both((&a.service, &one.service), 1, &offloaded(&[4, 5, 6]));
    far.say_to_both((&b.service, &one.service), 1, &offloaded(&[2, 3, 4, 5, 6, 7]));
    same();
    assert_eq!(
        a.said(prompts[0]).expect("an answer").plain,
        json!({ "1": 3.0 + 3.0 * 0.8, "far": 1.0 + 6.0 * 0.8, "split": 5.0 })
    );
    split[1].say_to_both((&b.service, &one.service), 1, &[removed(&[2])]);
    far.say_to_both((&b.service, &one.service), 2, &[EngineEvent::Cleared]);
    same();
    let only = body(prompts[0], json!({ "pods": ["split"], "detail": true }));
    let detail = json!({ "score": 3.0, "held_blocks": 3, "predicted_blocks": 0, "trust": "exact" });
    let answer = b.service.post("/score_completions", &only).1;
    assert_eq!(answer, json!({ "pods": { "split": detail }, "store": "ok" }), "{answer}");
}

#[test]
fn a_block_in_faster_memory_than_one_before_it_counts_no_more_than_that_elsewhere() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    let [a, b] = [(); 2].map(|()| replica(&node));
    let engine = Engine::registered(&a, json!("pod"), 0, &json!({}));
    engine.say(&a, 0, &[stored(None, &[1, 2, 3]), to_host(2), removed(&[2])]);
    let score = |service: &Service| service.post("/score_completions", &body(&[1, 2, 3], json!({})));
    assert_eq!(score(&a), (200, json!({ "pod": 1.0 + 0.8 + 1.0 })));
    wait_for("the pod elsewhere", PATIENCE, || (score(&b) == (200, json!({ "pod": 1.0 + 0.8 + 0.8 }))).then_some(()));
}

#[test]
fn a_pod_that_only_another_replica_listens_to_can_be_predicted() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    let [a, b] = [(); 2].map(|()| Asked::of(replica(&node)));
    let engine = Engine::registered(&b.service, json!("pod"), 0, &json!({}));
    engine.say(&b.service, 0, &[stored(None, &[1])]);
    let prompt = [1, 2, 3];
    let scores = |asked: &Asked, score: f64, held: u32, predicted: u32| {
        let detail = json!({ "score": score, "held_blocks": held, "predicted_blocks": predicted, "trust": "exact" });
        let expected = json!({ "pods": { "pod": detail }, "store": "ok" });
        wait_for(&format!("{expected}"), PATIENCE, || (asked.detailed(&prompt) == expected).then_some(()));
    };
    scores(&a, 1.0, 1, 0);
    let predict = |pod: &str, ttl_ms: u64| body(&prompt, json!({ "pod": pod, "ttl_ms": ttl_ms }));
    let response = a.service.post("/predict", &predict("pod", 600_000));
    assert_eq!(response, (200, json!({ "status": "ok", "blocks": 3 })));
    scores(&a, 3.0, 1, 2);
    assert_eq!(
        b.detailed(&prompt)["pods"]["pod"]["predicted_blocks"],
        0,
        "predictions count only at the replica that received them"
    );
    assert_eq!(a.service.post("/predict", &predict("unknown", 1)).0, 404);

    engine.say(&b.service, 1, &[stored(Some(1), &[2, 3])]);
    scores(&a, 3.0, 3, 0);
    engine.say(&b.service, 2, &[removed(&[3])]);
    scores(&a, 2.0, 2, 0);

    let request = PredictRequest {
        model_name: "m".to_owned(),
        token_ids: tokens(&prompt),
        pod: "pod".to_owned(),
        ttl_ms: 600_000,
        ..PredictRequest::default()
    };
    let mut router = RouterServiceClient::new(a.channel.clone());
    let predicted = a.service.block_on(router.predict(request.clone())).expect("it is recorded");
    assert_eq!(predicted.into_inner().blocks, 3);
    scores(&a, 3.0, 2, 1);
    let unknown = a.service.block_on(router.predict(PredictRequest { pod: "unknown".to_owned(), ..request }));
    assert_eq!(unknown.expect_err("there is no such pod").code(), Code::NotFound);
}

#[test]
fn without_the_store_a_replica_scores_its_own_pods_and_says_so() {
    let Some(redis) = redis_server() else { return };
    let mut node = RedisNode::start(&redis, &[]);
    let [a, b] = [(); 2].map(|()| Asked::of(replica(&node)));
    let (own, both) = (Asked::alone(), Asked::alone());
    let near = Engine::registered(&a.service, json!("near"), 0, &json!({}));
    let far = Engine::registered(&b.service, json!("far"), 0, &json!({}));
    near.register(&own.service, &json!({}));
    near.register(&both.service, &json!({}));
    far.register(&both.service, &json!({}));
    near.say_to_both((&a.service, &own.service), 0, &[stored(None, &[1, 2, 3])]);
    near.say(&both.service, 0, &[stored(None, &[1, 2, 3])]);
    far.say_to_both((&b.service, &both.service), 0, &[stored(None, &[1, 2])]);
    let prompt = [1, 2, 3, 4];
    wait_for_the_same(&a, &both, &[&prompt]);
    node.kill();
    let expected = own.said(&prompt).expect("an answer").with_store("unavailable");
    assert_eq!(expected.plain, json!({ "near": 3.0 }));
    wait_for("local scores", PATIENCE, || (a.said(&prompt).as_ref() == Some(&expected)).then_some(()));
    node.restart();
    wait_for_the_same(&a, &both, &[&prompt]);
}
