//! The hub's client, against a server that answers as the hub does.

use std::path::Path;
use std::time::Duration;

use chat_template::ChatRequest;
use flash_indexer_prompt::tokenize::{FailureReason, Hub, HubOptions, Prompt, TokenizerPool};
use flash_indexer_test_support::{HubStub, tiny_tokenizer, wait_for};
use serde_json::json;
use tempfile::tempdir;

use crate::support::{DEADLINE, ids, pool_of, text};

fn options(endpoint: &str, cache: &Path) -> HubOptions {
    HubOptions { endpoint: endpoint.to_owned(), deadline: DEADLINE, ..HubOptions::with_cache(cache.to_owned()) }
}

fn pool(options: HubOptions) -> TokenizerPool {
    pool_of(Hub::new(options).expect("a client"))
}

#[test]
fn a_model_is_downloaded_once_with_its_template() {
    let cache = tempdir().expect("a directory");
    let config = json!({"chat_template": "four"}).to_string();
    let files = [
        ("/org/model/resolve/main/tokenizer.json", tiny_tokenizer().to_string()),
        ("/org/model/resolve/main/tokenizer_config.json", config),
    ];
    let (stub, endpoint) = HubStub::start(&files);
    assert_eq!(ids(&pool(options(&endpoint, cache.path())), "org/model", "one"), [0, 3]);
    let asked = stub.requests().len();
    let again = pool(options(&endpoint, cache.path()));
    assert_eq!(ids(&again, "org/model", "one"), [0, 3]);
    let chat: ChatRequest =
        serde_json::from_value(json!({"messages": [{"role": "user", "content": "one"}]})).expect("a chat");
    assert_eq!(again.tokenize("org/model", Prompt::Chat(Box::new(chat.into()))).expect("tokens").ids, [6]);
    assert_eq!(stub.requests().len(), asked, "everything is in the cache");

    let away = pool(options("http://127.0.0.1:1", cache.path()));
    assert_eq!(ids(&away, "org/model", "one"), [0, 3], "the hub is not needed for what is there");
}

#[test]
fn errors_of_the_hub_are_explained() {
    let cache = tempdir().expect("a directory");
    let gated = [("/gated/model/resolve/main/tokenizer.json", tiny_tokenizer().to_string())];
    let (stub, endpoint) = HubStub::start(&gated);
    let public = pool(options(&endpoint, cache.path()));
    let error = public.tokenize("org/none", text("one")).expect_err("it is not there");
    assert_eq!(error.reason(), FailureReason::UnknownModel);
    assert!(error.to_string().contains("does not have this model"), "{error}");
    let error = public.tokenize("gated/model", text("one")).expect_err("it is not for everybody");
    assert!(error.to_string().contains("401; configure a token"), "{error}");
    let with_token = HubOptions { token: Some("secret".to_owned()), ..options(&endpoint, cache.path()) };
    assert_eq!(ids(&pool(with_token), "gated/model", "one"), [0, 3]);

    let asked = stub.requests().len();
    for name in ["../x", "a/b/c", "/x", "", "a//b", "a b", ".", "..", "a--b/c", "org/.hidden"] {
        let error = public.tokenize(name, text("one")).expect_err(name);
        assert!(error.to_string().contains("not the name of a repository"), "{name:?}: {error}");
    }
    assert_eq!(stub.requests().len(), asked, "such names are not asked for");

    let error =
        pool(options("http://127.0.0.1:1", cache.path())).tokenize("org/none", text("one")).expect_err("no hub");
    assert_eq!(error.reason(), FailureReason::LoadFailed);
}

#[test]
fn a_slow_download_continues_after_the_deadline() {
    let cache = tempdir().expect("a directory");
    let (stub, endpoint) = HubStub::start(&[("/org/model/resolve/main/tokenizer.json", tiny_tokenizer().to_string())]);
    let closed = stub.hold();
    let hurried = pool(HubOptions { deadline: Duration::from_millis(20), ..options(&endpoint, cache.path()) });
    let error = hurried.tokenize("org/model", text("one")).expect_err("it takes long");
    assert!(error.to_string().contains("the download continues"), "{error}");
    let error = hurried.tokenize("org/model", text("one")).expect_err("it takes long");
    assert!(error.to_string().contains("still running"), "{error}");
    drop(closed);
    wait_for("the download", DEADLINE, || hurried.tokenize("org/model", text("one")).ok());
    let downloads = stub.requests().iter().filter(|path| path.ends_with("/tokenizer.json")).count();
    assert_eq!(downloads, 2, "one for what it is, one for it");
}
