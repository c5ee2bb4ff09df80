//! From what was seen of an engine to what is wrong with it. Pure.

use flash_indexer_wire::plural;

use super::finding::Finding;
use super::probe::{EndpointSeen, HoldingsSeen, Observed, ReplaySeen};
use super::sockets::Unreached;
use crate::client::Listener;

/// Engines whose clocks differ by less are as good as equal, in seconds.
const CLOCK_LEAD_MAX_S: f64 = 1.0;
/// Batches that take longer than this to arrive are late, or clocks differ, in seconds.
const LAG_MAX_S: f64 = 5.0;

const REGISTER_AGAIN: &str = "unregister it and register it again with";

/// Every check of one stream, in the order in which things can go wrong.
pub(super) fn judge(observed: &Observed) -> Vec<Finding> {
    let checks =
        [connection, endpoint, sequence, block_size, events, engine_kind, names, holdings, replay, clock, trust];
    checks.iter().filter_map(|check| check(observed)).collect()
}

impl Observed {
    /// The listener when all was over, or as it was at first.
    fn listener(&self) -> &Listener {
        self.after.first().unwrap_or(&self.stream.listener)
    }

    /// The listener of the rank that is to be believed least.
    fn least_trusted(&self) -> &Listener {
        let badness = |listener: &&Listener| match listener.trust.as_str() {
            "exact" => 0,
            "cold" => 1,
            _ => 2,
        };
        self.after.iter().max_by_key(badness).unwrap_or(&self.stream.listener)
    }

    fn rejected(&self, reason: &str) -> u64 {
        self.listener().rejected.get(reason).copied().unwrap_or_default()
    }
}

fn connection(observed: &Observed) -> Option<Finding> {
    let listener = observed.listener();
    if observed.after.is_empty() {
        return Some(Finding::warning("connection", "it was unregistered meanwhile", "run doctor again"));
    }
    Some(match (listener.status.as_str(), &observed.endpoint) {
        // A connection to a process that does not run stands until the service's heartbeats end it.
        ("connected", EndpointSeen::Silent) => return None,
        ("connected", _) => Finding::ok("connection", "the service is connected"),
        (status, EndpointSeen::Publisher) => Finding::problem(
            "connection",
            format!("the service is {status}, but the engine answers from here"),
            "look at the network between service and engine: names, ports, network policies",
        ),
        (status, EndpointSeen::Bound) => Finding::problem(
            "connection",
            format!("the engine is {status}: it does not connect to the service"),
            "start the engine with the address of --listen-events as its endpoint and the topic kv@<pod>@<model>, or unregister it",
        ),
        // The endpoint is the reason, and comes next.
        _ => return None,
    })
}

fn endpoint(observed: &Observed) -> Option<Finding> {
    let address = &observed.stream.listener.endpoint;
    let is_connected = observed.listener().status == "connected";
    Some(match &observed.endpoint {
        EndpointSeen::Publisher => Finding::ok("endpoint", format!("{address} answers from here")),
        EndpointSeen::Bound => {
            Finding::ok("endpoint", "the engine connects to the service, so its stream cannot be heard from here")
        }
        EndpointSeen::Unreachable(why) if is_connected => Finding::warning(
            "endpoint",
            format!("{address} does not answer from here: {why}; its stream was not checked"),
            "run doctor where the service runs",
        ),
        EndpointSeen::Unreachable(Unreached::Refused) => Finding::problem(
            "endpoint",
            format!(
                "{address} refuses connections, the service's as well: the host is up, and no process listens there"
            ),
            "start the engine with KV events and an endpoint with *, register its right port, or unregister it",
        ),
        EndpointSeen::Unreachable(why @ Unreached::TimedOut(_)) => Finding::problem(
            "endpoint",
            format!("{address} answers no connection, the service's neither: {why}"),
            "see whether the host is up and network policies and firewalls let its port through, or unregister it",
        ),
        EndpointSeen::Unreachable(why @ Unreached::Other(_)) => Finding::problem(
            "endpoint",
            format!("{address} does not answer the service either: {why}"),
            "register the engine's right address",
        ),
        EndpointSeen::Silent => Finding::problem(
            "endpoint",
            format!("{address} accepts connections, and no process answers: the engine is stopped or does not respond"),
            "continue or restart the engine's process (SIGSTOP, a debugger, a container that is paused)",
        ),
        EndpointSeen::Stranger => Finding::problem(
            "endpoint",
            format!("{address} accepts connections, but publishes nothing"),
            format!("{REGISTER_AGAIN} the port of the engine's events, not of its API or replay"),
        ),
    })
}

