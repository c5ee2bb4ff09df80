//! Findings about one observed stream. Pure.

use flash_indexer_api::Listener;
use flash_indexer_types::{ConnectionStatus, SourceKind, Trust};
use flash_indexer_wire::plural;

use super::finding::Finding;
use super::probe::{AnswerComparison, EndpointStatus, Observation, ReplayStatus};
use super::sockets::ConnectError;

/// Lead of an engine's clock that is tolerated, in seconds.
const CLOCK_LEAD_MAX_S: f64 = 1.0;
/// Age of an arriving batch that is tolerated, in seconds; an older one was delayed, or clocks differ.
const LAG_MAX_S: f64 = 5.0;

/// All checks of one stream, from the connection to the answers.
pub(super) fn check_stream(observation: &Observation) -> Vec<Finding> {
    let checks =
        [connection, endpoint, sequence, block_size, events, engine_kind, hashes, answers, replay, clock, trust];
    checks.iter().filter_map(|check| check(observation)).collect()
}

impl Observation {
    /// The listener at the end of the observation, or else at its start.
    fn listener(&self) -> &Listener {
        self.after.first().unwrap_or(&self.stream.listener)
    }

    /// The listener of the rank with the lowest trust.
    fn least_trusted(&self) -> &Listener {
        self.after.iter().max_by_key(|listener| listener.trust).unwrap_or(&self.stream.listener)
    }

    /// The fix for a registration that lacks `value`.
    fn register_again(&self, value: &str) -> String {
        match self.listener().source.as_deref().filter(|source| SourceKind::of_source(source).is_some()) {
            // The source would register it as before.
            Some(source) => {
                format!("give its entry in the discovery source {source} {value} (docs/operations.md, Discovery)")
            }
            None => format!("unregister it (POST /unregister) and register it again (POST /register) with {value}"),
        }
    }

    fn rejected(&self, reason: &str) -> u64 {
        self.listener().rejected.get(reason).copied().unwrap_or_default()
    }
}

fn connection(observation: &Observation) -> Option<Finding> {
    let listener = observation.listener();
    if observation.after.is_empty() {
        return Some(Finding::warning(
            "connection",
            "the stream was unregistered during the check",
            "run doctor again",
        ));
    }
    Some(match (listener.status, &observation.endpoint) {
        // A connection to a stopped process stays until the service's heartbeats time out.
        (ConnectionStatus::Connected, EndpointStatus::Unresponsive) => return None,
        (ConnectionStatus::Connected, _) => Finding::ok("connection", "the service is connected"),
        (status, EndpointStatus::Publisher) => Finding::problem(
            "connection",
            format!("the service is {}, but the engine answers from here", status.as_str()),
            "check the network between service and engine: names, ports, network policies",
        ),
        (status, EndpointStatus::Bound) => Finding::problem(
            "connection",
            format!("the engine is {}: it does not connect to the service", status.as_str()),
            "start the engine with the address of --listen-events as its endpoint and the topic kv@<pod>@<model>, or unregister it (POST /unregister)",
        ),
        (status, EndpointStatus::Pulled | EndpointStatus::Streamed) => Finding::problem(
            "connection",
            format!("the service is {}: it cannot read the engine's events", status.as_str()),
            "start the engine's server, or register its right address (POST /register); last_error in GET /workers has the cause",
        ),
        // The check of the endpoint reports the reason.
        _ => return None,
    })
}

