//! Live figures: one sampler for all subscribers.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

/// Limit of concurrent subscribers.
pub const SUBSCRIBERS_MAX: usize = 16;
/// Time between samples.
const INTERVAL: Duration = Duration::from_secs(1);
/// Samples that a new subscriber receives at once.
const HISTORY: usize = 180;
/// Samples queued for a slow subscriber. It misses further samples.
const QUEUED_MAX: usize = 8;

/// Counters of the service since its start. The dashboard computes rates from two samples.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Sample {
    /// Events applied.
    pub events: u64,
    /// Queries answered, over any protocol.
    pub queries: u64,
    /// Blocks of the queried prompts.
    pub queried_blocks: u64,
    /// Of these, leading blocks that the rank with the deepest match held.
    pub found_blocks: u64,
    /// Prompt tokens of requests whose cached tokens were reported.
    pub reported_prompt_tokens: u64,
    /// Of these, tokens that the engine had cached.
    pub reported_cached_tokens: u64,
    /// Upper bounds of the buckets of `latencies`, in seconds.
    #[serde(skip)]
    pub latency_bounds_s: &'static [f64],
    /// Queries over HTTP and gRPC by their latency, and in one more bucket without an upper bound.
    pub latencies: Vec<u64>,
}

/// An event of the stream.
#[derive(Serialize)]
struct Event<'a> {
    /// Milliseconds since 1970.
    at_ms: u64,
    bounds_s: &'static [f64],
    #[serde(flatten)]
    sample: &'a Sample,
}

/// Too many subscribers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManySubscribers;

/// Live figures of a service.
///
/// # Consistency
///
/// A subscriber receives the samples of the last three minutes and then each further one, in their order. A slow subscriber
/// misses samples.
#[derive(Debug, Default)]
pub struct LiveFigures(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    history: VecDeque<Bytes>,
    subscribers: Vec<mpsc::Sender<Bytes>>,
    has_stopped: bool,
}

/// Sampler of live figures. Dropping it stops the sampler and ends all streams.
#[derive(Debug)]
pub struct LiveGuard {
    live: Arc<LiveFigures>,
    sampler: JoinHandle<()>,
}

impl Drop for LiveGuard {
    fn drop(&mut self) {
        self.sampler.abort();
        let mut state = self.live.0.lock();
        state.has_stopped = true;
        state.subscribers.clear();
    }
}

impl LiveFigures {
    /// Starts a task that calls `read` once a second. `read` must not block. Needs a Tokio runtime.
    pub fn start(read: impl Fn() -> Sample + Send + 'static) -> (Arc<Self>, LiveGuard) {
        let live = Arc::new(Self::default());
        let sampler = tokio::spawn({
            let live = Arc::clone(&live);
            async move {
                let mut ticks = tokio::time::interval(INTERVAL);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                loop {
                    ticks.tick().await;
                    live.publish(&read());
                }
            }
        });
        (Arc::clone(&live), LiveGuard { live, sampler })
    }

    fn publish(&self, sample: &Sample) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let event = Event { at_ms, bounds_s: sample.latency_bounds_s, sample };
        let json = serde_json::to_string(&event).expect("numbers are JSON");
        let event = Bytes::from(format!("data: {json}\n\n"));
        let mut state = self.0.lock();
        // A full queue misses the sample.
        let is_closed = |sent| matches!(sent, Err(mpsc::error::TrySendError::Closed(_)));
        state.subscribers.retain(|subscriber| !is_closed(subscriber.try_send(event.clone())));
        if state.history.len() >= HISTORY {
            state.history.pop_front();
        }
        state.history.push_back(event);
    }

    /// A stream of the recent samples and of all further ones, as long as `is_permitted` is true before each of the latter.
    ///
    /// # Errors
    ///
    /// If there are [`SUBSCRIBERS_MAX`] subscribers.
    pub fn subscribe(
        &self,
        is_permitted: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Result<LiveEvents, TooManySubscribers> {
        let (sender, samples) = mpsc::channel(QUEUED_MAX);
        let mut state = self.0.lock();
        state.subscribers.retain(|subscriber| !subscriber.is_closed());
        if state.subscribers.len() >= SUBSCRIBERS_MAX {
            return Err(TooManySubscribers);
        }
        if !state.has_stopped {
            state.subscribers.push(sender);
        }
        let history = state.history.iter().flatten().copied().collect::<Vec<u8>>();
        Ok(LiveEvents { history: Some(history.into()), samples, is_permitted: Box::new(is_permitted) })
    }
}

