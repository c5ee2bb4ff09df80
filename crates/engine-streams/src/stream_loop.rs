//! The loop of one rank's thread: call, read, deliver.

use std::sync::Arc;
use std::time::Duration;

use flash_indexer_core::DpRank;
use flash_indexer_ingest::{Decoders, Delivery, DeliveryGate, Frames, Listener, log_listener};
use flash_indexer_proto::engine_events::KvEventBatch;
use flash_indexer_telemetry::clock::Clock;
use flash_indexer_telemetry::metrics::{Metrics, StreamedBatch};
use flash_indexer_telemetry::supervision::Watch;
use flash_indexer_types::ConnectionStatus;
use flash_indexer_types::logs::Repeats;
use tokio::sync::oneshot;

use crate::call::{CallError, Client};
use crate::position::{Admission, BatchPosition};
use crate::reader;
use crate::snapshot::{Progress, Snapshot, SnapshotTurns};

/// Pause before a call after a failed one. It doubles with each failure.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest of these pauses.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// State of one rank's thread.
pub(crate) struct StreamLoop {
    pub(crate) listener: Arc<Listener>,
    pub(crate) client: Client,
    pub(crate) position: BatchPosition,
    pub(crate) turns: SnapshotTurns,
    pub(crate) gate: Arc<DeliveryGate>,
    pub(crate) decoders: Arc<Decoders>,
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<Metrics>,
}

/// Reason for the end of a call.
enum End {
    /// Batches are missing, and another call may return them.
    Gap,
    Failed(CallError),
    /// A panic, or a snapshot whose parts are not in order.
    Unusable(&'static str, String),
}

impl StreamLoop {
    /// Runs until `stopped` ends.
    pub(crate) fn run(mut self, stopped: oneshot::Receiver<()>, watch: &Watch) {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                return self.listener.reject("stream_failed", format!("failed to start a runtime: {error}"));
            }
        };
        runtime.block_on(async {
            tokio::select! {
                _ = stopped => {}
                () = self.follow(watch) => {}
            }
        });
    }

    async fn follow(&mut self, watch: &Watch) {
        let (mut pause, mut repeated) = (PAUSE_MIN, Repeats::default());
        while !self.decoders.are_stopping() {
            let before = self.position;
            let end = self.call(watch).await;
            if self.position != before {
                pause = PAUSE_MIN;
            }
            self.fail(end, &mut repeated);
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    /// Makes one call and delivers its batches.
    async fn call(&mut self, watch: &Watch) -> End {
        let start = self.position.begin_call();
        let mut batches = match self.client.subscribe(start, &self.metrics).await {
            Ok(batches) => batches,
            Err(error) => return End::Failed(error),
        };
        let (listener, decoders) = (&self.listener, &self.decoders);
        self.gate.pass(|| decoders.connect(listener));
        let mut snapshot = None;
        loop {
            let batch = match batches.message().await {
                Ok(Some(batch)) => batch,
                Ok(None) => return End::Failed(self.client.ended()),
                Err(status) => return End::Failed(self.client.error(&status, &self.metrics)),
            };
            if batch.snapshot.is_some() && snapshot.is_none() && self.is_of_rank(&batch) {
                snapshot = Some(Snapshot::begin(&self.turns, &self.metrics).await);
            }
            watch.begin(None);
            let received = watch.guarded(|| self.receive(batch, &mut snapshot));
            watch.end();
            match received {
                Some(Ok(())) => {}
                Some(Err(end)) => return end,
                None => {
                    self.position.lose();
                    let why = "the thread that reads the engine's events panicked, a bug in Flash Indexer; report it with the log";
                    return End::Unusable("panicked", why.to_owned());
                }
            }
        }
    }

    /// Whether a batch is of the listener's rank. A batch that names no rank is.
    fn is_of_rank(&self, batch: &KvEventBatch) -> bool {
        batch.dp_rank.is_none_or(|rank| u32::try_from(rank).is_ok_and(|rank| DpRank(rank) == self.listener.dp_rank))
    }

    fn receive(&mut self, mut batch: KvEventBatch, snapshot: &mut Option<Snapshot>) -> Result<(), End> {
        let outcome = match () {
            () if !self.is_of_rank(&batch) => StreamedBatch::OtherRank,
            () if batch.load.as_ref().is_some_and(|load| load.load_only) => StreamedBatch::Load,
            () if batch.snapshot.is_some() => StreamedBatch::Snapshot,
            () if batch.events.is_empty() => StreamedBatch::Empty,
            () => StreamedBatch::Events,
        };
        self.metrics.streamed_batch(outcome);
        let sequence = batch.sequence_number;
        match (outcome, batch.snapshot.take()) {
            (StreamedBatch::OtherRank | StreamedBatch::Load, _) => {}
            (_, Some(part)) => {
                let progress = snapshot.as_mut().map(|snapshot| snapshot.add(batch, part, &self.metrics));
                match progress {
                    Some(Progress::Partial) => {}
                    Some(Progress::Whole(payload)) => {
                        self.position.snapshot(sequence);
                        self.deliver(sequence, payload);
                        *snapshot = None;
                    }
                    Some(Progress::OutOfOrder) | None => {
                        self.position.lose();
                        let why = format!("part {} of a snapshot of {} is out of order", part.index, part.count);
                        return Err(End::Unusable("stream_failed", why));
                    }
                }
            }
            // The last part of the snapshot has not arrived, and the batch would not apply to the state before it.
            (_, None) if snapshot.is_some() => {
                self.position.lose();
                let why = "the server continued before the end of its snapshot".to_owned();
                return Err(End::Unusable("stream_failed", why));
            }
            (_, None) => match self.position.admit(sequence) {
                Admission::AskAgain => return Err(End::Gap),
                Admission::Deliver => self.deliver(sequence, reader::message(&batch, &batch.events, Vec::new())),
            },
        }
        Ok(())
    }

    fn deliver(&self, sequence: u64, payload: Vec<u8>) {
        // A topic, the sequence number and the payload.
        let frames: Frames = vec![Vec::new(), sequence.to_be_bytes().to_vec(), payload];
        self.gate.pass(|| self.decoders.deliver(&self.listener, Delivery::Live(vec![frames])));
    }

    /// Records the end of a call. The next one may reach another process.
    fn fail(&mut self, end: End, repeated: &mut Repeats) {
        let listener = &self.listener;
        if listener.connection() == ConnectionStatus::Connected {
            self.gate.pass(|| self.decoders.disconnect(listener));
        }
        let (reason, why, is_counted) = match end {
            End::Gap => {
                log_listener!(debug, listener, "batches are missing; asking the server for them");
                return;
            }
            End::Failed(error) => {
                if error.is_position_lost() {
                    self.position.lose();
                }
                (error.reason(), error.to_string(), error.is_counted())
            }
            End::Unusable(reason, why) => (reason, why, reason != "panicked"),
        };
        if is_counted {
            self.metrics.rejected(reason);
            self.metrics.streamed_batch(StreamedBatch::Failed);
        }
        match repeated.count(self.clock.now()) {
            Some(times) => log_listener!(warn, listener, reason, times, error = why.as_str(), "stream of events ended"),
            None => log_listener!(debug, listener, reason, error = why.as_str(), "stream of events ended"),
        }
        listener.reject(reason, why);
    }
}