fn endpoint(observation: &Observation) -> Option<Finding> {
    let address = &observation.stream.listener.endpoint;
    let is_connected = observation.listener().status == ConnectionStatus::Connected;
    Some(match &observation.endpoint {
        EndpointStatus::Publisher => Finding::ok("endpoint", format!("{address} answers from here")),
        EndpointStatus::Bound => {
            Finding::ok("endpoint", "the engine connects to the service, so doctor cannot receive its stream")
        }
        EndpointStatus::Pulled => Finding::ok(
            "endpoint",
            "the service reads the engine's events over HTTP, and a second reader would take them away, so doctor reads none",
        ),
        EndpointStatus::Streamed => Finding::ok(
            "endpoint",
            "the engine's server streams the events over gRPC, and doctor reads streams over ZeroMQ only",
        ),
        EndpointStatus::Unreachable(why) if is_connected => Finding::warning(
            "endpoint",
            format!("{address} does not answer from here: {why}; its stream was not checked"),
            "run doctor where the service runs",
        ),
        EndpointStatus::Unreachable(ConnectError::Refused) => Finding::problem(
            "endpoint",
            format!("{address} refuses connections, also the service's: the host is up, and no process listens there"),
            "start the engine with KV events and, as the endpoint in its --kv-events-config, * and a port (tcp://*:5557); or register its right port (POST /register), or unregister it (POST /unregister)",
        ),
        EndpointStatus::Unreachable(why @ ConnectError::TimedOut(_)) => Finding::problem(
            "endpoint",
            format!("{address} answers no connection attempt, also none of the service's: {why}"),
            "check that the host is up and that network policies and firewalls let its port through, or unregister it (POST /unregister)",
        ),
        EndpointStatus::Unreachable(why @ ConnectError::Other(_)) => Finding::problem(
            "endpoint",
            format!("{address} does not answer the service either: {why}"),
            observation.register_again("the engine's right address"),
        ),
        EndpointStatus::Unresponsive => Finding::problem(
            "endpoint",
            format!("{address} accepts connections, and no process answers: the engine is stopped or does not respond"),
            "continue or restart the engine's process (SIGSTOP, a debugger, a container that is paused)",
        ),
        EndpointStatus::NotPublisher => Finding::problem(
            "endpoint",
            format!("{address} accepts connections, but is not a publisher"),
            observation.register_again("the port of the engine's events, not of its API or replay"),
        ),
    })
}

fn sequence(observation: &Observation) -> Option<Finding> {
    if observation.endpoint != EndpointStatus::Publisher {
        return None;
    }
    let (received, listener) = (&observation.received, observation.listener());
    let service_gaps = listener.gaps.saturating_sub(observation.stream.listener.gaps);
    let applied = listener.last_seq;
    Some(if applied < received.last {
        let (last, taken) = (shown(received.last), shown(applied));
        Finding::problem(
            "sequence",
            format!("the engine is at message {last}, the service at {taken}"),
            "the service is overloaded or disconnected: see flash_indexer_queued_messages and flash_indexer_limit_reached_total in /metrics, and docs/operations.md, Full queues",
        )
    } else if service_gaps > 0 {
        Finding::warning(
            "sequence",
            format!(
                "{service_gaps} {} in the service's stream while doctor listened",
                plural(service_gaps, "gap", "gaps")
            ),
            "see flash_indexer_limit_reached_total{limit=\"queue\"} in /metrics, and the network to the engine",
        )
    } else if received.restarts > 0 {
        let fix = "look for crashes in the engine's log; the service indexes the new stream";
        Finding::warning("sequence", "sequence numbers restarted while doctor listened: the engine restarted", fix)
    } else if received.gaps > 0 {
        Finding::ok("sequence", format!("doctor missed {}, the service none", messages(received.missed)))
    } else if received.messages == 0 {
        Finding::ok("sequence", format!("the engine is idle; the service is at message {}", shown(applied)))
    } else {
        let last = shown(received.last);
        Finding::ok(
            "sequence",
            format!("{} without a gap; the service has applied them up to {last}", messages(received.messages)),
        )
    })
}

fn block_size(observation: &Observation) -> Option<Finding> {
    let registered = observation.stream.block_size;
    let rejected = observation.rejected("block_size_mismatch");
    Some(match (observation.received.mismatched_block_size, observation.received.stores_with_block_size) {
        (Some(actual), _) => Finding::problem(
            "block size",
            format!("the engine's blocks have {actual} tokens, but {registered} are registered"),
            register_model_again(&format!("block_size {actual}")),
        ),
        (None, 0) if rejected > 0 => Finding::problem(
            "block size",
            format!("the service rejected {rejected} events whose block size is not {registered}"),
            register_model_again("the engine's block_size"),
        ),
        (None, 0) => Finding::ok("block size", format!("{registered} tokens are registered; no store was received")),
        (None, stores) => Finding::ok("block size", format!("{registered} tokens in each of {stores} stores")),
    })
}

/// The fix for a wrong block size, which all instances of a model share.
fn register_model_again(value: &str) -> String {
    format!(
        "unregister every instance of the model (POST /unregister), and register them with {value}: POST /register, or \
         --block-size and the entries of discovery sources"
    )
}

