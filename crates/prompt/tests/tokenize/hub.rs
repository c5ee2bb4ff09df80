//! The hub's client, against a server that answers as the hub does.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use chat_template::ChatRequest;
use flash_indexer_engine_chats::{Chat, ChatEngine};
use flash_indexer_prompt::tokenize::{FailureReason, Hub, HubOptions, Prompt, TokenizerPool};
use flash_indexer_test_support::{HubStub, tiny_tokenizer, wait_for};
use serde_json::{Value, json};
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

fn chat_ids(pool: &TokenizerPool, engine: ChatEngine) -> Vec<u32> {
    let body = json!({"messages": [{"role": "user", "content": "the theory"}]}).to_string();
    let chat = Chat::from_body(body.as_bytes(), engine, SystemTime::UNIX_EPOCH).expect("a chat");
    pool.tokenize("org/model", Prompt::Chat(Box::new(chat))).expect("tokens").ids
}

#[test]
fn a_model_in_mistrals_format_is_downloaded_with_its_vocabulary() {
    let recorded: Value = serde_json::from_str(include_str!("tekken_ids.json")).expect("JSON");
    let mut files = vec![
        ("/org/model/resolve/main/tekken.json", recorded["tekken"].to_string()),
        ("/org/model/resolve/main/consolidated-00001-of-00002.safetensors", "weights".to_owned()),
        ("/org/model/resolve/main/params.json", "{}".to_owned()),
        ("/org/model/resolve/main/README.md", "a model".to_owned()),
    ];
    let [both, alone] = [true, false].map(|has_other| {
        if has_other {
            files.push(("/org/model/resolve/main/tokenizer.json", tiny_tokenizer().to_string()));
            files.push(("/org/model/resolve/main/chat_template.jinja", "four".to_owned()));
        } else {
            files.truncate(4);
        }
        let cache = tempdir().expect("a directory");
        let (stub, endpoint) = HubStub::start(&files);
        let ids = chat_ids(&pool(options(&endpoint, cache.path())), ChatEngine::Vllm);
        let asked = stub.requests();
        assert!(!asked.iter().any(|path| path.ends_with("safetensors") || path.ends_with("README.md")), "{asked:?}");
        let away = pool(options("http://127.0.0.1:1", cache.path()));
        assert_eq!(chat_ids(&away, ChatEngine::Vllm), ids, "the hub is not needed for what is there");
        (ids, has_other.then(|| chat_ids(&away, ChatEngine::Sglang)))
    });
    assert_eq!(both.0, alone.0);
    assert_eq!(both.0[..2], [1, 3], "<s>[INST]");
    assert_eq!(both.1, Some(vec![6]), "another engine takes the template and the other tokenizer");

    // A model with other weights is not in Mistral's format.
    let files = files.into_iter().filter(|(path, _)| !path.contains("consolidated"));
    let mut files: Vec<_> = files.collect();
    files.push(("/org/model/resolve/main/tokenizer.json", tiny_tokenizer().to_string()));
    files.push(("/org/model/resolve/main/chat_template.jinja", "four".to_owned()));
    let cache = tempdir().expect("a directory");
    let (_stub, endpoint) = HubStub::start(&files);
    assert_eq!(chat_ids(&pool(options(&endpoint, cache.path())), ChatEngine::Vllm), [6]);
}

#[test]
fn an_interrupted_download_is_completed() {
    let recorded: Value = serde_json::from_str(include_str!("tekken_ids.json")).expect("JSON");
    let files = [
        ("/org/model/resolve/main/consolidated.safetensors", "weights".to_owned()),
        ("/org/model/resolve/main/params.json", "{}".to_owned()),
        ("/org/model/resolve/main/tokenizer.json", tiny_tokenizer().to_string()),
        ("/org/model/resolve/main/tekken.json", recorded["tekken"].to_string()),
    ];
    let cache = tempdir().expect("a directory");
    let (_stub, endpoint) = HubStub::start(&files);
    let expected = chat_ids(&pool(options(&endpoint, cache.path())), ChatEngine::Vllm);
    let snapshots = cache.path().join("models--org--model/snapshots");
    let snapshot = fs::read_dir(snapshots).expect("snapshots").next().expect("one").expect("one").path();
    fs::remove_file(snapshot.join("tekken.json")).expect("removed");
    assert_eq!(chat_ids(&pool(options(&endpoint, cache.path())), ChatEngine::Vllm), expected);
}

#[test]
fn the_configuration_and_all_templates_are_downloaded() {
    let prefix = "/org/model/resolve/main";
    let named = |name: &str| format!("{prefix}/{name}");
    let paths = ["config.json", "additional_chat_templates/rag.jinja", "additional_chat_templates/../../escape.jinja"];
    let [config, further, escape] = paths.map(named);
    let tokenizer = named("tokenizer.json");
    let files = [
        (config.as_str(), json!({"architectures": ["KimiK3ForConditionalGeneration"]}).to_string()),
        (further.as_str(), "four".to_owned()),
        (escape.as_str(), "four".to_owned()),
        (tokenizer.as_str(), tiny_tokenizer().to_string()),
    ];
    let cache = tempdir().expect("a directory");
    let (stub, endpoint) = HubStub::start(&files);
    let body = json!({"messages": [{"role": "user", "content": "one"}]}).to_string();
    let chat = Chat::from_body(body.as_bytes(), ChatEngine::Vllm, SystemTime::UNIX_EPOCH).expect("a chat");
    let error = pool(options(&endpoint, cache.path())).tokenize("org/model", Prompt::Chat(Box::new(chat)));
    // config.json identifies the family. Without it, the template would make another prompt.
    assert!(error.as_ref().is_err_and(|error| error.to_string().contains("Kimi-K3")), "{error:?}");
    let asked = stub.requests();
    assert!(asked.contains(&further) && !asked.iter().any(|path| path.contains("escape")), "{asked:?}");
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
    let error = public.tokenize("gated/model", text("one")).expect_err("it is gated");
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
