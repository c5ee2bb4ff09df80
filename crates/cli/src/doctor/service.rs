//! The service itself, and its peers.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use super::finding::Finding;
use super::probe::instance_name;
use crate::client::{IndexerClient, Worker};

/// What a service knows of, to be compared with another: instances by model, tenant and block size.
type Known = BTreeMap<(String, String, u32), BTreeSet<String>>;

/// What a peer says.
pub(super) type PeerSeen = Result<Known, String>;

/// Whether the service is ready.
pub(super) fn readiness(ready: Result<(), String>) -> Finding {
    match ready {
        Ok(()) => Finding::ok("ready", "the service is ready"),
        Err(why) => Finding::problem("ready", why, "routers that wait for /ready wait until this is done"),
    }
}

/// Asks every peer of the service.
pub(super) fn peers(client: &IndexerClient, workers: &[Worker]) -> Vec<Finding> {
    match client.peers() {
        Ok(urls) if urls.is_empty() => vec![Finding::ok("peers", "the service has no peers")],
        Ok(urls) => {
            let known = known(workers);
            urls.iter().map(|url| judge_peer(url, &known, &ask(&IndexerClient::new(url)))).collect()
        }
        Err(error) => vec![Finding::problem("peers", format!("{error:#}"), "see the service's log")],
    }
}

fn ask(peer: &IndexerClient) -> PeerSeen {
    let asked = peer.health().and_then(|()| peer.all_workers());
    asked.map(|workers| known(&workers)).map_err(|error| format!("{error:#}"))
}

fn known(workers: &[Worker]) -> Known {
    let mut known = Known::new();
    for worker in workers {
        let key = (worker.model_name.clone(), worker.tenant_id.clone(), worker.block_size);
        known.entry(key).or_default().insert(instance_name(&worker.instance_id));
    }
    known
}

/// Whether a peer lives and knows the same models and instances.
fn judge_peer(url: &str, ours: &Known, peer: &PeerSeen) -> Finding {
    let theirs = match peer {
        Ok(theirs) => theirs,
        Err(why) => {
            // What was seen says whether it is dead, stopped or unreachable, and what to do then.
            let fix = format!("if it is gone for good, POST /deregister_peer with {url}");
            return Finding::problem("peers", format!("{url}: {why}"), fix);
        }
    };
    let differing = |(model, tenant, block_size): &(String, String, u32)| {
        format!("model {model:?} of tenant {tenant:?} with blocks of {block_size}")
    };
    let keys: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    match keys.into_iter().find(|key| ours.get(*key) != theirs.get(*key)) {
        None => Finding::ok("peers", format!("{url} is well and knows the same instances")),
        Some(key) => Finding::warning(
            "peers",
            format!("{url} knows other instances of {}", differing(key)),
            "register every engine with every replica; flash-indexer diff shows what differs",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    fn knowing(instances: &[&str], block_size: u32) -> Known {
        let instances = instances.iter().map(|&name| name.to_owned()).collect();
        Known::from([(("m".to_owned(), "default".to_owned(), block_size), instances)])
    }

    #[test]
    fn peers_that_are_gone_or_know_something_else_are_told_apart() {
        let ours = knowing(&["1", "2"], 16);
        let verdict = |peer: PeerSeen| judge_peer("http://b", &ours, &peer).verdict;
        assert_eq!(verdict(Ok(knowing(&["1", "2"], 16))), Verdict::Ok);
        assert_eq!(verdict(Ok(knowing(&["1"], 16))), Verdict::Warning);
        assert_eq!(verdict(Ok(knowing(&["1", "2"], 32))), Verdict::Warning);
        assert_eq!(verdict(Ok(Known::new())), Verdict::Warning);
        assert_eq!(verdict(Err("refused".to_owned())), Verdict::Problem);
    }
}
