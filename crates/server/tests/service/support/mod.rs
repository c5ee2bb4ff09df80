//! A service under test, engines that publish the events of a test, and a client.

mod exposition;
pub(crate) mod fake_cluster;
pub(crate) mod fake_collector;
pub(crate) mod fake_dns;
pub(crate) mod fake_peer;
pub(crate) mod fake_stream_server;
pub(crate) mod fake_trtllm;
pub(crate) mod fake_vllm_control;
pub(crate) mod logs;
pub(crate) mod proto;

use std::net::SocketAddr;
use std::time::Duration;

use flash_indexer_core::SequenceHash;
use flash_indexer_credentials::ClientCredentials;
use flash_indexer_redis::StoreOptions;
use flash_indexer_server::{Indexer, IndexerOptions, PeerUrl, Server, ServerOptions};
use flash_indexer_sim::{Publisher, PublisherOptions};
use flash_indexer_test_support::{RedisNode, wait_for};
use flash_indexer_wire::{BlockRemoved, BlockStored, Encoding, EngineEvent, TokenIds, encode_batch};
use serde_json::{Value, json};
use tonic::transport::Channel;

pub(crate) use self::exposition::{Exposition, Format};

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const BLOCK_TOKENS: u32 = 4;

/// A service on a free port, stopped on drop.
pub(crate) struct Service {
    runtime: Option<tokio::runtime::Runtime>,
    server: Option<Server>,
    agent: ureq::Agent,
}

impl Service {
    pub(crate) fn start() -> Self {
        Self::start_with(ServerOptions::default())
    }

    pub(crate) fn start_with(options: ServerOptions) -> Self {
        Self::start_for(options, None)
    }

    /// A service whose requests by this value have a bearer token.
    pub(crate) fn start_for(options: ServerOptions, token: Option<&str>) -> Self {
        Self::start_as(options, &credentials(token))
    }

    /// A service whose requests by this value have these credentials.
    pub(crate) fn start_as(options: ServerOptions, credentials: &ClientCredentials) -> Self {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let server = runtime.block_on(Server::start(ServerOptions { port: 0, ..options })).expect("a server");
        Self { runtime: Some(runtime), server: Some(server), agent: agent(credentials) }
    }

    /// The answer to a request with these credentials, or the error without one.
    pub(crate) fn get_as(&self, credentials: &ClientCredentials, path: &str) -> Result<(u16, Value), ureq::Error> {
        Ok(read(Ok(agent(credentials).get(self.url(path)).call()?)))
    }

    /// The answer to a request with a bearer token, or without one.
    pub(crate) fn get_with(&self, token: Option<&str>, path: &str) -> (u16, Value) {
        read(agent(&credentials(token)).get(self.url(path)).call())
    }

