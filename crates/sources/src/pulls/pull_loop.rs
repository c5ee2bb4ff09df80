//! The loop of one engine's thread: pull, decode, deliver.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use flash_indexer_ingest::{Decoders, Delivery, DeliveryGate, Frames, Listener, log_listener};
use flash_indexer_telemetry::clock::Clock;
use flash_indexer_telemetry::metrics::{Limit, PullOutcome};
use flash_indexer_telemetry::supervision::Watch;
use flash_indexer_types::logs::Repeats;
use flash_indexer_wire::{PullEventError, PullReader, PulledMessage, PulledMessages};

use super::client::{PullClient, PullResponse};

/// Pause between two pulls of one engine.
const PULL_INTERVAL: Duration = Duration::from_millis(100);
/// Longest pause after failed pulls. Each failure doubles the pause.
const FAILED_PAUSE_MAX: Duration = Duration::from_secs(2);
/// Bytes of messages that fill a delivery.
const BYTES_PER_DELIVERY: usize = 64 << 10;

/// State of one engine's thread.
pub(super) struct PullLoop {
    pub(super) listener: Arc<Listener>,
    pub(super) client: PullClient,
    pub(super) reader: PullReader,
    /// The connection of the last successful pull; none after a failed one.
    pub(super) connection: Option<u64>,
    pub(super) gate: Arc<DeliveryGate>,
    /// Disconnected when the thread has to end.
    pub(super) stopped: Receiver<()>,
    pub(super) decoders: Arc<Decoders>,
    pub(super) clock: Clock,
}

/// A failed pull.
struct Failure {
    reason: &'static str,
    why: String,
    /// Whether the metrics count it.
    is_counted: bool,
}

impl PullLoop {
    pub(super) fn run(mut self, watch: &Watch) {
        let mut pause = PULL_INTERVAL;
        let mut repeated_failures = Repeats::default();
        while !self.decoders.are_stopping() {
            let pulled = watch.guarded(|| self.client.pull());
            watch.begin(None);
            let result = pulled.and_then(|pulled| match pulled {
                Ok(response) => watch.guarded(|| self.receive(&response)),
                Err(error) => {
                    let (reason, is_counted) = (error.reason(), error.is_counted());
                    Some(Err(Failure { reason, why: error.to_string(), is_counted }))
                }
            });
            let failure = match result {
                Some(result) => result.err(),
                None => {
                    self.reader = PullReader::new(self.listener.model.block_size());
                    let why = "the thread that pulls the engine's events panicked, a bug in Flash Indexer; report it with the log".to_owned();
                    Some(Failure { reason: "panicked", why, is_counted: false })
                }
            };
            pause = match failure {
                None => PULL_INTERVAL,
                Some(failure) => {
                    self.fail(failure, &mut repeated_failures);
                    (2 * pause).min(FAILED_PAUSE_MAX)
                }
            };
            watch.end();
            if self.stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    /// Delivers the events of a response, after a change of the connection that the response shows.
    fn receive(&mut self, response: &PullResponse) -> Result<(), Failure> {
        let is_new = self.connection != Some(response.connection);
        if is_new && self.connection.is_some() {
            self.disconnect();
        }
        let now = self.clock.system_time().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let pulled = self.reader.read(&response.body, now.as_secs_f64()).map_err(|error| Failure {
            reason: error.reason(),
            why: error.to_string(),
            is_counted: true,
        })?;
        if is_new {
            self.connection = Some(response.connection);
            self.gate.pass(|| self.decoders.connect(&self.listener));
        }
        self.deliver(pulled);
        Ok(())
    }

    fn deliver(&self, PulledMessages { messages, left_out, unnumbered, partial_blocks }: PulledMessages) {
        let (listener, decoders, metrics) = (&self.listener, &self.decoders, self.listener.model.metrics());
        let outcome = if messages.is_empty() { PullOutcome::Empty } else { PullOutcome::Events };
        metrics.pulled(outcome, partial_blocks);
        for error in &left_out {
            match error {
                PullEventError::TooManyFollowedBlocks => metrics.limit_reached(Limit::FollowedBlocks),
                PullEventError::TooManyRanks => metrics.limit_reached(Limit::RanksPerListener),
                _ => {}
            }
        }
        let (mut delivery, mut bytes) = (Vec::new(), 0);
        let send = |delivery: &mut Vec<Frames>| {
            let messages = std::mem::take(delivery);
            self.gate.pass(|| decoders.deliver(listener, Delivery::Live(messages)));
        };
        for PulledMessage { sequence, payload } in messages {
            bytes += payload.len();
            // Frames of a live message: a topic, the sequence number and the payload.
            delivery.push(vec![Vec::new(), sequence.to_be_bytes().to_vec(), payload]);
            if bytes >= BYTES_PER_DELIVERY {
                send(&mut delivery);
                bytes = 0;
            }
        }
        if !delivery.is_empty() {
            send(&mut delivery);
        }
        if let Some(last) = unnumbered.last() {
            self.gate.pass(|| decoders.drop_live(listener, unnumbered.len(), None, last.reason(), &last.to_string()));
        }
    }

    /// Records a failed pull. It may have taken events away, and the next one may reach another process.
    fn fail(&mut self, Failure { reason, why, is_counted }: Failure, repeated: &mut Repeats) {
        let metrics = self.listener.model.metrics();
        metrics.pulled(PullOutcome::Failed, 0);
        if is_counted {
            metrics.rejected(reason);
        }
        match repeated.count(self.clock.now()) {
            Some(times) => log_listener!(warn, self.listener, reason, times, error = why.as_str(), "pull failed"),
            None => log_listener!(debug, self.listener, reason, error = why.as_str(), "pull failed"),
        }
        // The lost connection is recorded first: a reader that sees the reason must not see the engine as connected.
        if self.connection.take().is_some() {
            self.disconnect();
        }
        self.listener.reject(reason, why);
    }

    fn disconnect(&self) {
        self.gate.pass(|| self.decoders.disconnect(&self.listener));
    }
}
