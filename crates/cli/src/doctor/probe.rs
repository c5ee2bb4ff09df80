//! Looking at one engine from outside: its sockets, and what the service answers about it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::{DpRank, RemovedCopies};
use flash_indexer_wire::{LiveMessage, ReplayReply, TranslatorOptions};

use super::heard::{Arrival, Heard, HeardSummary, HeldChain};
use super::sockets::{self, ReplayGoesOn, Subscription, Unreached};
use crate::client::{IndexerClient, Listener};

const CONNECT_DEADLINE: Duration = Duration::from_secs(3);
/// A replay that says nothing for so long has ended.
const REPLAY_SILENCE_MAX: Duration = Duration::from_secs(3);
const REPLAY_DEADLINE: Duration = Duration::from_secs(20);
/// Longest wait for the service to take in what was heard.
const CATCH_UP_DEADLINE: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Chains that are asked back at a time, and how often a wrong answer is given another chance.
const CHAINS_MAX: usize = 4;
const COMPARISONS_MAX: usize = 3;

/// One engine's stream as it is registered: some ranks of an instance at one endpoint.
#[derive(Debug, Clone)]
pub(super) struct Stream {
    pub(super) instance: String,
    pub(super) model_name: String,
    pub(super) tenant_id: String,
    pub(super) block_size: u32,
    pub(super) ranks: Vec<u32>,
    /// Of the first of the ranks.
    pub(super) listener: Listener,
}

/// How an endpoint answers from here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EndpointSeen {
    /// As a publisher does.
    Publisher,
    /// There is none: the engine connects to the service.
    Bound,
    /// Somebody accepts connections who is no publisher.
    Stranger,
    /// It accepts connections, and no process behind it reads or writes.
    Silent,
    /// No connection can be made, and why.
    Unreachable(Unreached),
}

/// How the replay endpoint answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ReplaySeen {
    NotRegistered,
    Unreachable(Unreached),
    /// It takes the question and says nothing.
    Silent,
    Answered {
        /// First number of the answer; none if the engine has nothing to replay.
        first: Option<u64>,
        messages: u64,
        /// Times that messages of the answer did not follow each other.
        gaps: u64,
        has_end: bool,
        has_topic: bool,
    },
}

/// Whether the service says of heard blocks what the engine says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HoldingsSeen {
    /// Nothing was heard of a sequence from its start.
    NothingToCompare,
    Equal {
        chains: usize,
        blocks: usize,
    },
    /// The service finds too little of this chain; in tokens.
    Less {
        dp_rank: DpRank,
        expected: u64,
        answered: u64,
    },
    Failed(String),
}

/// All that was seen of a stream.
#[derive(Debug, Clone)]
pub(super) struct Observed {
    pub(super) stream: Stream,
    pub(super) endpoint: EndpointSeen,
    pub(super) heard: HeardSummary,
    pub(super) replay: ReplaySeen,
    pub(super) holdings: HoldingsSeen,
    /// The listener of each rank when all was over; fewer if some were unregistered meanwhile.
    pub(super) after: Vec<Listener>,
}

/// Looks at a stream for a while.
pub(super) fn observe(client: &IndexerClient, stream: &Stream, hash_seed: &str, listen: Duration) -> Observed {
    let listener = &stream.listener;
    let mut heard = stream.heard(hash_seed);
    let (endpoint, subscription) = subscribe(&listener.endpoint);
    let replay = match &listener.replay_endpoint {
        None => ReplaySeen::NotRegistered,
        Some(endpoint) => ask_replay(endpoint, &mut heard),
    };
    let mut holdings = HoldingsSeen::NothingToCompare;
    if let Some(subscription) = &subscription {
        // What came during the replay has waited.
        hear(subscription, &mut heard, Duration::ZERO, |_| Arrival::Waited);
        hear(subscription, &mut heard, listen, Arrival::Live);
        holdings = compare(client, stream, subscription, &mut heard);
    }
    if subscription.is_some() {
        catch_up(client, stream, heard.summary().last);
    }
    let after = listeners_now(client, stream).unwrap_or_default();
    Observed { stream: stream.clone(), endpoint, heard: heard.summary(), replay, holdings, after }
}

/// Whether an endpoint says that the engine connects to the service.
pub(super) fn is_bound(endpoint: &str) -> bool {
    endpoint == "bound" || endpoint.starts_with("bound:")
}

