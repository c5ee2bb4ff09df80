//! A stub of the Hugging Face hub, and a small tokenizer.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};

/// Words of the tiny vocabulary; a word's index is its id.
pub const TINY_WORDS: [&str; 8] = ["<s>", "</s>", "<unk>", "one", "two", "three", "four", ":"];

/// The tokenizer.json of a tokenizer of [`TINY_WORDS`] that begins each sequence with `<s>`.
#[must_use]
pub fn tiny_tokenizer() -> Value {
    let vocab: HashMap<&str, usize> = TINY_WORDS.iter().enumerate().map(|(id, word)| (*word, id)).collect();
    let special = |id: usize| {
        json!({"id": id, "content": TINY_WORDS[id], "special": true, "normalized": false, "single_word": false,
               "lstrip": false, "rstrip": false})
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(0), special(1), special(2)],
        "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
        },
        "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
    })
}

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// An HTTP server that responds like the Hugging Face hub. It serves files by path and records requests. Paths below
/// `/gated/` require the token `secret`.
#[derive(Debug, Clone, Default)]
pub struct HubStub {
    files: Arc<BTreeMap<String, String>>,
    requests: Arc<Mutex<Vec<String>>>,
    gate: Arc<Mutex<()>>,
}

impl HubStub {
    /// Starts a server, which runs until the test ends; returns it and its URL.
    ///
    /// # Panics
    ///
    /// When no port is free.
    #[must_use]
    pub fn start(files: &[(&str, String)]) -> (Self, String) {
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

    /// Requested paths, in order.
    ///
    /// # Panics
    ///
    /// When a serving thread has panicked.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("no answer panics").clone()
    }

    /// Blocks all responses while the guard is held.
    ///
    /// # Panics
    ///
    /// When a serving thread has panicked.
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        self.gate.lock().expect("no answer panics")
    }

    /// The list of a model's files.
    fn listing(&self, path: &str) -> Option<String> {
        let model = path.strip_prefix("/api/models/")?.strip_suffix("/revision/main")?;
        let folder = format!("/{model}/resolve/main/");
        let names: Vec<&str> = self.files.keys().filter_map(|path| path.strip_prefix(&folder)).collect();
        let siblings: Vec<Value> = names.iter().map(|name| json!({ "rfilename": name })).collect();
        (!siblings.is_empty()).then(|| json!({"siblings": siblings, "sha": COMMIT}).to_string())
    }

    fn answer(&self, mut connection: TcpStream) {
        let lines = BufReader::new(connection.try_clone().expect("a socket")).lines();
        let request: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
        let Some(path) = request.first().and_then(|line| line.split(' ').nth(1)) else { return };
        self.requests.lock().expect("no answer panics").push(path.to_owned());
        drop(self.hold());
        let has_token = request.iter().any(|line| line.eq_ignore_ascii_case("authorization: Bearer secret"));
        let listing = self.listing(path);
        let (head, body) = match self.files.get(path).or(listing.as_ref()) {
            _ if path.starts_with("/gated/") && !has_token => ("401 Unauthorized\r\ncontent-length: 0".to_owned(), ""),
            None => ("404 Not Found\r\ncontent-length: 0".to_owned(), ""),
            Some(text) => {
                let length = text.len();
                let range = request.iter().find_map(|line| {
                    line.to_ascii_lowercase()
                        .strip_prefix("range: bytes=")?
                        .split_once('-')
                        .map(|(from, to)| (from.parse().unwrap_or(0), to.parse().unwrap_or(length - 1)))
                });
                let (from, to): (usize, usize) = range.unwrap_or((0, length - 1));
                let part = &text[from..=to.min(length - 1)];
                let (part_length, etag) = (part.len(), path.replace('/', "-"));
                let head = format!(
                    "206 Partial Content\r\ncontent-length: {part_length}\r\ncontent-range: bytes {from}-{to}/{length}\r\n\
                     etag: \"{etag}\"\r\nx-repo-commit: {COMMIT}"
                );
                (head, part)
            }
        };
        connection.write_all(format!("HTTP/1.1 {head}\r\nconnection: close\r\n\r\n{body}").as_bytes()).ok();
    }
}