fn events(observation: &Observation) -> Option<Finding> {
    let listener = observation.listener();
    let others = listener.rejected.iter().filter(|(reason, _)| *reason != "block_size_mismatch");
    let counts: Vec<String> = others.map(|(reason, count)| format!("{count} {reason}")).collect();
    let received = &observation.received;
    if !counts.is_empty() {
        let last = listener.last_error.as_deref().unwrap_or("the cause is no longer known");
        let fix = "see docs/operations.md, Reasons of rejected_total";
        return Some(Finding::warning(
            "events",
            format!("rejected since the registration: {} ({last})", counts.join(", ")),
            fix,
        ));
    }
    let last = received.last_unusable.as_deref()?;
    let fix = "check that only the engine publishes there, and that its release is supported (docs/engines.md)";
    let seen = format!("doctor rejected {} messages or events, the last: {last}", received.unusable);
    Some(Finding::warning("events", seen, fix))
}

fn engine_kind(observation: &Observation) -> Option<Finding> {
    let registered = observation.stream.listener.engine?.as_str();
    let actual = observation.received.engine_of_fields?;
    Some(if registered == actual {
        Finding::ok("engine", format!("registered as {registered}, and the events have its fields"))
    } else {
        let seen = format!("registered as {registered}, but the events have fields of {actual}");
        Finding::warning("engine", seen, observation.register_again(&format!("\"engine\": \"{actual}\"")))
    })
}

fn hashes(observation: &Observation) -> Option<Finding> {
    let counts = observation.received.hashes;
    Some(if counts.broken > 0 {
        Finding::warning(
            "hashes",
            format!(
                "{} of {} block hashes do not follow from their tokens",
                counts.broken,
                counts.equal + counts.broken
            ),
            "harmless if the engine's release publishes no salts or images; otherwise report it",
        )
    } else if counts.equal > 0 {
        Finding::ok("hashes", format!("{} block hashes recomputed from their tokens are equal", counts.equal))
    } else if counts.unrelated > 0 {
        Finding::ok("hashes", "the engine hashes with another algorithm or seed, which is supported")
    } else {
        return None;
    })
}

fn answers(observation: &Observation) -> Option<Finding> {
    if observation.endpoint != EndpointStatus::Publisher {
        return None;
    }
    Some(match &observation.comparison {
        AnswerComparison::Equal { chains, blocks } => Finding::ok(
            "answers",
            format!("{chains} prefixes of {blocks} blocks are found as the engine published them"),
        ),
        AnswerComparison::NothingToCompare => {
            Finding::ok("answers", "no prefix was received from its start; nothing to compare")
        }
        AnswerComparison::Shorter { dp_rank, expected, answered } => Finding::problem(
            "answers",
            format!("rank {dp_rank} holds {expected} tokens of a prefix, the service finds {answered}"),
            "flash-indexer explain shows why; unregister the instance and register it again to rebuild its index",
        ),
        AnswerComparison::Failed(why) => {
            Finding::problem("answers", format!("failed to query the service: {why}"), "see the service's log")
        }
    })
}

