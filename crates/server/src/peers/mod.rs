//! Other indexers of the same fleet.

mod check;
mod client;
mod recovery;
mod resolver;
mod status;
mod url;

use parking_lot::Mutex;

pub(crate) use self::check::{Check, CheckGuard};
pub use self::client::PeerDeadlines;
pub(crate) use self::recovery::Recovery;
pub use self::status::RecoveryError;
pub(crate) use self::status::{RecoveryState, RecoveryStatus};
pub use self::url::{PeerUrl, PeerUrlError};

/// Peers that may be known at a time.
pub(crate) const PEERS_MAX: usize = 64;

/// The peers that are known, in the order in which they are asked.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    urls: Mutex<Vec<PeerUrl>>,
}

/// What adding a peer did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Added {
    New,
    Already,
    TooMany,
}

impl Peers {
    pub(crate) fn new(urls: Vec<PeerUrl>) -> Self {
        Self { urls: Mutex::new(urls) }
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

    /// Whether it was known.
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
