//! Tokenizers that `serve` downloads from the Hugging Face hub.

use crate::support::{Serve, run, text};
use flash_indexer_test_support::{HubStub, tiny_tokenizer};
use serde_json::{Value, json};
use tempfile::tempdir;

/// Predicts a prompt of three words for an engine of the model; the service has to tokenize it.
fn predict(serve: &Serve, model: &str) -> (u16, Value) {
    let engine = json!({ "instance_id": 1, "endpoint": "tcp://127.0.0.1:9", "model_name": model, "block_size": 2 });
    assert_eq!(serve.post("/register", &engine).0, 201);
    serve.post("/predict", &json!({ "model": model, "prompt": "one two three", "pod": 1 }))
}

#[test]
fn serve_downloads_missing_tokenizers_from_the_hub() {
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
    // Three words and the token that begins a sequence: two blocks.
    let two_blocks = (200, json!({ "status": "ok", "blocks": 2 }));
    assert_eq!(predict(&serve, "org/model"), two_blocks);
    assert_eq!(predict(&serve, "gated/model"), two_blocks);
    let (status, answer) = predict(&serve, "org/none");
    let error = answer["error"].as_str().expect("a text");
    assert!(status == 404 && error.contains(&format!("hub {endpoint}: the hub does not have this model")), "{error}");

    let downloads = stub.requests().len();
    let without_token = Serve::start(&hub);
    assert_eq!(predict(&without_token, "gated/model"), two_blocks, "it was downloaded");
    assert_eq!(stub.requests().len(), downloads);
}

#[test]
fn hub_options_require_tokenizer_hub() {
    let output = run(&["serve", "--tokenizer-hub-cache", "cache"]);
    assert!(text(&output.stderr).contains("--tokenizer-hub"), "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(2));
}
