//! The sockets of an engine: a PUB for live batches and a ROUTER that replays recent ones. The only
//! module of this crate that uses ZeroMQ.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flash_indexer_curve::{Admission, Curve};

/// Interval at which the replay thread checks its stop flag, in milliseconds.
const STOP_CHECK_MS: i64 = 50;
/// Sequence number of the message that ends a replay.
const REPLAY_END: [u8; 8] = [0xff; 8];

/// Failure of a publisher's socket.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// An address cannot be bound.
    #[error("failed to bind {endpoint}: {source}; choose an address that no other process uses")]
    Bind {
        /// The address.
        endpoint: String,
        /// Why.
        source: zmq::Error,
    },
    /// An address cannot be connected to.
    #[error("failed to connect to {endpoint}: {source}; give the address of an indexer, such as tcp://127.0.0.1:5557")]
    Connect {
        /// The address.
        endpoint: String,
        /// Why.
        source: zmq::Error,
    },
    /// Any other failure of a socket.
    #[error("failed to use an engine's socket: {0}")]
    Socket(#[from] zmq::Error),
}

/// Framing of replayed messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayFraming {
    /// `["", topic, sequence, payload]`: vLLM 0.26 and SGLang 0.5.22, and later.
    WithTopic,
    /// `["", sequence, payload]`: before them.
    WithoutTopic,
}

/// Loss of replayed messages: an engine's socket drops messages that a client does not receive fast enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayLoss {
    /// Nothing.
    None,
    /// Every second message after this number of messages.
    EverySecondAfter(usize),
    /// Everything after this number of messages, including the end marker.
    RestAfter(usize),
}

/// Options of a publisher.
#[derive(Debug, Clone)]
pub struct PublisherOptions {
    /// Endpoint of live batches, bound or connected to; a bound port `*` picks a free one.
    pub endpoint: String,
    /// Endpoint of replays, bound; port `*` picks a free one.
    pub replay_endpoint: String,
    /// First frame of every message.
    pub topic: Vec<u8>,
    /// Maximum number of batches queued for a slow subscriber; further ones are dropped. vLLM's `hwm`.
    pub unsent_batches_max: u32,
    /// Batches kept for replay.
    pub buffer_batches: usize,
    /// Framing of replayed messages.
    pub framing: ReplayFraming,
    /// Loss of replayed messages.
    pub replay_loss: ReplayLoss,
    /// CURVE keys: bound sockets are servers, and a connected one is a client; none without CURVE.
    pub curve: Option<Arc<Curve>>,
    /// Batches, with their sequence numbers, that the engine published before it could be reached. The first replay has them.
    pub history: Vec<(u64, Vec<u8>)>,
}

impl PublisherOptions {
    /// Free ports on loopback and vLLM's defaults.
    #[must_use]
    pub fn on_loopback() -> Self {
        Self {
            endpoint: "tcp://127.0.0.1:*".to_owned(),
            replay_endpoint: "tcp://127.0.0.1:*".to_owned(),
            topic: b"kv-events".to_vec(),
            unsent_batches_max: 100_000,
            buffer_batches: 10_000,
            framing: ReplayFraming::WithTopic,
            replay_loss: ReplayLoss::None,
            curve: None,
            history: Vec::new(),
        }
    }
}

type Buffer = Arc<Mutex<VecDeque<(u64, Vec<u8>)>>>;

