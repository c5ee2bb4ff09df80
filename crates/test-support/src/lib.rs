//! What the tests of several crates share: where recorded data lies, and waiting without sleeping
//! for luck.

mod hub;
mod redis;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use self::hub::{HubStub, TINY_WORDS, tiny_tokenizer};
pub use self::redis::{
    ClusterSetup, RedisNode, RedisWithSentinel, find_redis_server, redis_cluster, redis_cluster_with, redis_server,
};

/// Folder of recorded streams and vectors: `FLASH_SHARED`, or `../shared` beside the repository.
///
/// `FLASH_SHARED=none` leaves out the tests that need it; each of them says so on standard error,
/// also where the test runner captures output, and gets `None`.
///
/// # Panics
///
/// When the folder is not there: a test that needs it must not pass without it.
#[must_use]
pub fn shared_dir() -> Option<PathBuf> {
    let from_environment = std::env::var_os("FLASH_SHARED");
    if from_environment.as_deref() == Some("none".as_ref()) {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        let note = format!("LEFT OUT: {test} needs recorded data, and FLASH_SHARED is none\n");
        std::io::stderr().write_all(note.as_bytes()).expect("standard error takes text");
        return None;
    }
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let shared = from_environment.map_or_else(|| repository.join("../shared"), PathBuf::from);
    assert!(
        shared.join("data/engines").is_dir(),
        "no recorded data at {}: set FLASH_SHARED to its folder, or to none to leave out the tests that need it",
        shared.display()
    );
    Some(shared)
}

/// Lines of a JSON-lines file below the shared folder.
///
/// # Panics
///
/// When the file cannot be read or a line is not JSON.
#[must_use]
pub fn json_lines(path: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// Bytes of a hexadecimal text.
///
/// # Panics
///
/// When it is not one.
#[must_use]
pub fn from_hex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).expect("a hexadecimal digit") as u8;
    text.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// Asks again and again until `condition` gives something.
///
/// # Panics
///
/// When it does not within `deadline`.
pub fn wait_for<T>(what: &str, deadline: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < deadline, "{what} did not happen within {deadline:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
