//! Renderings equal those of Python; the scripts next to this file generate the tables.

mod any_bytes;
mod chats;
mod limits;
mod models;
mod snippets;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chat_template::{ChatError, ChatTemplates};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The outcome of a case in Python.
#[derive(Deserialize)]
struct Outcome {
    /// The rendered text.
    expected: Option<String>,
    /// The message of `raise_exception`.
    raised: Option<String>,
}

impl Outcome {
    /// Whether a rendering has the same outcome. Where Python failed in another way, any error matches.
    fn is(&self, rendered: &Result<String, ChatError>) -> bool {
        match (rendered, &self.expected, &self.raised) {
            (Ok(text), Some(expected), _) => text == expected,
            (Err(ChatError::Raised(message)), None, Some(raised)) => message == raised,
            (Err(_), None, None) => true,
            _ => false,
        }
    }
}

/// Monday, 2026-03-09 07:05:03 UTC, as in the scripts.
fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_773_039_903)
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rendering")
}

fn table<T: DeserializeOwned>(name: &str) -> T {
    serde_json::from_str(&fs::read_to_string(folder().join(name)).expect("a file of the tests"))
        .expect("JSON of the right shape")
}

/// The templates of a model directory with these files.
fn templates_of<'f>(files: impl IntoIterator<Item = (&'f str, &'f str)>) -> ChatTemplates {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("created");
        fs::write(path, text).expect("written");
    }
    ChatTemplates::read_with_clock(dir.path(), now).expect("files that can be read").expect("templates")
}
