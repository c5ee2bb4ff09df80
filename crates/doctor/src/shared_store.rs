//! Check of the shared store.

use flash_indexer_api::{StoreState, StoreStatus};

use super::finding::Outcome;
use flash_indexer_commands::IndexerClient;

/// The finding about the shared store; none if the service uses no store.
pub(super) fn check(client: &IndexerClient) -> Option<Outcome> {
    match client.store() {
        Ok(status) => status.as_ref().map(check_status),
        Err(error) => Some(Outcome::problem(format!("{error:#}"), "see the service's log")),
    }
}

fn check_status(store: &StoreState) -> Outcome {
    let StoreState { url, status, last_error, published_ranks, unfinished_ranks, ranks, .. } = store;
    if *status == StoreStatus::Unavailable {
        let why = last_error.as_deref().unwrap_or("not connected yet");
        return Outcome::problem(
            format!("{url}: unavailable: {why}; answers lack remote ranks"),
            "start the store, or correct the network to it, --redis or --redis-password-file; the service reconnects by itself",
        );
    }
    if *unfinished_ranks > 0 {
        return Outcome::warning(
            format!("{url}: {unfinished_ranks} of {published_ranks} ranks are not completely written yet"),
            "run doctor again; if this persists, see flash_indexer_store_waiting_changes and flash_indexer_store_rewrites_total in /metrics",
        );
    }
    Outcome::ok(format!("{url}: this replica publishes {published_ranks} of {} ranks", ranks.len()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::finding::Verdict;
    use super::*;

    #[test]
    fn an_unavailable_store_is_a_problem_and_an_incomplete_one_a_warning() {
        let verdict = |status: &str, error: Value, unfinished: usize| {
            let state = json!({ "url": "redis://r", "status": status, "last_error": error, "publisher": "p",
                                "published_ranks": 2, "unfinished_ranks": unfinished, "waiting_changes": 0,
                                "ranks": [] });
            check_status(&serde_json::from_value(state).expect("a state")).verdict
        };
        assert_eq!(verdict("ok", Value::Null, 0), Verdict::Ok);
        assert_eq!(verdict("ok", Value::Null, 1), Verdict::Warning);
        assert_eq!(verdict("unavailable", json!("refused"), 0), Verdict::Problem);
    }
}
