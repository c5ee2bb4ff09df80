//! Checks of the service itself and of its peers.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use flash_indexer_api::Worker;

use super::finding::Outcome;
use flash_indexer_commands::IndexerClient;
use flash_indexer_types::masked_url;

/// Registered instances by model, tenant and block size.
type Instances = BTreeMap<(String, String, u32), BTreeSet<String>>;

/// A peer's instances, or why it could not be queried.
pub(super) type PeerInstances = Result<Instances, String>;

/// Whether the service is ready.
pub(super) fn readiness(ready: Result<(), String>) -> Outcome {
    match ready {
        Ok(()) => Outcome::ok("the service is ready"),
        Err(why) => Outcome::problem(
            why,
            "wait until this is done, as routers that poll /ready do; if it persists, see GET /workers and GET /discovery",
        ),
    }
}

/// Findings about every peer of the service.
pub(super) fn peers(client: &IndexerClient, workers: &[Worker]) -> Vec<Outcome> {
    match client.peers() {
        Ok(urls) if urls.is_empty() => vec![Outcome::ok("the service has no peers")],
        Ok(urls) => {
            let ours = instances(workers);
            urls.iter().map(|url| check_peer(&masked_url(url), &ours, &instances_of(&client.at(url)))).collect()
        }
        Err(error) => vec![Outcome::problem(format!("{error:#}"), "see the service's log")],
    }
}

fn instances_of(peer: &IndexerClient) -> PeerInstances {
    let workers = peer.health().and_then(|()| peer.all_workers());
    workers.map(|workers| instances(&workers)).map_err(|error| format!("{error:#}"))
}

fn instances(workers: &[Worker]) -> Instances {
    let mut instances = Instances::new();
    for worker in workers {
        let key = (worker.model_name.clone(), worker.tenant_id.clone(), worker.block_size);
        instances.entry(key).or_default().insert(worker.instance_id.to_string());
    }
    instances
}

/// Checks that a peer responds and has the same instances registered.
fn check_peer(url: &str, ours: &Instances, peer: &PeerInstances) -> Outcome {
    let theirs = match peer {
        Ok(theirs) => theirs,
        Err(why) => {
            // The error itself names the fix for a dead, stopped or unreachable peer.
            let fix = format!(
                "if it is gone for good, remove it from --peers and POST {{\"url\": {url:?}}} to /deregister_peer"
            );
            return Outcome::problem(format!("{url}: {why}"), fix);
        }
    };
    let differing = |(model, tenant, block_size): &(String, String, u32)| {
        format!("model {model:?} of tenant {tenant:?} with blocks of {block_size}")
    };
    let keys: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    match keys.into_iter().find(|key| ours.get(*key) != theirs.get(*key)) {
        None => Outcome::ok(format!("{url} responds and has the same instances registered")),
        Some(key) => Outcome::warning(
            format!("{url} has other instances registered for {}", differing(key)),
            format!(
                "register every engine with every replica (POST /register, or the same discovery options); flash-indexer diff URL {url} shows what differs"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    fn registered(instances: &[&str], block_size: u32) -> Instances {
        let instances = instances.iter().map(|&name| name.to_owned()).collect();
        Instances::from([(("m".to_owned(), "default".to_owned(), block_size), instances)])
    }

    #[test]
    fn an_unreachable_peer_is_a_problem_and_one_with_other_instances_a_warning() {
        let ours = registered(&["1", "2"], 16);
        let verdict = |peer: PeerInstances| check_peer("http://b", &ours, &peer).verdict;
        assert_eq!(verdict(Ok(registered(&["1", "2"], 16))), Verdict::Ok);
        assert_eq!(verdict(Ok(registered(&["1"], 16))), Verdict::Warning);
        assert_eq!(verdict(Ok(registered(&["1", "2"], 32))), Verdict::Warning);
        assert_eq!(verdict(Ok(Instances::new())), Verdict::Warning);
        assert_eq!(verdict(Err("refused".to_owned())), Verdict::Problem);
    }
}