fn sequence(observed: &Observed) -> Option<Finding> {
    if observed.endpoint != EndpointSeen::Publisher {
        return None;
    }
    let (heard, listener) = (&observed.heard, observed.listener());
    let gaps_of_service = listener.gaps.saturating_sub(observed.stream.listener.gaps);
    let taken_in = listener.last_seq;
    Some(if taken_in < heard.last {
        let (last, taken) = (shown(heard.last), shown(taken_in));
        Finding::problem(
            "sequence",
            format!("the engine is at message {last}, the service at {taken}"),
            "the service does not keep up or is not heard: see queued_messages and bounds_reached_total in /metrics",
        )
    } else if gaps_of_service > 0 {
        Finding::warning(
            "sequence",
            format!("the service missed messages {gaps_of_service} times while doctor listened"),
            "see bounds_reached_total{bound=\"queue\"} in /metrics, and the network to the engine",
        )
    } else if heard.restarts > 0 {
        let fix = "look for crashes in the engine's log; its blocks are learned anew";
        Finding::warning("sequence", "it began anew while doctor listened: the engine restarted", fix)
    } else if heard.gaps > 0 {
        Finding::ok(
            "sequence",
            format!(
                "{} {} missed here, none by the service",
                heard.missed,
                plural(heard.missed, "message was", "messages were")
            ),
        )
    } else if heard.messages == 0 {
        Finding::ok("sequence", format!("the engine is idle; the service is at message {}", shown(taken_in)))
    } else {
        let last = shown(heard.last);
        Finding::ok(
            "sequence",
            format!("{} without a gap, the service has applied them up to {last}", messages(heard.messages)),
        )
    })
}

fn block_size(observed: &Observed) -> Option<Finding> {
    let registered = observed.stream.block_size;
    let refused = observed.rejected("block_size_mismatch");
    Some(match (observed.heard.other_block_size, observed.heard.sized_stores) {
        (Some(actual), _) => Finding::problem(
            "block size",
            format!("the engine's blocks have {actual} tokens, registered are {registered}"),
            format!("unregister every instance of the model and register them with block_size {actual}"),
        ),
        (None, 0) if refused > 0 => Finding::problem(
            "block size",
            format!("the service refused {refused} events with another block size than {registered}"),
            "unregister every instance of the model and register them with the engine's block size",
        ),
        (None, 0) => Finding::ok("block size", format!("registered are {registered} tokens; no store was heard")),
        (None, stores) => Finding::ok("block size", format!("{registered} tokens in each of {stores} stores")),
    })
}

fn events(observed: &Observed) -> Option<Finding> {
    let listener = observed.listener();
    let others = listener.rejected.iter().filter(|(reason, _)| *reason != "block_size_mismatch");
    let counts: Vec<String> = others.map(|(reason, count)| format!("{count} {reason}")).collect();
    let heard = &observed.heard;
    if !counts.is_empty() {
        let last = listener.last_error.as_deref().unwrap_or("the cause is no longer known");
        let fix = "see rejected_total in docs/operations.md for each reason";
        return Some(Finding::warning(
            "events",
            format!("not usable since its registration: {} ({last})", counts.join(", ")),
            fix,
        ));
    }
    let last = heard.last_unusable.as_deref()?;
    let fix = "does only the engine publish there, and is it of a known release?";
    Some(Finding::warning("events", format!("{} things heard are not usable: {last}", heard.unusable), fix))
}

fn engine_kind(observed: &Observed) -> Option<Finding> {
    let registered = observed.stream.listener.engine.as_deref()?;
    let looks_like = observed.heard.looks_like?;
    Some(if registered == looks_like {
        Finding::ok("engine", format!("it is registered as {registered} and looks like it"))
    } else {
        let seen = format!("it is registered as {registered}, but its events are {looks_like}'s");
        Finding::warning("engine", seen, format!("{REGISTER_AGAIN} \"engine\": \"{looks_like}\""))
    })
}

fn names(observed: &Observed) -> Option<Finding> {
    let names = observed.heard.names;
    Some(if names.broken > 0 {
        Finding::warning(
            "hashes",
            format!("{} of {} block names do not follow from their tokens", names.broken, names.equal + names.broken),
            "harmless if the engine is older than its salts and images: it does not tell them; else report it",
        )
    } else if names.equal > 0 {
        Finding::ok("hashes", format!("{} block names recomputed from their tokens are equal", names.equal))
    } else if names.foreign > 0 {
        Finding::ok("hashes", "hashes of another recipe or seed: fine, names are only compared")
    } else {
        return None;
    })
}

fn holdings(observed: &Observed) -> Option<Finding> {
    if observed.endpoint != EndpointSeen::Publisher {
        return None;
    }
    Some(match &observed.holdings {
        HoldingsSeen::Equal { chains, blocks } => {
            Finding::ok("answers", format!("{chains} prefixes of {blocks} blocks are found as the engine told them"))
        }
        HoldingsSeen::NothingToCompare => {
            Finding::ok("answers", "no prefix was heard from its start; nothing to compare")
        }
        HoldingsSeen::Less { dp_rank, expected, answered } => Finding::problem(
            "answers",
            format!("rank {dp_rank} holds {expected} tokens of a prefix, the service finds {answered}"),
            "flash-indexer explain tells why; unregistering and registering the instance learns it anew",
        ),
        HoldingsSeen::Failed(why) => {
            Finding::problem("answers", format!("the service cannot say: {why}"), "see its log")
        }
    })
}

