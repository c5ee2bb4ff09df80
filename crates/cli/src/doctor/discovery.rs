//! What names the engines.

use super::finding::Finding;
use super::probe::instance_name;
use crate::client::{DiscoverySource, IndexerClient};

const CHECK: &str = "discovery";

/// Every source of discovery; none if the service looks for no engines.
pub(super) fn sources(client: &IndexerClient) -> Vec<Finding> {
    match client.discovery() {
        Ok(sources) => sources.iter().flat_map(judge).collect(),
        Err(error) => vec![Finding::problem(CHECK, format!("{error:#}"), "see the service's log")],
    }
}

fn judge(source: &DiscoverySource) -> Vec<Finding> {
    let DiscoverySource { source: name, state, error, problems, targets, .. } = source;
    let mut findings = Vec::new();
    match state.as_str() {
        "failing" => {
            let why = error.as_deref().unwrap_or("it does not say why");
            let seen = format!("{name}: {why}; what it named {} stands", last_success(source));
            findings.push(Finding::problem(CHECK, seen, fix(name)));
        }
        "waiting" => findings.push(Finding::warning(
            CHECK,
            format!("{name} has not answered yet"),
            format!("run doctor again; if it stays so, {}", fix(name)),
        )),
        _ => {}
    }
    if let Some(first) = problems.first() {
        let seen = format!("{name}: {} of what it names cannot be used: {first}", problems.len());
        findings.push(Finding::warning(CHECK, seen, "mend what it names; GET /discovery lists them all"));
    }
    let refused = targets.iter().filter(|target| target.state == "refused");
    findings.extend(refused.map(|target| {
        let why = target.reason.as_deref().unwrap_or("it cannot be registered");
        let seen = format!("{name}: {} at {} is refused: {why}", instance_name(&target.instance_id), target.endpoint);
        Finding::problem(CHECK, seen, "mend what the source says of it; it is tried again every few seconds")
    }));
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, format!("{name} names {} ranks", targets.len())));
    }
    findings
}

fn last_success(source: &DiscoverySource) -> String {
    match source.last_success_ms_ago {
        Some(ago) => format!("{:.0} s ago", ago as f64 / 1e3),
        None => "before".to_owned(),
    }
}

/// What to do about a source that fails, by its kind.
fn fix(name: &str) -> &'static str {
    match name.split(':').next() {
        Some("file") => "mend the file or let the service read it: it looks at it again by itself",
        Some("dns") => "look whether the name resolves where the service runs, and for the port that it is asked with",
        Some("kubernetes") => {
            "look whether the service's account may list and watch pods (docs/operations.md, Discovery)"
        }
        _ => "see the service's log",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::finding::Verdict;
    use super::*;

    fn verdicts(source: Value) -> Vec<Verdict> {
        let source: DiscoverySource = serde_json::from_value(source).expect("a source");
        judge(&source).iter().map(|finding| finding.verdict).collect()
    }

    #[test]
    fn sources_that_fail_and_targets_that_are_refused_are_problems() {
        let target =
            |state: &str| json!({ "instance_id": 1, "endpoint": "tcp://a:1", "state": state, "reason": "why" });
        let source = |state: &str, error: Value, problems: Value, targets: Value| {
            json!({ "source": "dns:engines", "state": state, "last_success_ms_ago": null, "error": error,
                    "problems": problems, "targets": targets })
        };
        let well = source("ok", Value::Null, json!([]), json!([target("registered"), target("by_hand")]));
        assert_eq!(verdicts(well), [Verdict::Ok]);
        assert_eq!(verdicts(source("waiting", Value::Null, json!([]), json!([]))), [Verdict::Warning]);
        assert_eq!(verdicts(source("failing", json!("refused"), json!([]), json!([]))), [Verdict::Problem]);
        let partly = source("ok", Value::Null, json!(["no port"]), json!([target("refused")]));
        assert_eq!(verdicts(partly), [Verdict::Warning, Verdict::Problem]);
    }
}