/// The sockets of one engine rank. On drop the sockets close and the replay thread ends.
pub struct Publisher {
    live: zmq::Socket,
    endpoint: String,
    replay_endpoint: String,
    topic: Vec<u8>,
    buffer: Buffer,
    buffer_batches: usize,
    stop: Arc<AtomicBool>,
    replay_thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl Publisher {
    /// Binds both sockets.
    ///
    /// # Errors
    ///
    /// When an address is invalid or in use.
    pub fn bind(options: PublisherOptions) -> Result<Self, PublishError> {
        Self::open(options, |socket, endpoint, curve| {
            curve.map_or(Ok(false), |curve| curve.secure_server(socket))?;
            bind(socket, endpoint)
        })
    }

    /// Connects the live socket to an indexer, as vLLM does if its endpoint has no `*`, and binds the replay socket.
    /// ZeroMQ reconnects by itself.
    ///
    /// # Errors
    ///
    /// When an address is invalid, or the replay address is in use.
    pub fn connect(options: PublisherOptions) -> Result<Self, PublishError> {
        Self::open(options, |socket, endpoint, curve| {
            curve.map_or(Ok(false), |curve| curve.secure_client(socket, endpoint))?;
            let failed = |source| PublishError::Connect { endpoint: endpoint.to_owned(), source };
            socket.connect(endpoint).map(|()| endpoint.to_owned()).map_err(failed)
        })
    }

    fn open(
        mut options: PublisherOptions,
        open_live: impl FnOnce(&zmq::Socket, &str, Option<&Arc<Curve>>) -> Result<String, PublishError>,
    ) -> Result<Self, PublishError> {
        let context = zmq::Context::new();
        let mut history = VecDeque::from(std::mem::take(&mut options.history));
        let curve = options.curve.as_ref();
        // Before a socket is bound: libzmq admits every client without it.
        let admission = curve.map_or(Ok(None), |curve| curve.admission(&context))?;
        // An XPUB is a PUB that receives subscriptions as messages.
        let live = context.socket(zmq::XPUB)?;
        // Verbose: also a repeated subscription is received.
        live.set_xpub_verbose(true)?;
        live.set_sndhwm(i32::try_from(options.unsent_batches_max).unwrap_or(i32::MAX))?;
        live.set_linger(LINGER_MS)?;
        let endpoint = open_live(&live, &options.endpoint, curve)?;
        let router = context.socket(zmq::ROUTER)?;
        router.set_sndhwm(0)?;
        router.set_linger(0)?;
        curve.map_or(Ok(false), |curve| curve.secure_server(&router))?;
        let replay_endpoint = bind(&router, &options.replay_endpoint)?;
        history.drain(..history.len().saturating_sub(options.buffer_batches));
        let buffer = Arc::new(Mutex::new(history));
        let stop = Arc::new(AtomicBool::new(false));
        let (topic, buffer_batches) = (options.topic.clone(), options.buffer_batches);
        let replay = ReplayThread { router, admission, buffer: Arc::clone(&buffer), stop: Arc::clone(&stop), options };
        Ok(Self {
            live,
            endpoint,
            replay_endpoint,
            topic,
            buffer,
            buffer_batches,
            stop,
            replay_thread: Some(std::thread::spawn(move || replay.run())),
        })
    }

    /// Endpoint of live batches: bound, with the real port, or connected to.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Endpoint of replays, with the real port.
    #[must_use]
    pub fn replay_endpoint(&self) -> &str {
        &self.replay_endpoint
    }

    /// Waits for a subscription; false at the deadline.
    ///
    /// # Errors
    ///
    /// When the socket fails.
    pub fn wait_for_subscriber(&self, deadline: Duration) -> Result<bool, PublishError> {
        let start = Instant::now();
        loop {
            let left = deadline.saturating_sub(start.elapsed());
            let polled = self.live.poll(zmq::POLLIN, i64::try_from(left.as_millis()).unwrap_or(i64::MAX));
            // A signal interrupts the wait; the caller decides whether it ends the program.
            if polled == Err(zmq::Error::EINTR) || polled? == 0 {
                return Ok(false);
            }
            let subscription = self.live.recv_bytes(0)?;
            if subscription.first() == Some(&1) {
                return Ok(true);
            }
        }
    }

    /// Publishes one batch, and keeps it for replay.
    ///
    /// # Errors
    ///
    /// When the socket fails.
    pub fn publish(&self, sequence: u64, payload: &[u8]) -> Result<(), PublishError> {
        // A replay must contain every message that a subscriber may have received.
        self.keep(sequence, payload);
        self.publish_frames(&[self.topic.as_slice(), &sequence.to_be_bytes(), payload])
    }

    /// Keeps one batch for replay without publishing it, as if every subscriber had missed it.
    pub fn keep(&self, sequence: u64, payload: &[u8]) {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        buffer.push_back((sequence, payload.to_vec()));
        while buffer.len() > self.buffer_batches {
            buffer.pop_front();
        }
    }

    /// Publishes frames as they are, without keeping them.
    ///
    /// # Errors
    ///
    /// When the socket fails.
    pub fn publish_frames<F: AsRef<[u8]>>(&self, frames: &[F]) -> Result<(), PublishError> {
        self.live.send_multipart(frames.iter().map(AsRef::as_ref), 0)?;
        Ok(())
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(replay_thread) = self.replay_thread.take() {
            // The thread ends early only by a panic, which is reported already.
            let _ = replay_thread.join();
        }
    }
}

/// Longest time for which a closing publisher tries to deliver queued messages, in milliseconds.
const LINGER_MS: i32 = 1_000;

fn bind(socket: &zmq::Socket, endpoint: &str) -> Result<String, PublishError> {
    socket.bind(endpoint).map_err(|source| PublishError::Bind { endpoint: endpoint.to_owned(), source })?;
    let bound = socket.get_last_endpoint()?;
    Ok(bound.unwrap_or_else(|_| endpoint.to_owned()))
}

/// The thread that answers replay requests.
struct ReplayThread {
    router: zmq::Socket,
    admission: Option<Admission>,
    buffer: Buffer,
    stop: Arc<AtomicBool>,
    options: PublisherOptions,
}

impl ReplayThread {
    fn run(self) {
        while !self.stop.load(Ordering::Relaxed) {
            let mut items = vec![self.router.as_poll_item(zmq::POLLIN)];
            items.extend(self.admission.as_ref().map(Admission::poll_item));
            let polled = zmq::poll(&mut items, STOP_CHECK_MS);
            if let Some(admission) = &self.admission {
                admission.answer();
            }
            if polled.is_err() || !items[0].is_readable() {
                continue;
            }
            let Ok(frames) = self.router.recv_multipart(zmq::DONTWAIT) else { continue };
            // Real engines ignore a request without the empty frame as well.
            if let [client, empty, start] = frames.as_slice()
                && empty.is_empty()
                && let Ok(start) = <[u8; 8]>::try_from(start.as_slice())
            {
                self.replay(client, u64::from_be_bytes(start));
            }
        }
    }

    fn replay(&self, client: &[u8], start: u64) {
        let buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let replayed: Vec<_> = buffer.iter().filter(|(sequence, _)| *sequence >= start).cloned().collect();
        drop(buffer);
        for (at, (sequence, payload)) in replayed.iter().enumerate() {
            match self.options.replay_loss {
                ReplayLoss::EverySecondAfter(count) if at >= count && at % 2 == 1 => {}
                ReplayLoss::RestAfter(count) if at >= count => return,
                _ => self.reply(client, &sequence.to_be_bytes(), payload),
            }
        }
        self.reply(client, &REPLAY_END, b"");
    }

    fn reply(&self, client: &[u8], sequence: &[u8], payload: &[u8]) {
        let with_topic = [client, b"", &self.options.topic, sequence, payload];
        let without_topic = [client, b"", sequence, payload];
        let frames: &[&[u8]] = match self.options.framing {
            ReplayFraming::WithTopic => &with_topic,
            ReplayFraming::WithoutTopic => &without_topic,
        };
        // A disconnected client is not an error of the engine.
        let _ = self.router.send_multipart(frames, 0);
    }
}
