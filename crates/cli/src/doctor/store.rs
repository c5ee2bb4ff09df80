//! The index that the service shares with others.

use super::finding::Finding;
use crate::client::{IndexerClient, StoreState};

const CHECK: &str = "store";

/// How the store fares; none if no index is shared.
pub(super) fn store(client: &IndexerClient) -> Option<Finding> {
    match client.store() {
        Ok(state) => state.as_ref().map(judge),
        Err(error) => Some(Finding::problem(CHECK, format!("{error:#}"), "see the service's log")),
    }
}

fn judge(state: &StoreState) -> Finding {
    let StoreState { url, status, last_error, published_ranks, unfinished_ranks, ranks, .. } = state;
    if status != "ok" {
        let why = last_error.as_deref().unwrap_or("it has not been reached yet");
        return Finding::problem(
            CHECK,
            format!("{url}: {status}: {why}; answers lack the ranks of other replicas"),
            "start the store, or mend --redis, its password and the network to it: the service connects again by itself",
        );
    }
    if *unfinished_ranks > 0 {
        return Finding::warning(
            CHECK,
            format!("{url}: {unfinished_ranks} of {published_ranks} ranks are not written as a whole yet"),
            "run doctor again; if it stays so, see store_waiting_changes and store_rewrites_total in /metrics",
        );
    }
    Finding::ok(CHECK, format!("{url}: {published_ranks} ranks are published here, {} altogether", ranks.len()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::finding::Verdict;
    use super::*;

    #[test]
    fn a_store_that_is_away_is_a_problem_and_one_that_is_filled_a_warning() {
        let verdict = |status: &str, error: Value, unfinished: usize| {
            let state = json!({ "url": "redis://r", "status": status, "last_error": error, "published_ranks": 2,
                                "unfinished_ranks": unfinished, "ranks": [{}, {}, {}] });
            judge(&serde_json::from_value(state).expect("a state")).verdict
        };
        assert_eq!(verdict("ok", Value::Null, 0), Verdict::Ok);
        assert_eq!(verdict("ok", Value::Null, 1), Verdict::Warning);
        assert_eq!(verdict("unavailable", json!("refused"), 0), Verdict::Problem);
    }
}
