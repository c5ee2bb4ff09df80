//! Recovery of a replica's state from snapshots, peers and dumps, and comparison with peers.
//!
//! A peer is another indexer of the same fleet. [`Recovery`] fills a starting replica from the first usable source,
//! [`Check`] compares its ranks with those of peers and repairs differences, and [`Snapshots`] keeps its state on disk.
//! Each works on a separate thread and returns at once from `start`.
//!
//! | file | role |
//! |---|---|
//! | `check.rs` | compares ranks with the same ranks of peers, and repairs differences |
//! | `comparison.rs` | positions, candidates and outcomes of comparisons |
//! | `client.rs` | requests to a peer |
//! | `recovery.rs` | starts from a snapshot, a peer's dump, or a dump file |
//! | `resolver.rs` | resolves names of peers |
//! | `snapshots.rs` | snapshots in the state directory |
//! | `status.rs` | progress of recovery |
//! | `url.rs` | URL of a peer |

mod check;
mod client;
mod comparison;
mod recovery;
mod resolver;
mod snapshots;
mod status;
mod url;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

use flash_indexer_types::networks::EngineNetworks;
use parking_lot::Mutex;
use tracing::info;

pub use self::check::{Check, CheckGuard};
pub use self::client::PeerDeadlines;
pub use self::recovery::Recovery;
pub use self::snapshots::{SnapshotOptions, Snapshots, SnapshotsGuard, write_models};
pub use self::status::{RecoveryError, RecoverySource, RecoveryState, RecoveryStatus};
pub use self::url::{PeerUrl, PeerUrlError};

/// Limit of concurrent digests, requested by all peers together.
pub const DIGESTS_MAX: usize = 64;
/// Limit of registered peers.
pub const PEERS_MAX: usize = 64;

/// Time between two checks of a condition that a thread waits for.
const CONDITION_CHECK: Duration = Duration::from_millis(5);

/// Header of `GET /workers` with the random id of the process that answers.
pub const PROCESS_HEADER: &str = "flash-indexer-process";

/// Registered peers, in the order in which recovery tries them.
#[derive(Debug)]
pub struct Peers {
    /// Random id of this process.
    process: String,
    /// Peers whose URL has led to this process, which is then its own peer: a headless service also lists the replica that
    /// resolves it.
    own: Mutex<Vec<PeerUrl>>,
    urls: Mutex<Vec<PeerUrl>>,
    /// Networks of their addresses.
    networks: EngineNetworks,
}

/// Outcome of [`Peers::add`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerAddition {
    /// The peer is registered now.
    New,
    /// It was registered before.
    Already,
    /// [`PEERS_MAX`] peers are registered.
    TooMany,
}

impl Default for Peers {
    fn default() -> Self {
        Self::new(Vec::new(), EngineNetworks::default())
    }
}

impl Peers {
    /// Peers of a replica with a new random id.
    #[must_use]
    pub fn new(urls: Vec<PeerUrl>, networks: EngineNetworks) -> Self {
        // The keys of the standard library's hash tables are random.
        let process = format!("{:016x}", RandomState::new().build_hasher().finish());
        Self { process, own: Mutex::default(), urls: Mutex::new(urls), networks }
    }

    /// Random id of this process.
    #[must_use]
    pub fn process(&self) -> &str {
        &self.process
    }

    /// Whether a peer that answered with this id of its process is this process. The first such answer of a peer is logged.
    pub fn check_own(&self, url: &PeerUrl, process: Option<&str>) -> bool {
        let mut own = self.own.lock();
        let is_own = process == Some(self.process());
        match (is_own, own.contains(url)) {
            (true, false) => {
                info!(peer = url.as_str(), "skipping a peer that is this replica");
                own.push(url.clone());
            }
            // A service's name may resolve to another replica the next time.
            (false, true) => own.retain(|other| other != url),
            (true, true) | (false, false) => {}
        }
        is_own
    }

    /// Registered peers that are known to be this process.
    #[must_use]
    pub fn own(&self) -> Vec<PeerUrl> {
        let mut own = self.own.lock();
        let urls = self.urls.lock();
        own.retain(|url| urls.contains(url));
        own.clone()
    }

    /// Networks in which the addresses of peers must be.
    #[must_use]
    pub const fn networks(&self) -> &EngineNetworks {
        &self.networks
    }

    /// Registers a peer.
    pub fn add(&self, url: PeerUrl) -> PeerAddition {
        let mut urls = self.urls.lock();
        if urls.contains(&url) {
            return PeerAddition::Already;
        }
        if urls.len() >= PEERS_MAX {
            return PeerAddition::TooMany;
        }
        urls.push(url);
        PeerAddition::New
    }

    /// Removes a peer. Returns whether it was registered.
    pub fn remove(&self, url: &PeerUrl) -> bool {
        let mut urls = self.urls.lock();
        let known = urls.len();
        urls.retain(|other| other != url);
        urls.len() < known
    }

    /// Registered peers, in the order in which recovery tries them.
    #[must_use]
    pub fn urls(&self) -> Vec<PeerUrl> {
        self.urls.lock().clone()
    }
}

/// Waits until the condition holds. Returns false if it does not within `patience`.
fn wait_until(patience: Duration, condition: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + patience;
    while !condition() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(CONDITION_CHECK);
    }
    true
}