/// Server-sent events of one subscriber. It ends when the sampler stops, or the subscriber is no longer permitted.
pub struct LiveEvents {
    history: Option<Bytes>,
    samples: mpsc::Receiver<Bytes>,
    is_permitted: Box<dyn Fn() -> bool + Send + Sync>,
}

impl Stream for LiveEvents {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.history.take() {
            Some(history) if !history.is_empty() => Poll::Ready(Some(Ok(history))),
            _ => self.samples.poll_recv(context).map(|sample| sample.filter(|_| (self.is_permitted)()).map(Ok)),
        }
    }
}

impl IntoResponse for LiveEvents {
    fn into_response(self) -> Response {
        let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
        (headers, Body::from_stream(self)).into_response()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    async fn next(events: &mut LiveEvents) -> Option<String> {
        let event = poll_fn(|context| Pin::new(&mut *events).poll_next(context)).await;
        event.map(|Ok(bytes)| String::from_utf8(bytes.to_vec()).expect("UTF-8"))
    }

    fn sample(events: u64) -> Sample {
        Sample { events, ..Sample::default() }
    }

    #[tokio::test]
    async fn a_subscriber_receives_the_recent_samples_then_further_ones_and_the_end() {
        let (live, guard) = LiveFigures::start(|| sample(0));
        guard.sampler.abort();
        for events in 1..=HISTORY as u64 + 1 {
            live.publish(&sample(events));
        }
        let mut events = live.subscribe(|| true).expect("a place");
        let history = next(&mut events).await.expect("samples");
        let counts: Vec<&str> =
            history.split("\"events\":").skip(1).filter_map(|rest| rest.split(',').next()).collect();
        let expected: Vec<String> = (2..=HISTORY as u64 + 1).map(|events| events.to_string()).collect();
        assert_eq!(counts, expected);
        live.publish(&sample(7));
        assert!(
            next(&mut events).await.is_some_and(|event| event.contains("\"events\":7,") && event.ends_with("\n\n"))
        );
        let mut revoked = live.subscribe(|| false).expect("a place");
        assert!(next(&mut revoked).await.is_some(), "the history was permitted with the request");
        live.publish(&sample(8));
        assert_eq!(next(&mut revoked).await, None);
        drop(guard);
        assert!(next(&mut events).await.is_some_and(|event| event.contains("\"events\":8,")));
        assert_eq!(next(&mut events).await, None);
        let mut late = live.subscribe(|| true).expect("a place");
        assert!(next(&mut late).await.is_some(), "history");
        assert_eq!(next(&mut late).await, None, "a stopped sampler has no further samples");
    }

    #[tokio::test]
    async fn subscribers_and_their_queues_are_bounded() {
        let live = LiveFigures::default();
        let mut all: Vec<LiveEvents> =
            (0..SUBSCRIBERS_MAX).map(|_| live.subscribe(|| true).expect("a place")).collect();
        assert_eq!(live.subscribe(|| true).err(), Some(TooManySubscribers));
        (0..3 * QUEUED_MAX as u64).for_each(|events| live.publish(&sample(events)));
        let mut received = 0;
        while let Ok(bytes) = all[0].samples.try_recv() {
            assert!(!bytes.is_empty());
            received += 1;
        }
        assert_eq!(received, QUEUED_MAX);
        drop(all.pop());
        assert!(live.subscribe(|| true).is_ok(), "a place is free again");
    }
}
