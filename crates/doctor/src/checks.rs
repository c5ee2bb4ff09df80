//! Findings about one observed stream. Pure.

use flash_indexer_api::Listener;
use flash_indexer_types::{ConnectionStatus, SourceKind, Trust};
use flash_indexer_wire::plural;

use super::finding::{Finding, Outcome};
use super::probe::{AnswerComparison, EndpointStatus, Observation, ReplayStatus};
use super::sockets::ConnectError;

/// Lead of an engine's clock that is tolerated, in seconds.
const CLOCK_LEAD_MAX_S: f64 = 1.0;
/// Age of an arriving batch that is tolerated, in seconds; an older one was delayed, or clocks differ.
const LAG_MAX_S: f64 = 5.0;

type Check = fn(&Observation) -> Option<Outcome>;

/// All checks of one stream, from the connection to the answers.
pub(super) fn check_stream(observation: &Observation) -> Vec<Finding> {
    let checks: [(&str, Check); 11] = [
        ("connection", connection),
        ("endpoint", endpoint),
        ("sequence", sequence),
        ("block size", block_size),
        ("events", events),
        ("engine", engine_kind),
        ("hashes", hashes),
        ("answers", answers),
        ("replay", replay),
        ("clock", clock),
        ("trust", trust),
    ];
    checks.into_iter().filter_map(|(name, check)| Some(check(observation)?.of(name))).collect()
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

fn connection(observation: &Observation) -> Option<Outcome> {
    let listener = observation.listener();
    if observation.after.is_empty() {
        return Some(Outcome::warning("the stream was unregistered during the check", "run doctor again"));
    }
    Some(match (listener.status, &observation.endpoint) {
        // A connection to a stopped process stays until the service's heartbeats time out.
        (ConnectionStatus::Connected, EndpointStatus::Unresponsive) => return None,
        (ConnectionStatus::Connected, _) => Outcome::ok("the service is connected"),
        (status, EndpointStatus::Publisher) => Outcome::problem(
            format!("the service is {}, but the engine answers from here", status.as_str()),
            "check the network between service and engine: names, ports, network policies",
        ),
        (status, EndpointStatus::Bound) => Outcome::problem(
            format!("the engine is {}: it does not connect to the service", status.as_str()),
            "start the engine with the address of --listen-events as its endpoint and the topic kv@<pod>@<model>, or unregister it (POST /unregister)",
        ),
        (status, EndpointStatus::Pulled | EndpointStatus::Streamed) => Outcome::problem(
            format!("the service is {}: it cannot read the engine's events", status.as_str()),
            "start the engine's server, or register its right address (POST /register); last_error in GET /workers has the cause",
        ),
        // The check of the endpoint reports the reason.
        _ => return None,
    })
}

fn endpoint(observation: &Observation) -> Option<Outcome> {
    let address = &observation.stream.listener.endpoint;
    let is_connected = observation.listener().status == ConnectionStatus::Connected;
    Some(match &observation.endpoint {
        EndpointStatus::Publisher => Outcome::ok(format!("{address} answers from here")),
        EndpointStatus::Bound => Outcome::ok("the engine connects to the service, so doctor cannot receive its stream"),
        EndpointStatus::Pulled => Outcome::ok(
            "the service reads the engine's events over HTTP, and a second reader would take them away, so doctor reads none",
        ),
        EndpointStatus::Streamed => {
            Outcome::ok("the engine's server streams the events over gRPC, and doctor reads streams over ZeroMQ only")
        }
        EndpointStatus::Unreachable(why) if is_connected => Outcome::warning(
            format!("{address} does not answer from here: {why}; its stream was not checked"),
            "run doctor where the service runs",
        ),
        EndpointStatus::Unreachable(ConnectError::Refused) => Outcome::problem(
            format!("{address} refuses connections, also the service's: the host is up, and no process listens there"),
            "start the engine with KV events and, as the endpoint in its --kv-events-config, * and a port (tcp://*:5557); or register its right port (POST /register), or unregister it (POST /unregister)",
        ),
        EndpointStatus::Unreachable(why @ ConnectError::TimedOut(_)) => Outcome::problem(
            format!("{address} answers no connection attempt, also none of the service's: {why}"),
            "check that the host is up and that network policies and firewalls let its port through, or unregister it (POST /unregister)",
        ),
        EndpointStatus::Unreachable(why @ ConnectError::Other(_)) => Outcome::problem(
            format!("{address} does not answer the service either: {why}"),
            observation.register_again("the engine's right address"),
        ),
        EndpointStatus::Unresponsive => Outcome::problem(
            format!("{address} accepts connections, and no process answers: the engine is stopped or does not respond"),
            "continue or restart the engine's process (SIGSTOP, a debugger, a container that is paused)",
        ),
        EndpointStatus::NotPublisher => Outcome::problem(
            format!("{address} accepts connections, but is not a publisher"),
            observation.register_again("the port of the engine's events, not of its API or replay"),
        ),
    })
}

fn sequence(observation: &Observation) -> Option<Outcome> {
    if observation.endpoint != EndpointStatus::Publisher {
        return None;
    }
    let (received, listener) = (&observation.received, observation.listener());
    let service_gaps = listener.gaps.saturating_sub(observation.stream.listener.gaps);
    let applied = listener.last_seq;
    Some(if applied < received.last {
        let (last, taken) = (shown(received.last), shown(applied));
        Outcome::problem(
            format!("the engine is at message {last}, the service at {taken}"),
            "the service is overloaded or disconnected: see flash_indexer_queued_messages and flash_indexer_limit_reached_total in /metrics, and docs/operations.md, Full queues",
        )
    } else if service_gaps > 0 {
        Outcome::warning(
            format!(
                "{service_gaps} {} in the service's stream while doctor listened",
                plural(service_gaps, "gap", "gaps")
            ),
            "see flash_indexer_limit_reached_total{limit=\"queue\"} in /metrics, and the network to the engine",
        )
    } else if received.restarts > 0 {
        let fix = "look for crashes in the engine's log; the service indexes the new stream";
        Outcome::warning("sequence numbers restarted while doctor listened: the engine restarted", fix)
    } else if received.gaps > 0 {
        Outcome::ok(format!("doctor missed {}, the service none", messages(received.missed)))
    } else if received.messages == 0 {
        Outcome::ok(format!("the engine is idle; the service is at message {}", shown(applied)))
    } else {
        let last = shown(received.last);
        Outcome::ok(format!("{} without a gap; the service has applied them up to {last}", messages(received.messages)))
    })
}

fn block_size(observation: &Observation) -> Option<Outcome> {
    let registered = observation.stream.block_size;
    let rejected = observation.rejected("block_size_mismatch");
    Some(match (observation.received.mismatched_block_size, observation.received.stores_with_block_size) {
        (Some(actual), _) => Outcome::problem(
            format!("the engine's blocks have {actual} tokens, but {registered} are registered"),
            register_model_again(&format!("block_size {actual}")),
        ),
        (None, 0) if rejected > 0 => Outcome::problem(
            format!("the service rejected {rejected} events whose block size is not {registered}"),
            register_model_again("the engine's block_size"),
        ),
        (None, 0) => Outcome::ok(format!("{registered} tokens are registered; no store was received")),
        (None, stores) => Outcome::ok(format!("{registered} tokens in each of {stores} stores")),
    })
}

/// The fix for a wrong block size, which all instances of a model share.
fn register_model_again(value: &str) -> String {
    format!(
        "unregister every instance of the model (POST /unregister), and register them with {value}: POST /register, or \
         --block-size and the entries of discovery sources"
    )
}

fn events(observation: &Observation) -> Option<Outcome> {
    let listener = observation.listener();
    let others = listener.rejected.iter().filter(|(reason, _)| *reason != "block_size_mismatch");
    let counts: Vec<String> = others.map(|(reason, count)| format!("{count} {reason}")).collect();
    let received = &observation.received;
    if !counts.is_empty() {
        let last = listener.last_error.as_deref().unwrap_or("the cause is no longer known");
        let fix = "see docs/operations.md, Reasons of rejected_total";
        return Some(Outcome::warning(format!("rejected since the registration: {} ({last})", counts.join(", ")), fix));
    }
    let last = received.last_unusable.as_deref()?;
    let fix = "check that only the engine publishes there, and that its release is supported (docs/engines.md)";
    let seen = format!("doctor rejected {} messages or events, the last: {last}", received.unusable);
    Some(Outcome::warning(seen, fix))
}

fn engine_kind(observation: &Observation) -> Option<Outcome> {
    let registered = observation.stream.listener.engine?.as_str();
    let actual = observation.received.engine_of_fields?;
    Some(if registered == actual {
        Outcome::ok(format!("registered as {registered}, and the events have its fields"))
    } else {
        let seen = format!("registered as {registered}, but the events have fields of {actual}");
        Outcome::warning(seen, observation.register_again(&format!("\"engine\": \"{actual}\"")))
    })
}

fn hashes(observation: &Observation) -> Option<Outcome> {
    let counts = observation.received.hashes;
    Some(if counts.broken > 0 {
        Outcome::warning(
            format!(
                "{} of {} block hashes do not follow from their tokens",
                counts.broken,
                counts.equal + counts.broken
            ),
            "harmless if the engine's release publishes no salts or images; otherwise report it",
        )
    } else if counts.equal > 0 {
        Outcome::ok(format!("{} block hashes recomputed from their tokens are equal", counts.equal))
    } else if counts.unrelated > 0 {
        Outcome::ok("the engine hashes with another algorithm or seed, which is supported")
    } else {
        return None;
    })
}

fn answers(observation: &Observation) -> Option<Outcome> {
    if observation.endpoint != EndpointStatus::Publisher {
        return None;
    }
    Some(match &observation.comparison {
        AnswerComparison::Equal { chains, blocks } => {
            Outcome::ok(format!("{chains} prefixes of {blocks} blocks are found as the engine published them"))
        }
        AnswerComparison::NothingToCompare => Outcome::ok("no prefix was received from its start; nothing to compare"),
        AnswerComparison::Shorter { dp_rank, expected, answered } => Outcome::problem(
            format!("rank {dp_rank} holds {expected} tokens of a prefix, the service finds {answered}"),
            "flash-indexer explain shows why; unregister the instance and register it again to rebuild its index",
        ),
        AnswerComparison::Failed(why) => {
            Outcome::problem(format!("failed to query the service: {why}"), "see the service's log")
        }
    })
}

fn replay(observation: &Observation) -> Option<Outcome> {
    let is_degraded = observation.least_trusted().trust == Trust::Degraded;
    const SLOW_REPLAY: &str = "engines drop replayed messages that are not received fast enough; the service asks again, and a smaller buffer_steps in the engine's --kv-events-config helps";
    Some(match &observation.replay {
        // Events that are pulled over HTTP cannot be replayed.
        ReplayStatus::NotRegistered if observation.endpoint == EndpointStatus::Pulled && !is_degraded => return None,
        ReplayStatus::NotRegistered if observation.endpoint == EndpointStatus::Pulled => Outcome::problem(
            "events are missing, and events that are pulled over HTTP cannot be replayed",
            "let only one replica read the engine, and restart the engine",
        ),
        // A server replays missing batches by itself, if it has them.
        ReplayStatus::NotRegistered if observation.endpoint == EndpointStatus::Streamed && !is_degraded => return None,
        ReplayStatus::NotRegistered if observation.endpoint == EndpointStatus::Streamed => Outcome::problem(
            "events are missing, and the engine's server has not replayed them",
            "use a server with a history, or restart the engine; last_error in GET /workers has the cause",
        ),
        ReplayStatus::NotRegistered if is_degraded => Outcome::problem(
            "there is no replay endpoint, so missed messages cannot be requested",
            format!("give the engine a replay_endpoint (--kv-events-config), {}", observation.register_again("that")),
        ),
        ReplayStatus::NotRegistered => Outcome::warning(
            "there is no replay endpoint: the first missed message makes the rank degraded",
            format!("give the engine a replay_endpoint (--kv-events-config), {}", observation.register_again("that")),
        ),
        ReplayStatus::Unreachable(why @ ConnectError::TimedOut(_))
            if observation.endpoint == EndpointStatus::Publisher =>
        {
            Outcome::problem(
                format!("the replay endpoint answers no connection: {why}"),
                "let its port through network policies and firewalls, like the port of the engine's events",
            )
        }
        ReplayStatus::Unreachable(why) if observation.listener().status == ConnectionStatus::Connected => {
            Outcome::problem(
                format!("the replay endpoint does not answer: {why}"),
                observation.register_again("the engine's replay_endpoint, its port plus the rank"),
            )
        }
        // The check of the endpoint reports an unreachable or stopped engine.
        ReplayStatus::Unreachable(_) => return None,
        ReplayStatus::Unresponsive if observation.endpoint == EndpointStatus::Unresponsive => return None,
        ReplayStatus::Unresponsive => Outcome::problem(
            "the replay endpoint accepts the request and does not respond",
            observation.register_again("the port of the engine's replay, not of its events"),
        ),
        ReplayStatus::Answered { has_end: false, messages: count, .. } => {
            Outcome::warning(format!("the replay stops after {} without an end marker", messages(*count)), SLOW_REPLAY)
        }
        ReplayStatus::Answered { gaps: gaps @ 1.., messages: count, .. } => Outcome::warning(
            format!("the replay of {} has {gaps} {}", messages(*count), plural(*gaps, "gap", "gaps")),
            SLOW_REPLAY,
        ),
        ReplayStatus::Answered { first: None, .. } => Outcome::ok("the replay endpoint responds; its buffer is empty"),
        ReplayStatus::Answered { first: Some(first), messages: count, has_topic, .. } => {
            let framing = if *has_topic { "with topics" } else { "without topics" };
            Outcome::ok(format!("{} from {first} on, {framing}, and the end marker", messages(*count)))
        }
    })
}

fn messages(count: u64) -> String {
    format!("{count} {}", plural(count, "message", "messages"))
}

fn clock(observation: &Observation) -> Option<Outcome> {
    let lag_s = observation.received.lag_s?;
    Some(if lag_s < -CLOCK_LEAD_MAX_S {
        let seen = format!("timestamps of batches are {:.1} s in the future", -lag_s);
        Outcome::warning(seen, "synchronise the clocks of engine and service (NTP)")
    } else if lag_s > LAG_MAX_S {
        let seen = format!("every batch is at least {lag_s:.1} s old when it arrives");
        Outcome::warning(seen, "synchronise the clocks of engine and service (NTP), or check the network")
    } else {
        Outcome::ok(format!("batches are {:.0} ms old when they arrive", lag_s * 1e3))
    })
}

fn trust(observation: &Observation) -> Option<Outcome> {
    let listener = observation.least_trusted();
    let why = listener.last_error.as_deref().unwrap_or("the cause is no longer known");
    let has_replay = matches!(observation.replay, ReplayStatus::Answered { .. });
    Some(match listener.trust {
        Trust::Exact => Outcome::ok("exact: no change since an empty cache is missing"),
        Trust::Cold if listener.last_seq < observation.received.last => {
            Outcome::problem("cold, but the engine has published", format!("see the service's log: {why}"))
        }
        Trust::Cold => Outcome::ok("cold: the engine has published nothing yet"),
        _ if observation.received.mismatched_block_size.is_some() => {
            Outcome::warning(format!("degraded: {why}"), "see the check block size")
        }
        _ if has_replay => Outcome::warning(
            format!("degraded: {why}"),
            "reset the engine's prefix cache or restart it when answers must be exact; give it a larger buffer_steps (--kv-events-config)",
        ),
        _ => Outcome::warning(
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
