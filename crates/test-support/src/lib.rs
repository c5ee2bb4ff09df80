//! Support for the tests of several crates.
//!
//! | file | role |
//! |---|---|
//! | `testdata.rs` | the repository's recorded data, decompressed |
//! | `event_vectors.rs` | written vectors of engine events |
//! | `redis.rs` | Redis servers: one, a cluster, or one with a replica and sentinels |
//! | `hub.rs` | a stub of the Hugging Face hub |
//! | `certificates.rs` | authorities and the certificates that they issue |
//! | `jwt.rs` | signing keys of an issuer of JSON web tokens |
//! | `lib.rs` | polling for a condition, and small parsers |

mod certificates;
mod event_vectors;
mod hub;
mod jwt;
mod redis;
mod testdata;

use std::path::Path;
use std::time::{Duration, Instant};

pub use self::certificates::{Authority, IssuedFiles};
pub use self::event_vectors::{EventVector, EventVectorMessage, event_vectors};
pub use self::hub::{HubStub, TINY_WORDS, tiny_tokenizer};
pub use self::jwt::{JwtSigningKey, jwt_key_set, jwt_with_secret, unsigned_jwt};
pub use self::redis::{
    ClusterSetup, RedisNode, RedisWithSentinels, find_redis_server, redis_cluster, redis_cluster_with, redis_server,
};
pub use self::testdata::testdata;

/// Parses a JSON-lines file.
///
/// # Panics
///
/// When the file cannot be read or a line is not JSON.
#[must_use]
pub fn json_lines(path: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// Parses a hexadecimal text.
///
/// # Panics
///
/// When the text is not hexadecimal.
#[must_use]
pub fn from_hex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).expect("a hexadecimal digit") as u8;
    text.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// Shortest pause between two polls.
const POLL_PAUSE: Duration = Duration::from_millis(1);

/// Polls `condition` until it returns a value. Its pauses double from 1 to 16 ms, because a condition may ask a service that shares the
/// processors with other tests.
///
/// # Panics
///
/// When it has returned none by the deadline.
pub fn wait_for<T>(what: &str, deadline: Duration, condition: impl FnMut() -> Option<T>) -> T {
    poll(what, deadline, 16 * POLL_PAUSE, condition)
}

/// Polls `condition` with pauses of 1 ms until it returns a value. For a condition that also asserts an invariant: longer pauses would miss
/// short violations.
///
/// # Panics
///
/// When it has returned none by the deadline.
pub fn watch_until<T>(what: &str, deadline: Duration, condition: impl FnMut() -> Option<T>) -> T {
    poll(what, deadline, POLL_PAUSE, condition)
}

fn poll<T>(what: &str, deadline: Duration, longest_pause: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    let mut pause = POLL_PAUSE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < deadline, "{what} did not happen within {deadline:?}");
        std::thread::sleep(pause);
        pause = longest_pause.min(pause * 2);
    }
}
