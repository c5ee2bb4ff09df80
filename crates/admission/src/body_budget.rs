//! Budgets of the bytes of bodies, of requests that are not answered yet and of answers that are not sent yet, shared fairly
//! between clients.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use flash_indexer_telemetry::memory::memory_share;
use flash_indexer_telemetry::metrics::{Limit, Metrics};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// A body with at most this number of bytes is small: its client gets a larger share of the budget for it.
const SMALL_BYTES: usize = 64 << 10;
/// A client with small bodies may have this number of bytes for each free one, and one free byte for each with larger
/// bodies.
const SMALL_WEIGHT: usize = 3;
/// The default is one part in this number of the memory.
const MEMORY_SHARE: usize = 16;
/// Smallest and largest default, in bytes.
const DEFAULT_BYTES: std::ops::RangeInclusive<usize> = 64 << 20..=1 << 30;
/// Number of the largest bodies that the budget holds: a single client gets half of it, and can send one.
const LARGEST_BODIES: usize = 2;

/// Longest time for a client to send a body, or a message of gRPC.
pub const READ_DEADLINE: Duration = Duration::from_secs(30);

/// Budget of the bytes of all bodies of requests, or of all bodies of answers, over HTTP and gRPC. Of a request, only
/// received bytes count. The head of a gRPC call counts with its body, until the call ends.
///
/// # Fairness
///
/// The clients of one address may together have as many bytes as are free. One such client alone gets half of the budget, two of them a
/// third each. So clients that send large bodies slowly always leave a part for others, and for small bodies of their own address. A small
/// body is received while its client has at most three times as many bytes as are free: one client alone can take three quarters of the
/// budget with them. A body that would exceed this is refused; received bytes of other bodies stay.
///
/// An answer may be larger than the share of its client, because a short text may have a long answer. So an unused budget accepts one
/// answer of any length, or one text.
#[derive(Debug)]
pub struct BodyBudget {
    bodies: Bodies,
    bytes_max: usize,
    received: Mutex<ReceivedBytes>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct ReceivedBytes {
    bytes: usize,
    by_client: FxHashMap<IpAddr, usize>,
}

/// The bodies in a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bodies {
    /// Of requests, until they are answered.
    Requests,
    /// Of answers, until they are sent.
    Answers,
    /// Texts that wait to be tokenized, or are tokenized.
    Texts,
}

/// The budget has no room for a body.
#[derive(Debug, thiserror::Error)]
pub enum BodyBudgetReached {
    /// The body of a request.
    #[error(
        "failed to receive the body: the bodies of all requests have too many bytes; retry later, or raise --body-bytes-total-max"
    )]
    Requests,
    /// The body of an answer.
    #[error(
        "failed to send the answer: the answers that clients have not read have too many bytes; read them, retry later, or raise --body-bytes-total-max"
    )]
    Answers,
    /// A text, counted by its tokenizer.
    #[error(
        "failed to queue the text: the texts of this client have too many bytes; wait for their answers, and retry"
    )]
    Texts,
}

impl BodyBudget {
    /// A budget of `bytes_max` bytes, by default a sixteenth of the memory. It is at least twice `body_bytes_max`, the
    /// limit of one body.
    pub fn new(bodies: Bodies, bytes_max: Option<usize>, body_bytes_max: usize, metrics: &Arc<Metrics>) -> Arc<Self> {
        let bytes_max = bytes_max.unwrap_or_else(|| memory_share(MEMORY_SHARE, DEFAULT_BYTES));
        let bytes_max = bytes_max.max(body_bytes_max.saturating_mul(LARGEST_BODIES));
        Arc::new(Self { bodies, bytes_max, received: Mutex::default(), metrics: Arc::clone(metrics) })
    }

    /// A separate budget for the same bodies, of this number of bytes.
    #[must_use]
    pub fn with_bytes(&self, bytes_max: usize) -> Arc<Self> {
        let metrics = Arc::clone(&self.metrics);
        Arc::new(Self { bodies: self.bodies, bytes_max, received: Mutex::default(), metrics })
    }

