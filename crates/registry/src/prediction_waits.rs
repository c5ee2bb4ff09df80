//! Waits until the blocks of a routed prompt are in the index.

use std::sync::Arc;
use std::time::Duration;

use flash_indexer_ingest::{Decoders, Delivery, Listener};
use flash_indexer_telemetry::metrics::{Limit, Metrics};
use tokio::sync::{Semaphore, oneshot};

/// Maximum number of predictions that wait for writers at a time. An abandoned wait counts until its writer is done.
const PREDICTION_WAITS_MAX: usize = 1024;
/// Longest wait of a prediction for a writer.
const PREDICTION_WAIT_MAX: Duration = Duration::from_millis(500);

/// Waits of predictions for instances without events, until the writers of these instances have applied the blocks.
#[derive(Debug)]
pub(crate) struct PredictionWaits {
    permits: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

impl PredictionWaits {
    pub(crate) fn new(metrics: &Arc<Metrics>) -> Self {
        Self { permits: Arc::new(Semaphore::new(PREDICTION_WAITS_MAX)), metrics: Arc::clone(metrics) }
    }

    /// Waits until all earlier deliveries of a listener are in the index, or until the limit of the time. Does not wait at
    /// the limit of concurrent waits.
    pub(crate) async fn applied(&self, listener: &Arc<Listener>, decoders: &Decoders) {
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            self.metrics.limit_reached(Limit::PredictionWaits);
            return;
        };
        let (sender, applied) = oneshot::channel();
        let done = move || {
            drop(permit);
            // The prediction may have given up.
            _ = sender.send(());
        };
        decoders.deliver(listener, Delivery::Written(Box::new(done)));
        if tokio::time::timeout(PREDICTION_WAIT_MAX, applied).await.is_err() {
            self.metrics.limit_reached(Limit::PredictionWaits);
        }
    }
}