fn replay(observation: &Observation) -> Option<Finding> {
    const CHECK: &str = "replay";
    let is_degraded = observation.least_trusted().trust == Trust::Degraded;
    const SLOW_REPLAY: &str = "engines drop replayed messages that are not received fast enough; the service asks again, and a smaller buffer_steps in the engine's --kv-events-config helps";
    Some(match &observation.replay {
        // Events that are pulled over HTTP cannot be replayed.
        ReplayStatus::NotRegistered if observation.endpoint == EndpointStatus::Pulled && !is_degraded => return None,
        ReplayStatus::NotRegistered if observation.endpoint == EndpointStatus::Pulled => Finding::problem(
            CHECK,
            "events are missing, and events that are pulled over HTTP cannot be replayed",
            "let only one replica read the engine, and restart the engine",
        ),
        // A server replays missing batches by itself, if it has them.
        ReplayStatus::NotRegistered if observation.endpoint == EndpointStatus::Streamed && !is_degraded => return None,
        ReplayStatus::NotRegistered if observation.endpoint == EndpointStatus::Streamed => Finding::problem(
            CHECK,
            "events are missing, and the engine's server has not replayed them",
            "use a server with a history, or restart the engine; last_error in GET /workers has the cause",
        ),
        ReplayStatus::NotRegistered if is_degraded => Finding::problem(
            CHECK,
            "there is no replay endpoint, so missed messages cannot be requested",
            format!("give the engine a replay_endpoint (--kv-events-config), {}", observation.register_again("that")),
        ),
        ReplayStatus::NotRegistered => Finding::warning(
            CHECK,
            "there is no replay endpoint: the first missed message makes the rank degraded",
            format!("give the engine a replay_endpoint (--kv-events-config), {}", observation.register_again("that")),
        ),
        ReplayStatus::Unreachable(why @ ConnectError::TimedOut(_))
            if observation.endpoint == EndpointStatus::Publisher =>
        {
            Finding::problem(
                CHECK,
                format!("the replay endpoint answers no connection: {why}"),
                "let its port through network policies and firewalls, like the port of the engine's events",
            )
        }
        ReplayStatus::Unreachable(why) if observation.listener().status == ConnectionStatus::Connected => {
            Finding::problem(
                CHECK,
                format!("the replay endpoint does not answer: {why}"),
                observation.register_again("the engine's replay_endpoint, its port plus the rank"),
            )
        }
        // The check of the endpoint reports an unreachable or stopped engine.
        ReplayStatus::Unreachable(_) => return None,
        ReplayStatus::Unresponsive if observation.endpoint == EndpointStatus::Unresponsive => return None,
        ReplayStatus::Unresponsive => Finding::problem(
            CHECK,
            "the replay endpoint accepts the request and does not respond",
            observation.register_again("the port of the engine's replay, not of its events"),
        ),
        ReplayStatus::Answered { has_end: false, messages: count, .. } => Finding::warning(
            CHECK,
            format!("the replay stops after {} without an end marker", messages(*count)),
            SLOW_REPLAY,
        ),
        ReplayStatus::Answered { gaps: gaps @ 1.., messages: count, .. } => Finding::warning(
            CHECK,
            format!("the replay of {} has {gaps} {}", messages(*count), plural(*gaps, "gap", "gaps")),
            SLOW_REPLAY,
        ),
        ReplayStatus::Answered { first: None, .. } => {
            Finding::ok(CHECK, "the replay endpoint responds; its buffer is empty")
        }
        ReplayStatus::Answered { first: Some(first), messages: count, has_topic, .. } => {
            let framing = if *has_topic { "with topics" } else { "without topics" };
            Finding::ok(CHECK, format!("{} from {first} on, {framing}, and the end marker", messages(*count)))
        }
    })
}

fn messages(count: u64) -> String {
    format!("{count} {}", plural(count, "message", "messages"))
}

fn clock(observation: &Observation) -> Option<Finding> {
    let lag_s = observation.received.lag_s?;
    Some(if lag_s < -CLOCK_LEAD_MAX_S {
        let seen = format!("timestamps of batches are {:.1} s in the future", -lag_s);
        Finding::warning("clock", seen, "synchronise the clocks of engine and service (NTP)")
    } else if lag_s > LAG_MAX_S {
        let seen = format!("every batch is at least {lag_s:.1} s old when it arrives");
        Finding::warning("clock", seen, "synchronise the clocks of engine and service (NTP), or check the network")
    } else {
        Finding::ok("clock", format!("batches are {:.0} ms old when they arrive", lag_s * 1e3))
    })
}

fn trust(observation: &Observation) -> Option<Finding> {
    let listener = observation.least_trusted();
    let why = listener.last_error.as_deref().unwrap_or("the cause is no longer known");
    let has_replay = matches!(observation.replay, ReplayStatus::Answered { .. });
    Some(match listener.trust {
        Trust::Exact => Finding::ok("trust", "exact: no change since an empty cache is missing"),
        Trust::Cold if listener.last_seq < observation.received.last => {
            Finding::problem("trust", "cold, but the engine has published", format!("see the service's log: {why}"))
        }
        Trust::Cold => Finding::ok("trust", "cold: the engine has published nothing yet"),
        _ if observation.received.mismatched_block_size.is_some() => {
            Finding::warning("trust", format!("degraded: {why}"), "see the check block size")
        }
        _ if has_replay => Finding::warning(
            "trust",
            format!("degraded: {why}"),
            "reset the engine's prefix cache or restart it when answers must be exact; give it a larger buffer_steps (--kv-events-config)",
        ),
        _ => Finding::warning(
            "trust",
            format!("degraded: {why}"),
            "see the checks replay and endpoint; the rank becomes exact again when the engine's cache is reset or the engine restarts",
        ),
    })
}

fn shown(sequence: Option<u64>) -> String {
    sequence.map_or_else(|| "none".to_owned(), |sequence| sequence.to_string())
}

#[cfg(test)]
mod tests;