fn replay(observed: &Observed) -> Option<Finding> {
    const CHECK: &str = "replay";
    let is_degraded = observed.least_trusted().trust == "degraded";
    let answer_is = |what: &str| format!("the answer {what}");
    Some(match &observed.replay {
        ReplaySeen::NotRegistered if is_degraded => Finding::problem(
            CHECK,
            "there is no replay endpoint, and what is missing cannot be asked for",
            format!("give the engine a replay_endpoint, {REGISTER_AGAIN} that"),
        ),
        ReplaySeen::NotRegistered => Finding::warning(
            CHECK,
            "there is no replay endpoint: the first missed message makes the rank degraded",
            format!("give the engine a replay_endpoint, {REGISTER_AGAIN} that"),
        ),
        ReplaySeen::Unreachable(why @ Unreached::TimedOut(_)) if observed.endpoint == EndpointSeen::Publisher => {
            Finding::problem(
                CHECK,
                format!("the replay endpoint answers no connection: {why}"),
                "let its port through network policies and firewalls, as that of the engine's events",
            )
        }
        ReplaySeen::Unreachable(why) if observed.listener().status == "connected" => Finding::problem(
            CHECK,
            format!("the replay endpoint does not answer: {why}"),
            format!("{REGISTER_AGAIN} the engine's replay_endpoint, its port plus the rank"),
        ),
        // The engine is gone or stopped, as its endpoint has shown.
        ReplaySeen::Unreachable(_) => return None,
        ReplaySeen::Silent if observed.endpoint == EndpointSeen::Silent => return None,
        ReplaySeen::Silent => Finding::problem(
            CHECK,
            "the replay endpoint takes the question and says nothing",
            format!("{REGISTER_AGAIN} the port of the engine's replay, not of its events"),
        ),
        ReplaySeen::Answered { has_end: false, messages: count, .. } => Finding::warning(
            CHECK,
            answer_is(&format!("stops after {} without an end", messages(*count))),
            "engines drop what is not taken fast enough; the service asks again, a smaller buffer_steps helps",
        ),
        ReplaySeen::Answered { gaps: 1.., messages: count, .. } => Finding::warning(
            CHECK,
            answer_is(&format!("of {} has holes", messages(*count))),
            "engines drop what is not taken fast enough; the service asks again, a smaller buffer_steps helps",
        ),
        ReplaySeen::Answered { first: None, .. } => Finding::ok(CHECK, "it answers, and has nothing to replay yet"),
        ReplaySeen::Answered { first: Some(first), messages: count, has_topic, .. } => {
            let framing = if *has_topic { "with topics" } else { "without topics" };
            Finding::ok(CHECK, format!("{} from {first} on, {framing}, and an end", messages(*count)))
        }
    })
}

fn messages(count: u64) -> String {
    format!("{count} {}", plural(count, "message", "messages"))
}

fn clock(observed: &Observed) -> Option<Finding> {
    let lag_s = observed.heard.lag_s?;
    Some(if lag_s < -CLOCK_LEAD_MAX_S {
        let seen = format!("batches are stamped {:.1} s in the future", -lag_s);
        Finding::warning("clock", seen, "synchronise the clocks of engine and service (NTP)")
    } else if lag_s > LAG_MAX_S {
        let seen = format!("the quickest batch is {lag_s:.1} s old when it arrives");
        Finding::warning("clock", seen, "synchronise the clocks of engine and service (NTP), or look at the network")
    } else {
        Finding::ok("clock", format!("batches are {:.0} ms old when they arrive", lag_s * 1e3))
    })
}

fn trust(observed: &Observed) -> Option<Finding> {
    let listener = observed.least_trusted();
    let why = listener.last_error.as_deref().unwrap_or("the cause is no longer known");
    let has_replay = matches!(observed.replay, ReplaySeen::Answered { .. });
    Some(match listener.trust.as_str() {
        "exact" => Finding::ok("trust", "exact: every change since an empty cache is known"),
        "cold" if listener.last_seq < observed.heard.last => {
            Finding::problem("trust", "cold, though the engine has published", format!("see the service's log: {why}"))
        }
        "cold" => Finding::ok("trust", "cold: the engine has published nothing yet"),
        _ if observed.heard.other_block_size.is_some() => {
            Finding::warning("trust", format!("degraded: {why}"), "see block size")
        }
        _ if has_replay => Finding::warning(
            "trust",
            format!("degraded: {why}"),
            "reset the engine's prefix cache or restart it when answers must be exact; give it a larger buffer_steps",
        ),
        _ => Finding::warning(
            "trust",
            format!("degraded: {why}"),
            "see replay; it ends when the engine's cache is reset or the engine restarts",
        ),
    })
}

fn shown(sequence: Option<u64>) -> String {
    sequence.map_or_else(|| "none".to_owned(), |sequence| sequence.to_string())
}

#[cfg(test)]
mod tests;
