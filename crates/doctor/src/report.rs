//! Output of findings: a table, or JSON.

use serde_json::{Value, json};

use super::finding::{Finding, Verdict};
use super::probe::Stream;
use flash_indexer_commands::output::{fitted, table};
use flash_indexer_commands::println;

/// The subject of a report.
#[derive(Debug)]
pub(super) enum Subject {
    /// The service at a URL.
    Service(String),
    /// An engine's stream.
    Stream(Box<Stream>),
}

/// All findings about one subject.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) subject: Subject,
    pub(super) findings: Vec<Finding>,
}

impl Report {
    /// The worst of its findings.
    pub(super) fn verdict(&self) -> Verdict {
        self.findings.iter().map(|finding| finding.outcome.verdict).max().unwrap_or(Verdict::Ok)
    }

    /// The table's columns model, instance and rank.
    fn names(&self) -> [String; 3] {
        match &self.subject {
            Subject::Service(_) => [String::new(), "service".to_owned(), String::new()],
            Subject::Stream(stream) => {
                let Stream { model_name, tenant_id, instance, ranks, .. } = &**stream;
                let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
                [format!("{model_name}:{tenant_id}"), instance.clone(), ranks.join(",")]
            }
        }
    }

    fn json(&self) -> Value {
        let (verdict, findings) = (self.verdict(), &self.findings);
        match &self.subject {
            Subject::Service(url) => json!({ "url": url, "verdict": verdict, "findings": findings }),
            Subject::Stream(stream) => json!({
                "instance_id": stream.instance, "dp_ranks": stream.ranks, "model_name": stream.model_name,
                "tenant_id": stream.tenant_id, "endpoint": stream.listener.endpoint, "verdict": verdict,
                "findings": findings,
            }),
        }
    }
}

pub(super) fn print_json(reports: &[Report]) {
    let reports: Vec<Value> = reports.iter().map(Report::json).collect();
    println!("{:#}", Value::Array(reports));
}

/// Prints a table of all checks, and the fixes below it, problems before warnings.
pub(super) fn print_table(reports: &[Report]) {
    let mut table = table(["model", "instance", "rank", "check", "verdict", "seen"], [2]);
    let mut fixes = Vec::new();
    for report in reports {
        let [model, instance, ranks] = report.names();
        let column = |text: fn(&Finding) -> &str| -> String {
            // A finding may quote an engine's text.
            let lines = report.findings.iter().map(|finding| text(finding).replace(['\n', '\r'], " "));
            lines.collect::<Vec<_>>().join("\n")
        };
        let checks = column(|finding| finding.check);
        let verdicts = column(|finding| finding.outcome.verdict.as_str());
        let seen = column(|finding| &finding.outcome.seen);
        table.add_row([&model, &instance, &ranks, &checks, &verdicts, &seen]);
        let subject = if ranks.is_empty() { instance } else { format!("{model} {instance} rank {ranks}") };
        fixes.extend(report.findings.iter().filter_map(|finding| {
            let fix = finding.outcome.fix.as_ref()?;
            Some((finding.outcome.verdict, format!("{subject}, {}: {fix}", finding.check)))
        }));
    }
    println!("{}", fitted(table));
    fixes.sort_by_key(|(verdict, _)| std::cmp::Reverse(*verdict));
    for (verdict, fix) in &fixes {
        println!("{}: {fix}", verdict.as_str());
    }
    let count = |wanted| fixes.iter().filter(|(verdict, _)| *verdict == wanted).count();
    println!("problems: {}, warnings: {}", count(Verdict::Problem), count(Verdict::Warning));
}
