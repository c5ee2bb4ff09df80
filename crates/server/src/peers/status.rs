//! How far a server's start has come.

use std::sync::Arc;

use tokio::sync::watch;

/// A server's start.
#[derive(Debug, Clone)]
pub(crate) enum RecoveryState {
    /// It still learns what there is; how far it is.
    Running(String),
    /// It knows what it can.
    Finished,
    /// It was told to start from a dump that cannot be used.
    Failed(String),
}

/// The dump that a server was told to start from cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
#[error("failed to load a dump: {0}")]
pub struct RecoveryError(String);

/// Whoever asks how far it is.
#[derive(Debug)]
pub(crate) struct RecoveryStatus(watch::Receiver<RecoveryState>);

/// Whoever knows.
pub(super) struct Reporter(watch::Sender<RecoveryState>);

impl Reporter {
    pub(super) fn say(&self, state: RecoveryState) {
        self.0.send_replace(state);
    }
}

impl RecoveryStatus {
    /// There is nothing to learn.
    pub(crate) fn finished() -> Arc<Self> {
        Arc::new(Self(watch::channel(RecoveryState::Finished).1))
    }

    pub(super) fn running() -> (Arc<Self>, Reporter) {
        let (sender, receiver) = watch::channel(RecoveryState::Running("about to ask peers".to_owned()));
        (Arc::new(Self(receiver)), Reporter(sender))
    }

    pub(crate) fn state(&self) -> RecoveryState {
        self.0.borrow().clone()
    }

    /// Waits for the end of it.
    pub(crate) async fn end(&self) -> Result<(), RecoveryError> {
        let mut states = self.0.clone();
        let end = states.wait_for(|state| !matches!(state, RecoveryState::Running(_))).await;
        match end.as_deref() {
            Ok(RecoveryState::Failed(why)) => Err(RecoveryError(why.clone())),
            Err(_) => Err(RecoveryError("the thread that recovers has ended early".to_owned())),
            Ok(_) => Ok(()),
        }
    }
}
