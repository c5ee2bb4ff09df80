//! The hub's client, against a server that answers as the hub does.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flash_indexer_prompt::tokenize::{FailureReason, Hub, HubOptions, Prompt, TokenizerPool};
use flash_indexer_test_support::wait_for;
use parking_lot::Mutex;
use serde_json::json;
use tempfile::tempdir;

use crate::support::{DEADLINE, ids, pool_of, text, tiny_tokenizer};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Files by path, and the requests that came for them.
#[derive(Clone, Default)]
struct HubStub {
    files: Arc<BTreeMap<String, String>>,
    requests: Arc<Mutex<Vec<String>>>,
    gate: Arc<Mutex<()>>,
}

impl HubStub {
    /// Serves until the test ends.
    fn start(files: &[(&str, String)]) -> (Self, String) {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), text.clone())).collect();
        let stub = Self { files: Arc::new(files), ..Self::default() };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let serving = stub.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let stub = serving.clone();
                std::thread::spawn(move || stub.answer(connection));
            }
        });
        (stub, endpoint)
    }

    fn answer(&self, mut connection: TcpStream) {
        let lines = BufReader::new(connection.try_clone().expect("a socket")).lines();
        let head: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
        let Some(path) = head.first().and_then(|line| line.split(' ').nth(1)) else { return };
        self.requests.lock().push(path.to_owned());
        drop(self.gate.lock());
        let has_token = head.iter().any(|line| line.eq_ignore_ascii_case("authorization: Bearer secret"));
        let answer = match self.files.get(path) {
            _ if path.starts_with("/gated/") && !has_token => {
                "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n".to_owned()
            }
            None => "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n".to_owned(),
            Some(text) => {
                let length = text.len();
                let range = head.iter().find_map(|line| {
                    line.to_ascii_lowercase()
                        .strip_prefix("range: bytes=")?
                        .split_once('-')
                        .map(|(from, to)| (from.parse().unwrap_or(0), to.parse().unwrap_or(length - 1)))
                });
                let (from, to): (usize, usize) = range.unwrap_or((0, length - 1));
                let part = &text[from..=to.min(length - 1)];
                format!(
                    "HTTP/1.1 206 Partial Content\r\ncontent-length: {}\r\ncontent-range: bytes {from}-{to}/{length}\r\n\
                     etag: \"{}\"\r\nx-repo-commit: {COMMIT}\r\nconnection: close\r\n\r\n{part}",
                    part.len(),
                    path.replace('/', "-")
                )
            }
        };
        let end = if answer.contains("\r\n\r\n") { "" } else { "connection: close\r\n\r\n" };
        connection.write_all(format!("{answer}{end}").as_bytes()).ok();
    }
}

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
    let asked = stub.requests.lock().len();
    let again = pool(options(&endpoint, cache.path()));
    assert_eq!(ids(&again, "org/model", "one"), [0, 3]);
    let chat = serde_json::from_value(json!({"messages": [{"role": "user", "content": "one"}]})).expect("a chat");
    assert_eq!(again.tokenize("org/model", Prompt::Chat(Box::new(chat))).expect("tokens").ids, [6]);
    assert_eq!(stub.requests.lock().len(), asked, "everything is in the cache");

    let away = pool(options("http://127.0.0.1:1", cache.path()));
    assert_eq!(ids(&away, "org/model", "one"), [0, 3], "the hub is not needed for what is there");
}

#[test]
fn what_the_hub_does_not_give_is_explained() {
    let cache = tempdir().expect("a directory");
    let gated = [("/gated/model/resolve/main/tokenizer.json", tiny_tokenizer().to_string())];
    let (stub, endpoint) = HubStub::start(&gated);
    let public = pool(options(&endpoint, cache.path()));
    let error = public.tokenize("org/none", text("one")).expect_err("it is not there");
    assert_eq!(error.reason(), FailureReason::UnknownModel);
    assert!(error.to_string().contains("does not have this model"), "{error}");
    let error = public.tokenize("gated/model", text("one")).expect_err("it is not for everybody");
    assert!(error.to_string().contains("401: give a token"), "{error}");
    let with_token = HubOptions { token: Some("secret".to_owned()), ..options(&endpoint, cache.path()) };
    assert_eq!(ids(&pool(with_token), "gated/model", "one"), [0, 3]);

    stub.requests.lock().clear();
    for name in ["../x", "a/b/c", "/x", "", "a//b", "a b", ".", "..", "a--b/c", "org/.hidden"] {
        let error = public.tokenize(name, text("one")).expect_err(name);
        assert!(error.to_string().contains("not that of a repository"), "{name:?}: {error}");
    }
    assert!(stub.requests.lock().is_empty(), "such names are not asked for");

    let error =
        pool(options("http://127.0.0.1:1", cache.path())).tokenize("org/none", text("one")).expect_err("no hub");
    assert_eq!(error.reason(), FailureReason::LoadFailed);
}

#[test]
fn a_slow_download_goes_on_while_nobody_waits() {
    let cache = tempdir().expect("a directory");
    let (stub, endpoint) = HubStub::start(&[("/org/model/resolve/main/tokenizer.json", tiny_tokenizer().to_string())]);
    let closed = stub.gate.lock();
    let hurried = pool(HubOptions { deadline: Duration::from_millis(20), ..options(&endpoint, cache.path()) });
    let error = hurried.tokenize("org/model", text("one")).expect_err("it takes long");
    assert!(error.to_string().contains("the download goes on"), "{error}");
    let error = hurried.tokenize("org/model", text("one")).expect_err("it takes long");
    assert!(error.to_string().contains("still going on"), "{error}");
    drop(closed);
    wait_for("the download", DEADLINE, || hurried.tokenize("org/model", text("one")).ok());
    let downloads = stub.requests.lock().iter().filter(|path| path.ends_with("/tokenizer.json")).count();
    assert_eq!(downloads, 2, "one for what it is, one for it");
}
