//! Observation of one engine: its sockets, and the service's answers about it.

use std::ops::ControlFlow;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use flash_indexer_api::Listener;
use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_types::ConnectionStatus;
use flash_indexer_types::endpoints::{is_pulled, is_streamed};
use flash_indexer_wire::{LiveMessage, ReplayReply, TranslatorOptions};

use super::follower::{Delivery, HeldChain, StreamFollower, StreamSummary};
use super::sockets::{self, ConnectError, Subscription};
use flash_indexer_commands::IndexerClient;

const CONNECT_DEADLINE: Duration = Duration::from_secs(3);
/// Silence that ends a replay.
const REPLAY_SILENCE_MAX: Duration = Duration::from_secs(3);
const REPLAY_DEADLINE: Duration = Duration::from_secs(20);
/// Longest wait for the service to apply the messages that doctor received.
const CATCH_UP_DEADLINE: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Chains that one comparison queries.
const CHAINS_MAX: usize = 4;
/// Comparisons until a wrong answer is reported.
const COMPARISONS_MAX: usize = 3;

/// A registered stream: ranks of one instance at one endpoint.
#[derive(Debug, Clone)]
pub(super) struct Stream {
    pub(super) instance: String,
    pub(super) model_name: String,
    pub(super) tenant_id: String,
    pub(super) block_size: u32,
    pub(super) ranks: Vec<u32>,
    /// Listener of the first rank.
    pub(super) listener: Listener,
}

/// How an engine's endpoint responds to doctor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EndpointStatus {
    /// As a publisher.
    Publisher,
    /// Not at all: the engine connects to the service.
    Bound,
    /// Not at all: the service pulls the engine's events, and a second reader would consume them.
    Pulled,
    /// Not at all: the engine's server streams the events over gRPC.
    Streamed,
    /// The endpoint accepts connections, but is not a publisher.
    NotPublisher,
    /// The endpoint accepts connections, and no process reads from or writes to them.
    Unresponsive,
    /// No connection is possible.
    Unreachable(ConnectError),
}

/// How an engine's replay endpoint responds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ReplayStatus {
    NotRegistered,
    Unreachable(ConnectError),
    /// The endpoint accepts the request and sends nothing.
    Unresponsive,
    Answered {
        /// First sequence number of the replay; none if the engine's buffer is empty.
        first: Option<u64>,
        messages: u64,
        /// Gaps between replayed messages.
        gaps: u64,
        has_end: bool,
        has_topic: bool,
    },
}

/// Comparison of the service's answers with the blocks that the engine holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AnswerComparison {
    /// No sequence was received from its start.
    NothingToCompare,
    Equal {
        chains: usize,
        blocks: usize,
    },
    /// The service's answer for a chain is too short; in tokens.
    Shorter {
        dp_rank: DpRank,
        expected: u64,
        answered: u64,
    },
    Failed(String),
}

/// Everything observed of a stream.
#[derive(Debug, Clone)]
pub(super) struct Observation {
    pub(super) stream: Stream,
    pub(super) endpoint: EndpointStatus,
    pub(super) received: StreamSummary,
    pub(super) replay: ReplayStatus,
    pub(super) comparison: AnswerComparison,
    /// Listener of each rank at the end; fewer if ranks were unregistered during the observation.
    pub(super) after: Vec<Listener>,
}

/// Observes a stream and listens to it for `listen`.
pub(super) fn observe(client: &IndexerClient, stream: &Stream, hash_seed: &str, listen: Duration) -> Observation {
    let listener = &stream.listener;
    let mut follower = stream.follower(hash_seed);
    let subscribed = subscribe(&listener.endpoint);
    let replay = match &listener.replay_endpoint {
        None => ReplayStatus::NotRegistered,
        Some(endpoint) => request_replay(endpoint, &mut follower),
    };
    let mut comparison = AnswerComparison::NothingToCompare;
    if let Ok(subscription) = &subscribed {
        // Messages that arrived during the replay have waited.
        listen_to(subscription, &mut follower, Duration::ZERO, |_| Delivery::Queued);
        listen_to(subscription, &mut follower, listen, Delivery::Live);
        comparison = compare(client, stream, subscription, &mut follower);
        catch_up(client, stream, follower.summary().last);
    }
    let after = listeners_now(client, stream).unwrap_or_default();
    let endpoint = subscribed.err().unwrap_or(EndpointStatus::Publisher);
    Observation { stream: stream.clone(), endpoint, received: follower.summary(), replay, comparison, after }
}

/// Whether an endpoint represents an engine that connects to the service.
pub(super) fn is_bound(endpoint: &str) -> bool {
    endpoint == "bound" || endpoint.starts_with("bound:")
}

