//! Progress of recovery.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use flash_indexer_types::RankId;
use tokio::sync::watch;

/// State of recovery.
#[derive(Debug, Clone)]
pub enum RecoveryState {
    /// Recovery is running; the current step.
    Running(String),
    /// Recovery has finished.
    Finished(RecoverySource),
    /// The configured dump cannot be used; the cause.
    Failed(String),
}

/// Source from which the index was filled at the start, before the engines' streams.
#[derive(Debug, Clone)]
pub enum RecoverySource {
    /// None: only the engines' streams.
    Engines,
    /// A snapshot of the state directory.
    Snapshot(String),
    /// A peer.
    Peer(String),
    /// The configured dump file.
    Dump(String),
}

impl RecoverySource {
    /// Label in metrics.
    pub(crate) const fn label(&self) -> &'static str {
        match self {
            Self::Engines => "engines",
            Self::Snapshot(_) => "snapshot",
            Self::Peer(_) => "peer",
            Self::Dump(_) => "dump",
        }
    }
}

impl Display for RecoverySource {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engines => f.write_str("engines"),
            Self::Snapshot(path) => write!(f, "snapshot {path}"),
            Self::Peer(url) => write!(f, "peer {url}"),
            Self::Dump(path) => write!(f, "dump {path}"),
        }
    }
}

/// Failure to load the configured dump.
#[derive(Debug, Clone, thiserror::Error)]
#[error("failed to load the dump: {0}")]
pub struct RecoveryError(String);

/// Ranks whose streams recovery has released.
#[derive(Debug)]
pub struct ReleasedRanks {
    /// Time at which the last one was released.
    pub at: Instant,
    /// Ranks of the configuration and of the source of the recovery.
    pub ranks: BTreeSet<RankId>,
}

/// Read side of the recovery state.
#[derive(Debug)]
pub struct RecoveryStatus {
    state: watch::Receiver<RecoveryState>,
    released: Arc<OnceLock<ReleasedRanks>>,
}

/// Write side of the recovery state, owned by the recovery thread.
pub(super) struct Reporter {
    state: watch::Sender<RecoveryState>,
    released: Arc<OnceLock<ReleasedRanks>>,
}

impl Reporter {
    pub(super) fn set(&self, state: RecoveryState) {
        self.state.send_replace(state);
    }

    /// Records the released ranks, once, before the end of the recovery.
    pub(super) fn released(&self, ranks: BTreeSet<RankId>) {
        self.released.get_or_init(|| ReleasedRanks { at: Instant::now(), ranks });
    }
}

impl RecoveryStatus {
    /// Status of a server without anything to recover from.
    #[must_use]
    pub fn finished() -> Arc<Self> {
        let (_, state) = watch::channel(RecoveryState::Finished(RecoverySource::Engines));
        Arc::new(Self { state, released: Arc::default() })
    }

    pub(super) fn running() -> (Arc<Self>, Reporter) {
        let (sender, receiver) = watch::channel(RecoveryState::Running("starting".to_owned()));
        let released = Arc::default();
        (Arc::new(Self { state: receiver, released: Arc::clone(&released) }), Reporter { state: sender, released })
    }

    /// The ranks whose streams recovery has released; none before its end, or if there was nothing to recover from.
    #[must_use]
    pub fn released(&self) -> Option<&ReleasedRanks> {
        self.released.get()
    }

    /// Current state.
    #[must_use]
    pub fn state(&self) -> RecoveryState {
        self.state.borrow().clone()
    }

    /// Whether recovery has not ended: the index is partial.
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(*self.state.borrow(), RecoveryState::Running(_))
    }

    /// Waits until recovery has ended.
    ///
    /// # Errors
    ///
    /// Fails if the configured dump cannot be used, or the recovery thread ended early.
    pub async fn end(&self) -> Result<(), RecoveryError> {
        let mut states = self.state.clone();
        let end = states.wait_for(|state| !matches!(state, RecoveryState::Running(_))).await;
        match end.as_deref() {
            Ok(RecoveryState::Failed(why)) => Err(RecoveryError(why.clone())),
            Err(_) => Err(RecoveryError("the recovery thread ended early; report this bug with the log".to_owned())),
            Ok(_) => Ok(()),
        }
    }
}
