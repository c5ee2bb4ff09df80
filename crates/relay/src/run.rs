//! The relay: one engine's events, received, hashed and published.

use std::ops::ControlFlow;
use std::sync::Arc;

use flash_indexer_curve::Curve;
use flash_indexer_sim::{PublishError, Publisher, PublisherOptions};
use flash_indexer_wire::LiveMessage;
use tracing::{debug, info, warn};

use crate::hasher::{Hasher, HasherOptions};
use crate::upstream::{ReplayEnd, Upstream, replay};

/// Options of a relay.
#[derive(Debug, Clone)]
pub struct RelayOptions {
    /// Endpoint at which the engine publishes.
    pub engine: String,
    /// Endpoint at which the engine replays missing messages.
    pub engine_replay: Option<String>,
    /// How tokens are hashed.
    pub hasher: HasherOptions,
    /// Endpoint at which the relay publishes, or that it connects to.
    pub publish: String,
    /// Endpoint at which the relay replays messages; port `*` picks a free one.
    pub publish_replay: String,
    /// Whether the relay connects to `publish`, the bound socket of a service.
    pub connects: bool,
    /// Topic of published messages; none for the engine's.
    pub topic: Option<String>,
    /// Messages kept for replays.
    pub replay_messages_max: usize,
    /// CURVE keys; none without it.
    pub curve: Option<Arc<Curve>>,
}

/// Failure of a relay.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The engine's endpoint is malformed, or no socket is left.
    #[error("failed to follow {endpoint}: {source}; give the engine's address, such as tcp://127.0.0.1:5557")]
    Engine {
        /// The endpoint.
        endpoint: String,
        /// Cause.
        source: zmq::Error,
    },
    /// The relay cannot publish.
    #[error(transparent)]
    Publish(#[from] PublishError),
}

/// Follows the engine until `is_stopping` returns true. It reconnects after a lost connection.
///
/// # Errors
///
/// When an endpoint cannot be used.
pub fn run(options: &RelayOptions, is_stopping: &dyn Fn() -> bool) -> Result<(), RelayError> {
    let of_engine = |source| RelayError::Engine { endpoint: options.engine.clone(), source };
    while !is_stopping() {
        let mut upstream = Upstream::open(&options.engine, options.curve.as_deref()).map_err(of_engine)?;
        while !is_stopping() && !upstream.is_over() {
            match upstream.await_connection() {
                Ok(true) => {
                    info!(engine = options.engine, "connected to the engine");
                    Connection::new(options, is_stopping).follow(&mut upstream)?;
                    break;
                }
                Ok(false) => {}
                // Interrupted by a signal.
                Err(error) => debug!(%error, "failed to poll the engine's socket; retrying"),
            }
        }
    }
    Ok(())
}

/// State of one connection to the engine. A new connection may be to an engine that has restarted, so it starts over.
struct Connection<'o> {
    options: &'o RelayOptions,
    is_stopping: &'o dyn Fn() -> bool,
    hasher: Hasher,
    /// Sequence number that follows the messages processed so far; none before the first one, unless a replay has shown that
    /// there is none.
    next: Option<u64>,
    /// Live messages with lower sequence numbers were already replayed.
    replayed_to: u64,
    /// Topic of published messages.
    topic: Vec<u8>,
    /// Messages of the replay, before there is a publisher.
    history: Vec<(u64, Vec<u8>)>,
    publisher: Option<Publisher>,
}

impl<'o> Connection<'o> {
    fn new(options: &'o RelayOptions, is_stopping: &'o dyn Fn() -> bool) -> Self {
        Self {
            options,
            is_stopping,
            hasher: Hasher::new(options.hasher.clone(), false),
            next: None,
            replayed_to: 0,
            topic: options.topic.as_ref().map_or(DEFAULT_TOPIC, |topic| topic.as_bytes()).to_vec(),
            history: Vec::new(),
            publisher: None,
        }
    }

    /// Relays messages until the connection is lost. The publisher closes with the connection, so the service also loses
    /// its connection, and requests the messages that it may have missed.
    fn follow(mut self, upstream: &mut Upstream) -> Result<(), RelayError> {
        let is_position_known = self.replay_from(0) == ReplayEnd::Complete;
        if is_position_known {
            if self.next.is_none() {
                self.start_at(0);
            }
            // The connection may already be lost: subscribers would treat an incomplete history as complete.
            if upstream.is_over() {
                return Ok(());
            }
            self.open_publisher()?;
        }
        while !(self.is_stopping)() {
            match upstream.next_messages() {
                Ok(Some(messages)) => {
                    for frames in messages {
                        if self.relay(&frames)?.is_break() {
                            warn!(
                                engine = self.options.engine,
                                "engine restarted: its sequence numbers were reset; following it from the start"
                            );
                            return Ok(());
                        }
                    }
                }
                Ok(None) => {
                    warn!(engine = self.options.engine, "lost the connection to the engine; reconnecting");
                    return Ok(());
                }
                Err(error) => debug!(%error, "failed to receive from the engine; retrying"),
            }
        }
        Ok(())
    }

    fn start_at(&mut self, first: u64) {
        self.hasher = Hasher::new(self.options.hasher.clone(), first == 0);
        self.next = Some(first);
    }