impl Stream {
    fn follower(&self, hash_seed: &str) -> StreamFollower {
        let options = TranslatorOptions {
            // The service registers no block size of zero.
            block_size: BlockSize::new(self.block_size.max(1)).expect("at least one"),
            lora_name: self.listener.lora_name.clone(),
            removed_copies: self.listener.removal.into(),
            cache_tier: None,
        };
        StreamFollower::new(options, DpRank(self.ranks.first().copied().unwrap_or_default()), hash_seed)
    }
}

/// A subscription to a publisher; for another endpoint, how it responds.
fn subscribe(endpoint: &str) -> Result<Subscription, EndpointStatus> {
    if is_bound(endpoint) {
        return Err(EndpointStatus::Bound);
    }
    if is_pulled(endpoint) {
        return Err(EndpointStatus::Pulled);
    }
    if is_streamed(endpoint) {
        return Err(EndpointStatus::Streamed);
    }
    sockets::check_reachable(endpoint, CONNECT_DEADLINE).map_err(EndpointStatus::Unreachable)?;
    let opened = Subscription::open(endpoint).and_then(|subscription| {
        let is_answered = subscription.is_answered_within(CONNECT_DEADLINE)?;
        Ok((subscription, is_answered))
    });
    match opened {
        Ok((subscription, true)) => Ok(subscription),
        Ok((_, false)) if sockets::is_unresponsive(endpoint, CONNECT_DEADLINE) => Err(EndpointStatus::Unresponsive),
        Ok((_, false)) => Err(EndpointStatus::NotPublisher),
        Err(error) => Err(EndpointStatus::Unreachable(ConnectError::Other(error.to_string()))),
    }
}

fn request_replay(endpoint: &str, follower: &mut StreamFollower) -> ReplayStatus {
    if let Err(why) = sockets::check_reachable(endpoint, CONNECT_DEADLINE) {
        return ReplayStatus::Unreachable(why);
    }
    let (mut first, mut last, mut messages, mut gaps) = (None, None, 0, 0);
    let (mut has_end, mut has_topic, mut has_answer) = (false, false, false);
    let result = sockets::replay(endpoint, REPLAY_SILENCE_MAX, REPLAY_DEADLINE, |frames| {
        has_answer = true;
        has_topic = frames.len() > 3;
        match ReplayReply::from_frames(&frames) {
            Ok(ReplayReply::End) => {
                has_end = true;
                return ControlFlow::Break(());
            }
            Ok(ReplayReply::Message { sequence, payload, .. }) => {
                messages += 1;
                first = first.or(Some(sequence));
                gaps += u64::from(last.is_some_and(|last: u64| sequence != last.wrapping_add(1)));
                last = Some(sequence);
                follower.receive(sequence, payload, Delivery::Replayed);
            }
            Err(error) => follower.reject(error.to_string()),
        }
        ControlFlow::Continue(())
    });
    match result {
        Err(error) => ReplayStatus::Unreachable(ConnectError::Other(error.to_string())),
        Ok(()) if !has_answer => ReplayStatus::Unresponsive,
        Ok(()) => ReplayStatus::Answered { first, messages, gaps, has_end, has_topic },
    }
}

/// Receives messages for `listen`, and then the ones that have arrived by that time.
fn listen_to(
    subscription: &Subscription,
    follower: &mut StreamFollower,
    listen: Duration,
    arrival: impl Fn(f64) -> Delivery,
) {
    let start = Instant::now();
    // The time bounds a stream that never pauses.
    while start.elapsed() < listen + POLL_INTERVAL {
        match subscription.next_within(listen.saturating_sub(start.elapsed())) {
            Ok(Some(frames)) => match LiveMessage::from_frames(&frames) {
                Ok(LiveMessage { sequence: Some(sequence), payload, .. }) => {
                    follower.receive(sequence, payload, arrival(now_s()));
                }
                Ok(_) => follower.reject("the engine's messages have no sequence numbers".to_owned()),
                Err(error) => follower.reject(error.to_string()),
            },
            Ok(None) => return,
            Err(error) => return follower.reject(format!("failed to receive: {error}")),
        }
    }
}

