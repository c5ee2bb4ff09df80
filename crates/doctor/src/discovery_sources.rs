//! Checks of the service's discovery sources.

use flash_indexer_api::DiscoverySource;
use flash_indexer_types::{SourceKind, SourceState, TargetState};

use super::finding::Outcome;
use flash_indexer_commands::IndexerClient;

/// Findings about every discovery source; none if the service has no source.
pub(super) fn check(client: &IndexerClient) -> Vec<Outcome> {
    match client.discovery() {
        Ok(sources) => sources.iter().flat_map(check_source).collect(),
        Err(error) => vec![Outcome::problem(format!("{error:#}"), "see the service's log")],
    }
}

fn check_source(source: &DiscoverySource) -> Vec<Outcome> {
    let DiscoverySource { source: name, state, error, problems, targets, .. } = source;
    let mut findings = Vec::new();
    match state {
        SourceState::Failing => {
            let why = error.as_deref().unwrap_or("no error reported");
            let seen = format!("{name}: {why}; the engines that it listed {} stay registered", last_success(source));
            findings.push(Outcome::problem(seen, fix(name)));
        }
        SourceState::Waiting => findings.push(Outcome::warning(
            format!("{name} has not responded yet"),
            format!("run doctor again; if this persists, {}", fix(name)),
        )),
        SourceState::Ok => {}
    }
    if let Some(first) = problems.first() {
        let seen = format!("{name}: {} entries are invalid, the first: {first}", problems.len());
        findings.push(Outcome::warning(seen, "correct the entries; GET /discovery lists all of them"));
    }
    let refused = targets.iter().filter(|target| target.state == TargetState::Refused);
    findings.extend(refused.map(|target| {
        let why = target.reason.as_deref().unwrap_or("no reason reported");
        let seen = format!("{name}: {} at {} is refused: {why}", target.instance_id, target.endpoint);
        Outcome::problem(seen, "correct the source's entry; the service tries again every few seconds")
    }));
    if findings.is_empty() {
        findings.push(Outcome::ok(format!("{name} lists {} ranks", targets.len())));
    }
    findings
}

fn last_success(source: &DiscoverySource) -> String {
    match source.last_success_ms_ago {
        Some(ago) => format!("{:.0} s ago", ago as f64 / 1e3),
        None => "before".to_owned(),
    }
}

/// The fix for a failing source, by its kind.
fn fix(name: &str) -> &'static str {
    match SourceKind::of_source(name) {
        Some(SourceKind::File) => {
            "correct the file or make it readable for the service, which reads it again every second"
        }
        Some(SourceKind::Dns) => {
            "check that the name resolves where the service runs, and that the name server's port is open"
        }
        Some(SourceKind::Kubernetes) => {
            "check that the service account may get, list and watch pods (docs/operations.md, Discovery)"
        }
        Some(SourceKind::Vllm) => {
            "check that the engine runs, and that the service reaches the port of its gRPC server (docs/operations.md, Discovery)"
        }
        None => "see the service's log",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::super::finding::Verdict;
    use super::*;

    fn verdicts(source: Value) -> Vec<Verdict> {
        let source: DiscoverySource = serde_json::from_value(source).expect("a source");
        check_source(&source).iter().map(|finding| finding.verdict).collect()
    }

    #[test]
    fn each_kind_of_source_has_a_fix_of_its_own() {
        let fixes: BTreeSet<&str> =
            SourceKind::ALL.iter().map(|kind| fix(&format!("{}:name", kind.as_str()))).collect();
        assert_eq!(fixes.len(), SourceKind::ALL.len());
        assert!(!fixes.contains(fix("newer:name")));
    }

    #[test]
    fn failing_sources_and_refused_targets_are_problems() {
        let target = |state: &str| {
            json!({ "instance_id": 1, "dp_rank": 0, "model_name": "m", "tenant_id": "t", "endpoint": "tcp://a:1",
                    "state": state, "reason": "why" })
        };
        let source = |state: &str, error: Value, problems: Value, targets: Value| {
            json!({ "source": "dns:engines", "state": state, "last_success_ms_ago": null, "error": error,
                    "problems": problems, "targets": targets })
        };
        let healthy = source("ok", Value::Null, json!([]), json!([target("registered"), target("by_hand")]));
        assert_eq!(verdicts(healthy), [Verdict::Ok]);
        assert_eq!(verdicts(source("waiting", Value::Null, json!([]), json!([]))), [Verdict::Warning]);
        assert_eq!(verdicts(source("failing", json!("refused"), json!([]), json!([]))), [Verdict::Problem]);
        let faulty = source("ok", Value::Null, json!(["no port"]), json!([target("refused")]));
        assert_eq!(verdicts(faulty), [Verdict::Warning, Verdict::Problem]);
    }
}