    /// The answer to a request with a bearer token, or without one.
    pub(crate) fn post_with(&self, token: Option<&str>, path: &str, body: &Value) -> (u16, Value) {
        read(agent(&credentials(token)).post(self.url(path)).content_type("application/json").send(body.to_string()))
    }

    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().expect("it runs until it is stopped")
    }

    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.as_ref().expect("it runs until it is stopped").block_on(future)
    }

    /// Stops the service. Its runtime can still wait for the pending requests of clients.
    pub(crate) fn stop(mut self) -> tokio::runtime::Runtime {
        let (server, runtime) = (self.server.take(), self.runtime.take());
        let (server, runtime) = server.zip(runtime).expect("it was not stopped yet");
        runtime.block_on(server.stop());
        runtime
    }

    pub(crate) fn grpc_address(&self) -> SocketAddr {
        self.server().grpc_address().expect("it was asked for")
    }

    /// A service that has recovered from the sources in these options.
    pub(crate) fn recovered(options: ServerOptions) -> Self {
        let service = Self::start_with(options);
        wait_for("the end of the recovery", PATIENCE, || (service.get("/ready").0 == 200).then_some(()));
        service
    }

    /// A service that has recovered from a peer.
    pub(crate) fn from_peer(url: &str) -> Self {
        let peer: PeerUrl = url.parse().expect("a URL");
        Self::recovered(ServerOptions { peers: vec![peer], ..ServerOptions::default() })
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.server().url())
    }

    pub(crate) fn get(&self, path: &str) -> (u16, Value) {
        read(self.agent.get(self.url(path)).call())
    }

    /// The status of the answer to a request with a bearer token, or without one.
    pub(crate) fn status_with(&self, token: Option<&str>, path: &str) -> u16 {
        agent(&credentials(token)).get(self.url(path)).call().expect("an answer").status().as_u16()
    }

    pub(crate) fn get_lines(&self, path: &str) -> Vec<Value> {
        let request = self.agent.get(self.url(path)).header("accept", "application/x-ndjson");
        let mut response = request.call().expect("an answer");
        let text = response.body_mut().read_to_string().expect("text");
        text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    pub(crate) fn get_text(&self, path: &str) -> String {
        let mut response = self.agent.get(self.url(path)).call().expect("an answer");
        response.body_mut().read_to_string().expect("text")
    }

    /// The metrics. They must be valid in both formats of Prometheus.
    pub(crate) fn metrics(&self) -> Exposition {
        let read = |format, accept: &str, content_type: &str| {
            let mut response = self.agent.get(self.url("/metrics")).header("accept", accept).call().expect("an answer");
            assert_eq!(response.headers()["content-type"], content_type);
            Exposition::read(&response.body_mut().read_to_string().expect("text"), format)
        };
        read(Format::Classic, "*/*", "text/plain; version=0.0.4; charset=utf-8");
        let accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3";
        read(Format::OpenMetrics, accept, "application/openmetrics-text; version=1.0.0; charset=utf-8")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.post_text(path, &body.to_string())
    }

    pub(crate) fn post_text(&self, path: &str, body: &str) -> (u16, Value) {
        read(self.agent.post(self.url(path)).content_type("application/json").send(body))
    }

    /// The answer to a body with these headers.
    pub(crate) fn post_bytes(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> (u16, Value) {
        let request = self.agent.post(self.url(path));
        read(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)).send(body))
    }

    /// A header of the answer, if it is there.
    pub(crate) fn header(&self, path: &str, body: &Value, name: &str) -> Option<String> {
        let response =
            self.agent.post(self.url(path)).content_type("application/json").send(body.to_string()).expect("an answer");
        response.headers().get(name).map(|value| value.to_str().expect("text").to_owned())
    }

    /// A connection for gRPC.
    pub(crate) fn channel(&self) -> Channel {
        let endpoint = Channel::from_shared(format!("http://{}", self.grpc_address())).expect("an address");
        self.block_on(endpoint.timeout(PATIENCE).connect()).expect("a connection")
    }

    /// The answer to a query that must succeed.
    pub(crate) fn query(&self, body: &Value) -> Value {
        let (status, answer) = self.post("/query", body);
        assert_eq!(status, 200, "{answer}");
        answer
    }

    pub(crate) fn indexer(&self) -> &Indexer {
        self.server().indexer()
    }

    /// Matched device tokens of instance `instance`, rank `rank`.
    pub(crate) fn score(&self, tokens: &[u32], instance: &str, rank: u32) -> u64 {
        let answer = self.query(&json!({ "token_ids": tokens, "model_name": "m" }));
        answer["scores"][instance][rank.to_string()].as_u64().unwrap_or_else(|| panic!("no score: {answer}"))
    }

    /// The listener of an instance's rank, as `/workers` shows it.
    pub(crate) fn listener(&self, instance: &Value, rank: u32) -> Value {
        let (_, workers) = self.get("/workers");
        let workers = workers.as_array().expect("a list");
        let worker = workers.iter().find(|worker| worker["instance_id"] == *instance);
        worker.map_or(Value::Null, |worker| worker["listeners"][rank.to_string()].clone())
    }
}

/// Credentials with a bearer token, or without any.
pub(crate) fn credentials(token: Option<&str>) -> ClientCredentials {
    let none = ClientCredentials::default();
    token.map_or_else(|| none.clone(), |token| none.clone().with_token(token.parse().expect("a token")))
}

fn agent(credentials: &ClientCredentials) -> ureq::Agent {
    let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE));
    credentials.apply(config).build().into()
}

fn read(response: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> (u16, Value) {
    let mut response = response.expect("an answer");
    let text = response.body_mut().read_to_string().expect("text");
    (response.status().as_u16(), serde_json::from_str(&text).unwrap_or_else(|_| panic!("not JSON: {text}")))
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some((server, runtime)) = self.server.take().zip(self.runtime.take()) {
            runtime.block_on(server.stop());
        }
    }
}

/// A service that shares its index through this store, and offers gRPC.
pub(crate) fn replica(node: &RedisNode) -> Service {
    replica_at(&format!("redis://127.0.0.1:{}", node.port()))
}