    /// Bytes in use.
    #[cfg(any(test, feature = "fault-injection"))]
    pub fn bytes(&self) -> usize {
        self.received.lock().bytes
    }

    /// Counts a refusal.
    fn refuse(&self) -> BodyBudgetReached {
        let (limit, reached) = match self.bodies {
            Bodies::Requests => (Limit::BodyBytesTotal, BodyBudgetReached::Requests),
            Bodies::Answers => (Limit::AnswerBytesTotal, BodyBudgetReached::Answers),
            Bodies::Texts => return BodyBudgetReached::Texts,
        };
        self.metrics.limit_reached(limit);
        reached
    }

    /// Bytes of a new body from a client; none is known in tests without a socket.
    pub fn body(self: &Arc<Self>, client: Option<IpAddr>) -> BodyBytes {
        let client = client.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        BodyBytes { budget: Arc::clone(self), client, bytes: 0 }
    }
}

/// Bytes of one body, released when it is dropped.
#[derive(Debug)]
pub struct BodyBytes {
    budget: Arc<BodyBudget>,
    client: IpAddr,
    bytes: usize,
}

impl BodyBytes {
    /// The client that sends or receives the body.
    #[must_use]
    pub fn client(&self) -> IpAddr {
        self.client
    }

    /// Metrics that count the budget's refusals.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.budget.metrics
    }

    /// Adds received bytes. A refusal is counted.
    pub fn add(&mut self, bytes: usize) -> Result<(), BodyBudgetReached> {
        let mut received = self.budget.received.lock();
        let free = self.budget.bytes_max.saturating_sub(received.bytes);
        let of_client = received.by_client.get(&self.client).copied().unwrap_or(0);
        let weight = if self.bytes + bytes <= SMALL_BYTES { SMALL_WEIGHT } else { 1 };
        let is_only_one = self.budget.bodies != Bodies::Requests && received.bytes == 0;
        if !is_only_one && (bytes > free || of_client + bytes > weight.saturating_mul(free)) {
            drop(received);
            return Err(self.budget.refuse());
        }
        received.bytes += bytes;
        received.by_client.insert(self.client, of_client + bytes);
        self.bytes += bytes;
        Ok(())
    }

    /// Changes the number of bytes, after the body was decompressed.
    pub fn set(&mut self, bytes: usize) -> Result<(), BodyBudgetReached> {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.add(more),
            None => {
                self.shrink(bytes);
                Ok(())
            }
        }
    }

    /// Splits off a number of bytes, at most all, which are then released separately.
    pub fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { budget: Arc::clone(&self.budget), client: self.client, bytes }
    }

    /// Releases all but this number of bytes.
    pub fn shrink(&mut self, bytes: usize) {
        let released = self.bytes.saturating_sub(bytes);
        if released == 0 {
            return;
        }
        self.bytes -= released;
        let mut received = self.budget.received.lock();
        received.bytes -= released;
        let of_client = received.by_client.get_mut(&self.client).expect("it has bytes");
        *of_client -= released;
        if *of_client == 0 {
            received.by_client.remove(&self.client);
        }
    }
}

impl Drop for BodyBytes {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[cfg(test)]
mod tests {
    use flash_indexer_telemetry::metrics::MetricNames;

    use super::*;

    const BYTES_MAX: usize = 64 * SMALL_BYTES;

    fn budget(bytes_max: usize, body_bytes_max: usize) -> (Arc<BodyBudget>, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::new(MetricNames::Own));
        (BodyBudget::new(Bodies::Requests, Some(bytes_max), body_bytes_max, &metrics), metrics)
    }

    fn client(number: u8) -> Option<IpAddr> {
        Some(Ipv4Addr::new(10, 0, 0, number).into())
    }