    /// Requests the messages starting at a number, and processes the reply.
    fn replay_from(&mut self, from: u64) -> ReplayEnd {
        let options = self.options;
        let Some(endpoint) = &options.engine_replay else { return ReplayEnd::Silent };
        let is_stopping = self.is_stopping;
        let replayed = replay(endpoint, options.curve.as_deref(), from, is_stopping, |sequence, payload| {
            self.process(sequence, payload);
        });
        self.replayed_to = self.next.unwrap_or_default();
        match replayed {
            Ok(ReplayEnd::Silent) => {
                warn!(endpoint, from, "the engine's replay endpoint did not answer in time; check its address")
            }
            Err(error) => warn!(endpoint, from, %error, "failed to request a replay from the engine"),
            Ok(ReplayEnd::Complete) => return ReplayEnd::Complete,
        }
        ReplayEnd::Silent
    }

    /// Hashes a replayed message, and keeps it for replays; publishes it if there are subscribers.
    fn process(&mut self, sequence: u64, payload: &[u8]) {
        if self.next.is_none() {
            self.start_at(sequence);
        }
        let next = self.next.unwrap_or_default();
        if sequence < next {
            return;
        }
        if sequence > next {
            self.hasher.messages_lost();
        }
        let hashed = self.hasher.hash(payload);
        self.next = sequence.checked_add(1);
        match &self.publisher {
            Some(publisher) => self.publish(publisher, sequence, &hashed),
            None => {
                self.history.push((sequence, hashed));
                let messages_max = self.options.replay_messages_max;
                if self.history.len() >= messages_max.saturating_mul(2) {
                    self.history.drain(..self.history.len() - messages_max);
                }
            }
        }
    }

    /// Relays a live message. Breaks if its sequence number shows that the engine's numbers have begun again.
    fn relay(&mut self, frames: &[Vec<u8>]) -> Result<ControlFlow<()>, RelayError> {
        let message = match LiveMessage::from_frames(frames) {
            Ok(message) => message,
            Err(error) => {
                warn!(%error, "skipped an engine message with invalid frames; check --engine");
                self.hasher.messages_lost();
                return Ok(ControlFlow::Continue(()));
            }
        };
        if self.options.topic.is_none() && self.topic != message.topic {
            self.topic = message.topic.to_vec();
        }
        let Some(sequence) = message.sequence else {
            // Without sequence numbers, the rank is never exact in the service.
            self.open_publisher()?;
            let hashed = self.hasher.hash(message.payload);
            if let Some(publisher) = &self.publisher
                && let Err(error) = publisher.publish_frames(&[&self.topic, &hashed])
            {
                warn!(%error, "failed to publish a message");
            }
            return Ok(ControlFlow::Continue(()));
        };
        if self.next.is_none() {
            self.start_at(sequence);
        }
        let next = self.next.unwrap_or_default();
        if sequence < next {
            // A live message that was already replayed.
            let is_replayed = sequence < self.replayed_to;
            return Ok(if is_replayed { ControlFlow::Continue(()) } else { ControlFlow::Break(()) });
        }
        if sequence > next {
            let _ = self.replay_from(next);
            if self.next.is_some_and(|next| sequence < next) {
                return self.open_publisher().map(ControlFlow::Continue);
            }
            if self.next != Some(sequence) {
                warn!(missing_from = next, seq = sequence, "messages of the engine are missing; requesting a replay");
                self.hasher.messages_lost();
            }
        }
        let hashed = self.hasher.hash(message.payload);
        self.next = sequence.checked_add(1);
        // Subscribers of an earlier publisher would treat an incomplete history as complete.
        self.open_publisher()?;
        if let Some(publisher) = &self.publisher {
            self.publish(publisher, sequence, &hashed);
        }
        Ok(ControlFlow::Continue(()))
    }

    fn publish(&self, publisher: &Publisher, sequence: u64, hashed: &[u8]) {
        publisher.keep(sequence, hashed);
        if let Err(error) = publisher.publish_frames(&[self.topic.as_slice(), &sequence.to_be_bytes(), hashed]) {
            warn!(%error, seq = sequence, "failed to publish a message; it can be replayed");
        }
    }

    fn open_publisher(&mut self) -> Result<(), RelayError> {
        if self.publisher.is_some() {
            return Ok(());
        }
        let options = PublisherOptions {
            endpoint: self.options.publish.clone(),
            replay_endpoint: self.options.publish_replay.clone(),
            topic: self.topic.clone(),
            buffer_batches: self.options.replay_messages_max,
            curve: self.options.curve.clone(),
            history: std::mem::take(&mut self.history),
            ..PublisherOptions::on_loopback()
        };
        let publisher = match self.options.connects {
            true => Publisher::connect(options)?,
            false => Publisher::bind(options)?,
        };
        info!(endpoint = publisher.endpoint(), replay_endpoint = publisher.replay_endpoint(), "publishing");
        self.publisher = Some(publisher);
        Ok(())
    }
}

/// Topic before the first live message, which has the engine's.
const DEFAULT_TOPIC: &[u8] = b"kv-events";
