//! Peers: who they are, what is learned from them, and what becomes of a peer that lies or dies.

mod support;

use serde_json::json;
use support::Service;

#[test]
fn peers_come_and_go() {
    let service = Service::start();
    assert_eq!(service.get("/peers"), (200, json!([])));
    let post = |path: &str, url: &str| service.post(path, &json!({ "url": url })).0;
    assert_eq!(post("/register_peer", "http://replica-b:8090/"), 201);
    assert_eq!(post("/register_peer", "http://replica-b:8090"), 200, "it is known");
    assert_eq!(post("/register_peer", "http://[::1]:8091"), 201);
    assert_eq!(service.get("/peers").1, json!(["http://replica-b:8090", "http://[::1]:8091"]));
    assert_eq!(post("/deregister_peer", "http://replica-b:8090"), 200);
    assert_eq!(post("/deregister_peer", "http://replica-b:8090"), 404);
    assert_eq!(service.get("/peers").1, json!(["http://[::1]:8091"]));
    let bad = ["", "replica-b:8090", "tcp://b:1", "https://b", "http://", "http://b:x", "http://u@b", "http://b?x=1"];
    for url in bad {
        let (status, answer) = service.post("/register_peer", &json!({ "url": url }));
        assert_eq!(status, 400, "{url}: {answer}");
        assert!(answer["error"].as_str().is_some_and(|error| error.contains("http://replica-b:8090")), "{answer}");
    }
    assert_eq!(service.post("/register_peer", &json!({})).0, 422);
    let statuses: Vec<u16> = (0..64).map(|at| post("/register_peer", &format!("http://b{at}:1"))).collect();
    assert_eq!(statuses.iter().filter(|&&status| status == 503).count(), 1, "peers are bounded: {statuses:?}");
}
