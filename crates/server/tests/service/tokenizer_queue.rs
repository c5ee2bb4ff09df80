//! Prompts that wait for a tokenizer: the queue has a limit, and prompts of disconnected clients leave it.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flash_indexer_prompt::tokenize::PoolOptions;
use flash_indexer_server::{IndexerOptions, ServerOptions, TokenizationOptions, TokenizerServiceOptions};
use flash_indexer_test_support::wait_for;
use serde_json::{Value, json};
use tonic::{Code, Request};

use crate::support::proto::GetPodScoresRequest;
use crate::support::proto::indexer_service_client::IndexerServiceClient;
use crate::support::{Engine, PATIENCE, Service};

/// A tokenizer service that accepts connections and never responds, until it ends.
struct Silent {
    address: SocketAddr,
    /// The open connections; none when no more are accepted.
    connections: Arc<Mutex<Option<Vec<TcpStream>>>>,
}

impl Silent {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("its address");
        let connections = Arc::new(Mutex::new(Some(Vec::new())));
        let kept = Arc::clone(&connections);
        std::thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                match kept.lock().expect("no panic").as_mut() {
                    Some(connections) => connections.push(connection),
                    None => return,
                }
            }
        });
        Self { address, connections }
    }

    fn is_called(&self) -> bool {
        self.connections.lock().expect("no panic").as_ref().is_some_and(|connections| !connections.is_empty())
    }

    /// Closes every connection, and accepts no more.
    fn end(&self) {
        drop(self.connections.lock().expect("no panic").take());
        // Wakes the listener. Another call may have done so.
        let _ = TcpStream::connect(self.address);
    }
}

/// A service with one thread for prompts, which waits for a silent tokenizer service, and room for one more prompt.
fn service(silent: &Silent) -> Service {
    let tokenizer = TokenizerServiceOptions {
        address: format!("tcp://{}", silent.address).parse().expect("an address"),
        deadline: Duration::from_secs(60),
    };
    let pool = PoolOptions { workers: 1, queued_prompts_max: 1, ..PoolOptions::default() };
    let tokenization = TokenizationOptions { service: Some(tokenizer), pool, ..TokenizationOptions::default() };
    let indexer = IndexerOptions { tokenization, ..IndexerOptions::default() };
    Service::start_with(ServerOptions { indexer, grpc_port: Some(0), ..ServerOptions::default() })
}

fn prompt() -> Value {
    json!({ "model": "m", "prompt": "text" })
}

fn request() -> GetPodScoresRequest {
    let (model_name, prompt) = ("m".to_owned(), Some("text".to_owned()));
    GetPodScoresRequest { model_name, prompt, ..GetPodScoresRequest::default() }
}

fn wait_for_queued(service: &Service, prompts: f64) {
    let queued = || service.metrics().value("flash_indexer_tokenization_queued_prompts", &[]);
    wait_for(&format!("{prompts} prompts in the queue"), PATIENCE, || (queued() == prompts).then_some(()));
}

#[test]
fn a_full_queue_refuses_prompts_and_says_when_to_ask_again() {
    let silent = Silent::start();
    let service = service(&silent);
    let _engine = Engine::registered(&service, json!(1), 0, &json!({}));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| service.post("/score_completions", &prompt()).0);
        wait_for("the thread for prompts to be busy", PATIENCE, || silent.is_called().then_some(()));
        let second = scope.spawn(|| service.post("/score_completions", &prompt()).0);
        wait_for_queued(&service, 1.0);

        let (status, error) = service.post("/score_completions", &prompt());
        assert_eq!(status, 503, "{error}");
        assert!(
            error["error"].as_str().is_some_and(|error| error.contains("the tokenization queue is full")),
            "{error}"
        );
        assert_eq!(service.header("/score_completions", &prompt(), "retry-after").as_deref(), Some("1"));
        let chat = json!({ "model": "m", "messages": [{ "role": "user", "content": "text" }] });
        assert_eq!(service.post("/score_chat_completions", &chat).0, 503);
        let mut client = IndexerServiceClient::new(service.channel());
        let refused = service.block_on(client.get_pod_scores(request())).expect_err("no room");
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        let tokens = json!({ "model": "m", "token_ids": [1, 2, 3, 4] });
        assert_eq!(service.post("/score_completions", &tokens).0, 200, "tokens need no tokenizer");
        silent.end();
        assert_eq!([first.join(), second.join()].map(|status| status.expect("an answer")), [503, 503], "it is gone");
    });
    let refused = |kind| {
        let labels = [("kind", kind), ("outcome", "queue_full")];
        service.metrics().value("flash_indexer_tokenizations_total", &labels)
    };
    assert_eq!([refused("text"), refused("chat")], [3.0, 1.0]);
}

#[test]
fn a_deadline_that_cannot_be_met_is_kept_and_leaves_no_work_behind() {
    let silent = Silent::start();
    let service = service(&silent);
    let _engine = Engine::registered(&service, json!(1), 0, &json!({}));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| service.post("/score_completions", &prompt()).0);
        wait_for("the thread for prompts to be busy", PATIENCE, || silent.is_called().then_some(()));

        let mut client = IndexerServiceClient::new(service.channel());
        // The service abandons the request too, not only the client.
        let given_up = || {
            let metrics = service.metrics();
            let late = [("method", "GetPodScores"), ("code", "deadline_exceeded")];
            let withdrawn = [("kind", "text"), ("outcome", "withdrawn")];
            metrics.value("flash_indexer_grpc_requests_total", &late) >= 1.0
                && metrics.value("flash_indexer_tokenizations_total", &withdrawn) >= 1.0
        };
        wait_for("the service to give up", PATIENCE, || {
            // On a busy processor the deadline may pass before the service has received the request. Then another one follows.
            let mut hurried = Request::new(request());
            hurried.set_timeout(Duration::from_millis(300));
            let late = service.block_on(client.get_pod_scores(hurried)).expect_err("no tokenizer thread is free");
            assert!(matches!(late.code(), Code::Cancelled | Code::DeadlineExceeded), "{late}");
            given_up().then_some(())
        });
        wait_for_queued(&service, 0.0);
        // There is room again, so the next prompt waits as well.
        let next = scope.spawn(|| service.post("/score_completions", &prompt()).0);
        wait_for_queued(&service, 1.0);
        silent.end();
        assert_eq!([first.join(), next.join()].map(|status| status.expect("an answer")), [503, 503], "it is gone");
    });
}