impl Stream {
    fn heard(&self, hash_seed: &str) -> Heard {
        let options = TranslatorOptions {
            // Nothing is registered with a size of zero.
            block_size: BlockSize::new(self.block_size.max(1)).expect("it is not zero"),
            lora_name: self.listener.lora_name.clone(),
            removed_copies: match self.listener.removal.as_deref() {
                Some("last_copy") => RemovedCopies::All,
                _ => RemovedCopies::One,
            },
        };
        Heard::new(options, DpRank(self.ranks.first().copied().unwrap_or_default()), hash_seed)
    }
}

fn subscribe(endpoint: &str) -> (EndpointSeen, Option<Subscription>) {
    if is_bound(endpoint) {
        return (EndpointSeen::Bound, None);
    }
    if let Err(why) = sockets::reach(endpoint, CONNECT_DEADLINE) {
        return (EndpointSeen::Unreachable(why), None);
    }
    let opened = Subscription::open(endpoint).and_then(|subscription| {
        let is_answered = subscription.is_answered_within(CONNECT_DEADLINE)?;
        Ok((subscription, is_answered))
    });
    match opened {
        Ok((subscription, true)) => (EndpointSeen::Publisher, Some(subscription)),
        Ok((_, false)) if sockets::is_silent(endpoint, CONNECT_DEADLINE) => (EndpointSeen::Silent, None),
        Ok((_, false)) => (EndpointSeen::Stranger, None),
        Err(error) => (EndpointSeen::Unreachable(Unreached::Other(error.to_string())), None),
    }
}

fn ask_replay(endpoint: &str, heard: &mut Heard) -> ReplaySeen {
    if let Err(why) = sockets::reach(endpoint, CONNECT_DEADLINE) {
        return ReplaySeen::Unreachable(why);
    }
    let (mut first, mut last, mut messages, mut gaps) = (None, None, 0, 0);
    let (mut has_end, mut has_topic, mut has_answer) = (false, false, false);
    let result = sockets::replay(endpoint, REPLAY_SILENCE_MAX, REPLAY_DEADLINE, |frames| {
        has_answer = true;
        has_topic = frames.len() > 3;
        match ReplayReply::from_frames(&frames) {
            Ok(ReplayReply::End) => {
                has_end = true;
                return ReplayGoesOn::No;
            }
            Ok(ReplayReply::Message { sequence, payload }) => {
                messages += 1;
                first = first.or(Some(sequence));
                gaps += u64::from(last.is_some_and(|last: u64| sequence != last.wrapping_add(1)));
                last = Some(sequence);
                heard.take(sequence, payload, Arrival::Replayed);
            }
            Err(error) => heard.unusable(error.to_string()),
        }
        ReplayGoesOn::Yes
    });
    match result {
        Err(error) => ReplaySeen::Unreachable(Unreached::Other(error.to_string())),
        Ok(()) if !has_answer => ReplaySeen::Silent,
        Ok(()) => ReplaySeen::Answered { first, messages, gaps, has_end, has_topic },
    }
}

/// Listens for so long, and to what has arrived by then.
fn hear(subscription: &Subscription, heard: &mut Heard, listen: Duration, arrival: impl Fn(f64) -> Arrival) {
    let start = Instant::now();
    // A stream that never pauses must not be listened to for ever.
    while start.elapsed() < listen + POLL_INTERVAL {
        match subscription.next_within(listen.saturating_sub(start.elapsed())) {
            Ok(Some(frames)) => match LiveMessage::from_frames(&frames) {
                Ok(message) => heard.take(message.sequence, message.payload, arrival(now_s())),
                Err(error) => heard.unusable(error.to_string()),
            },
            Ok(None) => return,
            Err(error) => return heard.unusable(format!("failed to receive: {error}")),
        }
    }
}

