//! Progress of recovery.

use std::sync::Arc;

use tokio::sync::watch;

/// State of recovery.
#[derive(Debug, Clone)]
pub(crate) enum RecoveryState {
    /// Recovery is running; the current step.
    Running(String),
    /// Recovery has finished, with or without a usable peer.
    Finished,
    /// The configured dump cannot be used; the cause.
    Failed(String),
}

/// Failure to load the configured dump.
#[derive(Debug, Clone, thiserror::Error)]
#[error("failed to load the dump: {0}")]
pub struct RecoveryError(String);

/// Read side of the recovery state.
#[derive(Debug)]
pub(crate) struct RecoveryStatus(watch::Receiver<RecoveryState>);

/// Write side of the recovery state, owned by the recovery thread.
pub(super) struct Reporter(watch::Sender<RecoveryState>);

impl Reporter {
    pub(super) fn set(&self, state: RecoveryState) {
        self.0.send_replace(state);
    }
}

impl RecoveryStatus {
    /// Status of a server without anything to recover from.
    pub(crate) fn finished() -> Arc<Self> {
        Arc::new(Self(watch::channel(RecoveryState::Finished).1))
    }

    pub(super) fn running() -> (Arc<Self>, Reporter) {
        let (sender, receiver) = watch::channel(RecoveryState::Running("starting".to_owned()));
        (Arc::new(Self(receiver)), Reporter(sender))
    }

    pub(crate) fn state(&self) -> RecoveryState {
        self.0.borrow().clone()
    }

    /// Waits until recovery has ended.
    pub(crate) async fn end(&self) -> Result<(), RecoveryError> {
        let mut states = self.0.clone();
        let end = states.wait_for(|state| !matches!(state, RecoveryState::Running(_))).await;
        match end.as_deref() {
            Ok(RecoveryState::Failed(why)) => Err(RecoveryError(why.clone())),
            Err(_) => Err(RecoveryError("the recovery thread ended early; report this bug with the log".to_owned())),
            Ok(_) => Ok(()),
        }
    }
}
