//! Tokenizers that `serve` downloads from the Hugging Face hub.

mod support;

use flash_indexer_test_support::{HubStub, tiny_tokenizer};
use serde_json::{Value, json};
use support::{Serve, run, text};
use tempfile::tempdir;

/// Says that a prompt of three words was sent to an engine of the model, which has to be tokenized for that.
fn predict(serve: &Serve, model: &str) -> (u16, Value) {
    let engine = json!({ "instance_id": 1, "endpoint": "tcp://127.0.0.1:9", "model_name": model, "block_size": 2 });
    assert_eq!(serve.post("/register", &engine).0, 201);
    serve.post("/predict", &json!({ "model": model, "prompt": "one two three", "pod": 1 }))
}

#[test]
fn serve_asks_the_hub_for_models_that_it_does_not_have() {
    let folder = tempdir().expect("a directory");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    std::fs::write(path("token"), "secret\n").expect("a file");
    let tokenizer = || tiny_tokenizer().to_string();
    let (stub, endpoint) = HubStub::start(&[
        ("/org/model/resolve/main/tokenizer.json", tokenizer()),
        ("/gated/model/resolve/main/tokenizer.json", tokenizer()),
    ]);
    let (cache, token) = (path("cache"), path("token"));
    let hub = ["--tokenizer-hub", "--tokenizer-hub-endpoint", &endpoint, "--tokenizer-hub-cache", &cache];
    let serve = Serve::start(&[&hub[..], &["--tokenizer-hub-token-file", &token]].concat());
    // With the token that begins a sequence there are four, two blocks.
    let two_blocks = (200, json!({ "status": "ok", "blocks": 2 }));
    assert_eq!(predict(&serve, "org/model"), two_blocks);
    assert_eq!(predict(&serve, "gated/model"), two_blocks);
    let (status, answer) = predict(&serve, "org/none");
    let said = answer["error"].as_str().expect("a text");
    assert!(status == 404 && said.contains(&format!("hub {endpoint}: it does not have this model")), "{said}");

    let asked = stub.requests().len();
    let without_token = Serve::start(&hub);
    assert_eq!(predict(&without_token, "gated/model"), two_blocks, "it was downloaded");
    assert_eq!(stub.requests().len(), asked);
}

#[test]
fn options_of_the_hub_need_the_hub() {
    let output = run(&["serve", "--tokenizer-hub-cache", "cache"]);
    assert!(text(&output.stderr).contains("--tokenizer-hub"), "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(2));
}