/// Queries the service for chains that the engine holds. Both continue meanwhile, so the service must find the blocks
/// that the engine held before the query and still holds after it.
fn compare(
    client: &IndexerClient,
    stream: &Stream,
    live: &Subscription,
    follower: &mut StreamFollower,
) -> AnswerComparison {
    let mut seen = AnswerComparison::NothingToCompare;
    for _ in 0..COMPARISONS_MAX {
        catch_up(client, stream, follower.summary().last);
        let chains = follower.chains(CHAINS_MAX).into_iter();
        let before: Vec<_> = chains.map(|chain| (follower.depth(&chain), chain)).collect();
        let mut answers = Vec::new();
        for (_, chain) in &before {
            match client.query_by_hash(&chain.locals, &stream.model_name, &stream.tenant_id) {
                Ok(answer) => answers
                    .push(answer.scores.get(&stream.instance).and_then(|ranks| ranks.get(&chain.dp_rank.0)).copied()),
                Err(error) => return AnswerComparison::Failed(format!("{error:#}")),
            }
        }
        // Doctor must have received every message that the service had applied when it answered.
        let reached = listeners_now(client, stream).ok().and_then(|now| now.iter().filter_map(|l| l.last_seq).max());
        let start = Instant::now();
        while follower.summary().last < reached && start.elapsed() < CATCH_UP_DEADLINE {
            listen_to(live, follower, POLL_INTERVAL, Delivery::Live);
        }
        seen = compare_answers(&before, &answers, follower);
        if !matches!(seen, AnswerComparison::Shorter { .. }) {
            return seen;
        }
    }
    seen
}

fn compare_answers(
    before: &[(u32, HeldChain)],
    answers: &[Option<u64>],
    follower: &StreamFollower,
) -> AnswerComparison {
    let block_size = u64::from(follower.block_size().tokens());
    let (mut chains, mut blocks) = (0, 0);
    for ((depth, chain), answered) in before.iter().zip(answers) {
        let expected = u64::from(follower.depth(chain).min(*depth));
        let answered = answered.unwrap_or_default();
        if answered < expected * block_size {
            return AnswerComparison::Shorter { dp_rank: chain.dp_rank, expected: expected * block_size, answered };
        }
        chains += usize::from(expected > 0);
        blocks += expected as usize;
    }
    match chains {
        0 => AnswerComparison::NothingToCompare,
        chains => AnswerComparison::Equal { chains, blocks },
    }
}

/// Waits until the service has applied message `wanted`, or is disconnected, or the deadline is over.
fn catch_up(client: &IndexerClient, stream: &Stream, wanted: Option<u64>) {
    let is_behind = |listener: &Listener| listener.last_seq < wanted && listener.status == ConnectionStatus::Connected;
    let start = Instant::now();
    while start.elapsed() < CATCH_UP_DEADLINE
        && listeners_now(client, stream).is_ok_and(|now| now.iter().any(is_behind))
    {
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn listeners_now(client: &IndexerClient, stream: &Stream) -> anyhow::Result<Vec<Listener>> {
    let workers = client.workers(&stream.model_name, &stream.tenant_id)?;
    let worker = workers.into_iter().find(|worker| worker.instance_id.as_key() == stream.instance);
    let listeners = worker.map(|worker| worker.listeners).unwrap_or_default();
    Ok(listeners.into_iter().filter(|(rank, _)| stream.ranks.contains(rank)).map(|(_, listener)| listener).collect())
}

fn now_s() -> f64 {
    // A clock before 1970 yields a large lag.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use flash_indexer_core::{RemovedCopies, SequenceHash};
    use flash_indexer_wire::{BlockRemoved, BlockStored, Encoding, EngineEvent, TokenIds, encode_batch};

    use super::*;

    fn stored() -> EngineEvent<'static> {
        EngineEvent::Stored(BlockStored {
            block_hashes: vec![SequenceHash(1), SequenceHash(2)],
            token_ids: TokenIds::Plain(vec![1, 2, 3, 4]),
            block_size: 2,
            ..BlockStored::default()
        })
    }

    #[test]
    fn the_service_must_find_blocks_held_before_and_after_the_query() {
        let options = TranslatorOptions {
            block_size: BlockSize::new(2).expect("not zero"),
            lora_name: None,
            removed_copies: RemovedCopies::One,
            cache_tier: None,
        };
        let mut follower = StreamFollower::new(options, DpRank(0), "0");
        follower.receive(0, &encode_batch(1.0, &[stored()], None, Encoding::Map), Delivery::Queued);
        let chains = follower.chains(CHAINS_MAX).into_iter();
        let before: Vec<_> = chains.map(|chain| (follower.depth(&chain), chain)).collect();
        assert_eq!(compare_answers(&before, &[Some(4)], &follower), AnswerComparison::Equal { chains: 1, blocks: 2 });
        let shorter = |answered| AnswerComparison::Shorter { dp_rank: DpRank(0), expected: 4, answered };
        assert_eq!(compare_answers(&before, &[Some(2)], &follower), shorter(2));
        assert_eq!(
            compare_answers(&before, &[None], &follower),
            shorter(0),
            "an instance without a score has no match"
        );

        let removed = EngineEvent::Removed(BlockRemoved { block_hashes: vec![SequenceHash(2)], ..Default::default() });
        follower.receive(1, &encode_batch(2.0, &[removed], None, Encoding::Map), Delivery::Queued);
        assert_eq!(compare_answers(&before, &[Some(2)], &follower), AnswerComparison::Equal { chains: 1, blocks: 1 });
    }
}
