//! Other indexers of the same fleet: recovery from them, and comparison with them.
//!
//! | file | role |
//! |---|---|
//! | `check.rs` | compares ranks with the same ranks of peers, and repairs differences |
//! | `comparison.rs` | positions, candidates and outcomes of comparisons |
//! | `client.rs` | requests to a peer |
//! | `recovery.rs` | starts from a snapshot, a peer's dump, or a dump file |
//! | `resolver.rs` | resolves names of peers |
//! | `status.rs` | progress of recovery |
//! | `url.rs` | URL of a peer |

mod check;
mod client;
mod comparison;
mod recovery;
mod resolver;
mod status;
mod url;

use flash_indexer_types::networks::EngineNetworks;
use parking_lot::Mutex;

pub(crate) use self::check::{Check, CheckGuard};
pub use self::client::PeerDeadlines;
pub(crate) use self::recovery::Recovery;
pub use self::status::RecoveryError;
pub(crate) use self::status::{RecoveryState, RecoveryStatus};
pub use self::url::{PeerUrl, PeerUrlError};

/// Limit of concurrent digests, requested by all peers together.
pub(crate) const DIGESTS_MAX: usize = 64;
/// Limit of registered peers.
pub(crate) const PEERS_MAX: usize = 64;

/// Registered peers, in the order in which recovery tries them.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    urls: Mutex<Vec<PeerUrl>>,
    /// Networks of their addresses.
    networks: EngineNetworks,
}

/// Outcome of [`Peers::add`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Added {
    New,
    Already,
    TooMany,
}

impl Peers {
    pub(crate) fn new(urls: Vec<PeerUrl>, networks: EngineNetworks) -> Self {
        Self { urls: Mutex::new(urls), networks }
    }

    pub(crate) fn networks(&self) -> &EngineNetworks {
        &self.networks
    }

    pub(crate) fn add(&self, url: PeerUrl) -> Added {
        let mut urls = self.urls.lock();
        if urls.contains(&url) {
            return Added::Already;
        }
        if urls.len() >= PEERS_MAX {
            return Added::TooMany;
        }
        urls.push(url);
        Added::New
    }

    /// Removes a peer. Returns whether it was registered.
    pub(crate) fn remove(&self, url: &PeerUrl) -> bool {
        let mut urls = self.urls.lock();
        let known = urls.len();
        urls.retain(|other| other != url);
        urls.len() < known
    }

    pub(crate) fn urls(&self) -> Vec<PeerUrl> {
        self.urls.lock().clone()
    }
}