/// A replica with the store at this address.
pub(crate) fn replica_at(url: &str) -> Service {
    replica_with(url, IndexerOptions::default())
}

/// A replica with the store at this address and these options.
pub(crate) fn replica_with(url: &str, indexer: IndexerOptions) -> Service {
    let store = StoreOptions {
        time_to_live: Duration::from_millis(1_500),
        deadline: Duration::from_secs(5),
        ..StoreOptions::at(url.parse().expect("an address"))
    };
    let indexer = IndexerOptions { store: Some(store), ..indexer };
    Service::start_with(ServerOptions { indexer, grpc_port: Some(0), ..ServerOptions::default() })
}

/// An engine that publishes only the events of a test.
pub(crate) struct Engine {
    pub(crate) publisher: Publisher,
    pub(crate) instance: Value,
    pub(crate) rank: u32,
}

impl Engine {
    /// An engine of model `m` that is registered and listened to.
    pub(crate) fn registered(service: &Service, instance: Value, rank: u32, more: &Value) -> Self {
        let publisher = Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
        let engine = Self { publisher, instance, rank };
        engine.register(service, more);
        engine
    }

    /// An engine of model `m` that is registered with its replay endpoint.
    pub(crate) fn with_replay(service: &Service, instance: Value, publisher: Publisher) -> Self {
        let engine = Self { publisher, instance, rank: 0 };
        engine.register(service, &json!({ "replay_endpoint": engine.publisher.replay_endpoint() }));
        engine
    }

    /// Registers it and waits until it is listened to.
    pub(crate) fn register(&self, service: &Service, more: &Value) {
        let Self { publisher, instance, rank } = self;
        let mut request = json!({
            "instance_id": instance, "dp_rank": rank, "endpoint": publisher.endpoint(),
            "model_name": "m", "block_size": BLOCK_TOKENS,
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            request[key] = value.clone();
        }
        let (status, answer) = service.post("/register", &request);
        assert_eq!(status, 201, "{answer}");
        assert!(publisher.wait_for_subscriber(PATIENCE).expect("a socket"), "no listener subscribes");
    }

    /// Publishes events under this number and waits until the service has applied them.
    pub(crate) fn say(&self, service: &Service, sequence: u64, events: &[EngineEvent<'_>]) {
        let payload = encode_batch(1.0, events, None, Encoding::Map);
        self.publisher.publish(sequence, &payload).expect("published");
        self.wait(service, "a message", |listener| listener["last_seq"] == json!(sequence));
    }

    /// Publishes the same events to two services.
    pub(crate) fn say_to_both(&self, (a, b): (&Service, &Service), sequence: u64, events: &[EngineEvent<'_>]) {
        self.say(a, sequence, events);
        self.wait(b, "the same message", |listener| listener["last_seq"] == json!(sequence));
    }

    pub(crate) fn wait(&self, service: &Service, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        wait_for(what, PATIENCE, || Some(service.listener(&self.instance, self.rank)).filter(|now| condition(now)))
    }
}

/// Blocks `hashes` after `parent`; block *h* has the tokens 100·h, 100·h + 1, ….
pub(crate) fn stored<'a>(parent: Option<u64>, hashes: &[u64]) -> EngineEvent<'a> {
    EngineEvent::Stored(store(parent, hashes))
}

pub(crate) fn store<'a>(parent: Option<u64>, hashes: &[u64]) -> BlockStored<'a> {
    BlockStored {
        block_hashes: hashes.iter().copied().map(SequenceHash).collect(),
        parent_block_hash: parent.map(SequenceHash),
        token_ids: TokenIds::Plain(tokens(hashes)),
        block_size: BLOCK_TOKENS,
        medium: Some("GPU"),
        ..BlockStored::default()
    }
}

/// A copy of a block in host memory.
pub(crate) fn to_host<'a>(hash: u64) -> EngineEvent<'a> {
    EngineEvent::Stored(BlockStored { token_ids: TokenIds::default(), medium: Some("CPU"), ..store(None, &[hash]) })
}

pub(crate) fn removed<'a>(hashes: &[u64]) -> EngineEvent<'a> {
    EngineEvent::Removed(BlockRemoved {
        block_hashes: hashes.iter().copied().map(SequenceHash).collect(),
        medium: Some("GPU"),
        ..BlockRemoved::default()
    })
}

pub(crate) fn tokens(hashes: &[u64]) -> Vec<u32> {
    hashes.iter().flat_map(|&hash| (0..BLOCK_TOKENS).map(move |at| 100 * hash as u32 + at)).collect()
}