/// Asks the service for chains that the engine holds. Both go on meanwhile, so the service must find what the
/// engine held before the question and still holds after it.
fn compare(client: &IndexerClient, stream: &Stream, live: &Subscription, heard: &mut Heard) -> HoldingsSeen {
    let mut seen = HoldingsSeen::NothingToCompare;
    for _ in 0..COMPARISONS_MAX {
        catch_up(client, stream, heard.summary().last);
        let chains = heard.chains(CHAINS_MAX).into_iter();
        let before: Vec<_> = chains.map(|chain| (heard.depth(&chain), chain)).collect();
        let mut answers = Vec::new();
        for (_, chain) in &before {
            match client.query_by_hash(&chain.locals, &stream.model_name, &stream.tenant_id) {
                Ok(answer) => answers
                    .push(answer.scores.get(&stream.instance).and_then(|ranks| ranks.get(&chain.dp_rank.0)).copied()),
                Err(error) => return HoldingsSeen::Failed(format!("{error:#}")),
            }
        }
        // What the service had taken in when it answered must be known here as well.
        let reached = listeners_now(client, stream).ok().and_then(|now| now.iter().filter_map(|l| l.last_seq).max());
        let start = Instant::now();
        while heard.summary().last < reached && start.elapsed() < CATCH_UP_DEADLINE {
            hear(live, heard, POLL_INTERVAL, Arrival::Live);
        }
        seen = judged(&before, &answers, heard);
        if !matches!(seen, HoldingsSeen::Less { .. }) {
            return seen;
        }
    }
    seen
}

fn judged(before: &[(u32, HeldChain)], answers: &[Option<u64>], heard: &Heard) -> HoldingsSeen {
    let block_size = u64::from(heard.block_size().tokens());
    let (mut chains, mut blocks) = (0, 0);
    for ((depth, chain), answered) in before.iter().zip(answers) {
        let expected = u64::from(heard.depth(chain).min(*depth));
        let answered = answered.unwrap_or_default();
        if answered < expected * block_size {
            return HoldingsSeen::Less { dp_rank: chain.dp_rank, expected: expected * block_size, answered };
        }
        chains += usize::from(expected > 0);
        blocks += expected as usize;
    }
    match chains {
        0 => HoldingsSeen::NothingToCompare,
        chains => HoldingsSeen::Equal { chains, blocks },
    }
}

/// Waits until the service has taken in a message; what has become of it is judged later.
fn catch_up(client: &IndexerClient, stream: &Stream, wanted: Option<u64>) {
    let start = Instant::now();
    while start.elapsed() < CATCH_UP_DEADLINE {
        match listeners_now(client, stream) {
            Ok(now) if now.iter().any(|listener| listener.last_seq < wanted && listener.status == "connected") => {
                std::thread::sleep(POLL_INTERVAL);
            }
            _ => return,
        }
    }
}

fn listeners_now(client: &IndexerClient, stream: &Stream) -> anyhow::Result<Vec<Listener>> {
    let workers = client.workers(&stream.model_name, &stream.tenant_id)?;
    let worker = workers.into_iter().find(|worker| instance_name(&worker.instance_id) == stream.instance);
    let listeners = worker.map(|worker| worker.listeners).unwrap_or_default();
    Ok(listeners.into_iter().filter(|(rank, _)| stream.ranks.contains(rank)).map(|(_, listener)| listener).collect())
}

/// An instance as it is a key of answers.
pub(super) fn instance_name(id: &serde_json::Value) -> String {
    id.as_str().map_or_else(|| id.to_string(), str::to_owned)
}

fn now_s() -> f64 {
    // A clock before 1970 shows as skew.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use flash_indexer_core::SequenceHash;
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
    fn the_service_must_find_what_was_held_before_and_after_the_question() {
        let options = TranslatorOptions {
            block_size: BlockSize::new(2).expect("not zero"),
            lora_name: None,
            removed_copies: RemovedCopies::One,
        };
        let mut heard = Heard::new(options, DpRank(0), "0");
        heard.take(0, &encode_batch(1.0, &[stored()], None, Encoding::Map), Arrival::Waited);
        let chains = heard.chains(CHAINS_MAX).into_iter();
        let before: Vec<_> = chains.map(|chain| (heard.depth(&chain), chain)).collect();
        assert_eq!(judged(&before, &[Some(4)], &heard), HoldingsSeen::Equal { chains: 1, blocks: 2 });
        let less = |answered| HoldingsSeen::Less { dp_rank: DpRank(0), expected: 4, answered };
        assert_eq!(judged(&before, &[Some(2)], &heard), less(2));
        assert_eq!(judged(&before, &[None], &heard), less(0), "an instance that is not in the answer has nothing");

        let removed = EngineEvent::Removed(BlockRemoved { block_hashes: vec![SequenceHash(2)], ..Default::default() });
        heard.take(1, &encode_batch(2.0, &[removed], None, Encoding::Map), Arrival::Waited);
        assert_eq!(judged(&before, &[Some(2)], &heard), HoldingsSeen::Equal { chains: 1, blocks: 1 });
    }
}