    /// Opens bodies of a client, each of this size, until one is refused.
    fn fill(budget: &Arc<BodyBudget>, number: u8, bytes: usize) -> Vec<BodyBytes> {
        let open = || {
            let mut body = budget.body(client(number));
            body.add(bytes).ok().map(|()| body)
        };
        std::iter::from_fn(open).collect()
    }

    #[test]
    fn clients_with_large_bodies_leave_room_for_others() {
        let (budget, metrics) = budget(BYTES_MAX, SMALL_BYTES);
        let large = 2 * SMALL_BYTES;
        let first = fill(&budget, 1, large);
        assert_eq!(first.len() * large, BYTES_MAX / 2);
        assert_eq!(metrics.limit_reached_count(Limit::BodyBytesTotal), 1);
        let second = fill(&budget, 2, large);
        assert_eq!(second.len() * large, BYTES_MAX / 4, "as much as is free then");
        let small = fill(&budget, 1, SMALL_BYTES);
        assert_eq!(small.len(), 4, "small bodies of the same address: up to three times as many bytes as are free");
        assert_eq!(fill(&budget, 3, large).len(), 3, "as much as is free then");
        drop((first, second, small));
        assert_eq!(budget.received.lock().bytes, 0);
        assert!(budget.received.lock().by_client.is_empty());
    }

    #[test]
    fn clients_with_small_bodies_leave_room_for_others() {
        let (budget, _) = budget(BYTES_MAX, SMALL_BYTES);
        let mut first = fill(&budget, 1, SMALL_BYTES);
        for bytes in [1_000, 10, 1] {
            first.extend(fill(&budget, 1, bytes));
        }
        assert_eq!(budget.bytes(), BYTES_MAX / 4 * 3, "the rest is for other clients");
        let large = fill(&budget, 2, 2 * SMALL_BYTES);
        assert_eq!(large.len() * 2 * SMALL_BYTES, BYTES_MAX / 8);
        let third = fill(&budget, 3, 1_000);
        assert!(third.len() * 1_000 > BYTES_MAX / 8 / 4 * 3 - 1_000 && budget.bytes() < BYTES_MAX);
        drop((first, large, third));
        assert_eq!(budget.bytes(), 0);
    }

    #[test]
    fn a_client_can_send_the_largest_body_and_its_growth_is_counted() {
        let (budget, metrics) = budget(1, BYTES_MAX);
        let mut body = budget.body(client(1));
        (0..64).for_each(|_| body.add(SMALL_BYTES).expect("one body fits"));
        body.add(1).expect_err("it is larger than half of the budget");
        body.set(SMALL_BYTES).expect("it shrinks");
        assert_eq!(budget.received.lock().bytes, SMALL_BYTES);
        body.set(BYTES_MAX).expect("it fits");
        body.set(BYTES_MAX + 1).expect_err("too large");
        assert_eq!(metrics.limit_reached_count(Limit::BodyBytesTotal), 2);
        body.shrink(0);
        assert_eq!(budget.received.lock().bytes, 0);
    }

    #[test]
    fn an_empty_budget_takes_an_answer_of_any_length_and_its_parts_are_released_by_themselves() {
        let metrics = Arc::new(Metrics::new(MetricNames::Own));
        let budget = BodyBudget::new(Bodies::Answers, Some(BYTES_MAX), 1, &metrics);
        let mut answer = budget.body(client(1));
        answer.add(2 * BYTES_MAX).expect("there is no other answer");
        let mut second = budget.body(client(2));
        second.add(1).expect_err("there is no room");
        assert_eq!(metrics.limit_reached_count(Limit::AnswerBytesTotal), 1);
        let part = answer.split(BYTES_MAX + BYTES_MAX / 2);
        assert_eq!(budget.bytes(), 2 * BYTES_MAX);
        drop(part);
        assert_eq!(budget.bytes(), BYTES_MAX / 2);
        second.add(BYTES_MAX / 4).expect("there is room");
        drop(answer.split(usize::MAX));
        assert_eq!(budget.bytes(), BYTES_MAX / 4, "a part has at most all bytes");
    }
}
