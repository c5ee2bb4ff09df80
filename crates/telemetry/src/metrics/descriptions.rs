//! Descriptions of all metrics and of the values of their labels, for the documentation.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use flash_indexer_core::{MemoryLimit, RankSize};
use flash_indexer_types::ModelKey;

use super::format::{TextFormat, sample_suffix};
use super::label_values::LabelValues;
use super::rejections::CONNECTION_REASONS;
use super::{
    COMPAT_PREFIX, Endpoint, IngestQueueState, ListenerState, MetricNames, Metrics, ModelCounts, ModelState, PREFIX,
    QueueState, State, StateSection, state,
};

/// A metric as `/metrics` describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricDescription {
    /// Name of its samples, without the prefix of the service.
    pub name: String,
    /// Its type.
    pub kind: String,
    /// Its labels.
    pub labels: Vec<String>,
    /// What it measures.
    pub help: String,
    /// Other names of the same metric.
    pub aliases: Vec<String>,
}

/// The values of all labels that have a fixed set of them. `others` are the values of parts of the service that encode their own metrics.
#[must_use]
pub fn describe_labels(others: Vec<LabelValues>) -> Vec<LabelValues> {
    let mut all = Metrics::new(MetricNames::Own).declarations.label_values;
    all.extend(state::label_values());
    all.extend(others);
    all.push(LabelValues::of("/workers", "rejected", &CONNECTION_REASONS));
    all.sort_by(|a, b| (&a.metric, a.label).cmp(&(&b.metric, b.label)));
    all
}

/// All metrics, by name: the metrics of every service, and the metrics of these sections.
#[must_use]
pub fn describe_metrics(sections: Vec<Box<dyn StateSection>>) -> Vec<MetricDescription> {
    let metrics = Metrics::new(MetricNames::OwnAndCompat);
    metrics.add_dynamic_series();
    let described = read(&metrics.encode(example(sections), TextFormat::OpenMetrics));
    let mut own = BTreeMap::new();
    let mut aliases = Vec::new();
    for metric in described {
        let of = |prefix: &str| metric.name.strip_prefix(prefix).and_then(|name| name.strip_prefix('_'));
        match (of(PREFIX), of(COMPAT_PREFIX)) {
            (Some(name), _) => {
                let name = name.to_owned();
                match alias_of(&metric.help) {
                    Some(other) => aliases.push((other.to_owned(), name)),
                    None => drop(own.insert(name.clone(), MetricDescription { name, ..metric })),
                }
            }
            (None, Some(name)) => aliases.push((name.to_owned(), metric.name)),
            (None, None) => drop(own.insert(metric.name.clone(), metric)),
        }
    }
    for (of, alias) in aliases {
        let named =
            own.values_mut().find(|metric| metric.name.trim_end_matches("_total") == of.trim_end_matches("_total"));
        named.expect("an alias names a metric").aliases.push(alias);
    }
    own.into_values().collect()
}

/// The metric whose alias has this help.
fn alias_of(help: &str) -> Option<&str> {
    help.strip_prefix("Alias of ")?.split(' ').next()
}

/// A state with one of each.
fn example(sections: Vec<Box<dyn StateSection>>) -> State {
    State {
        models: vec![ModelState {
            key: ModelKey::new("m", None),
            instances: 0,
            shared_caches: 0,
            ranks: 0,
            size: RankSize::default(),
            bytes: Some(0),
            memory_limit: Some(MemoryLimit::default()),
            twins_skipped: 0,
            counts: ModelCounts::default(),
        }],
        listeners: [(ListenerState { status: "connected", trust: "exact" }, 1)].into(),
        decoders: vec![QueueState { messages: 0, bytes: 0 }],
        ingest_queue: IngestQueueState { bytes: 0, bytes_max: 0 },
        writers: vec![0],
        predicted_blocks: 0,
        sections,
        stalled_threads: 0,
    }
}

impl Metrics {
    /// Adds a series to each family whose labels are known only when something is counted.
    fn add_dynamic_series(&self) {
        self.request_answered(Endpoint { path: "/query", method: "POST" }, 500, Duration::ZERO);
        self.rpc_answered("Query", "ok", Duration::ZERO);
        self.access_denied("no_token");
        self.tls_handshake_failed("timeout");
        self.tokenized("text", Err("queue_full"));
        self.discovery_polled("file", "ok");
        self.discovery_succeeded("file", SystemTime::UNIX_EPOCH);
        self.discovery_change("registered");
        self.discovery_targets("file", &[("registered", 1)].into());
    }
}

/// Reads the descriptions of OpenMetrics text.
fn read(text: &str) -> Vec<MetricDescription> {
    let mut described: Vec<MetricDescription> = Vec::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            described.push(MetricDescription {
                name: name.to_owned(),
                kind: String::new(),
                labels: Vec::new(),
                help: help.to_owned(),
                aliases: Vec::new(),
            });
            continue;
        }
        let Some(metric) = described.last_mut() else { continue };
        if let Some((_, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            kind.clone_into(&mut metric.kind);
            metric.name.push_str(sample_suffix(kind));
        } else if let Some((_, labels)) = line.split_once('{').filter(|_| !line.starts_with('#')) {
            let names =
                labels.split("\",").filter_map(|label| label.split_once("=\"")).map(|(name, _)| name.to_owned());
            metric.labels = names.filter(|name| name != "le").collect();
        }
    }
    described
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_metric_has_a_type_a_help_and_samples_that_show_its_labels() {
        let metrics = Metrics::new(MetricNames::Own);
        metrics.add_dynamic_series();
        let text = metrics.encode(example(Vec::new()), TextFormat::OpenMetrics);
        for metric in read(&text) {
            assert!(!metric.kind.is_empty() && metric.help.len() > 1, "{metric:?}");
            let samples = [" ", "{", "_bucket{"].map(|next| format!("\n{}{next}", metric.name));
            assert!(samples.iter().any(|sample| text.contains(sample)), "no sample of {metric:?}");
        }
    }

    #[test]
    fn aliases_are_listed_with_what_they_name() {
        let all = describe_metrics(Vec::new());
        let named = |name: &str| all.iter().find(|metric| metric.name == name).unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(named("limit_reached_total").aliases, ["bounds_reached_total"]);
        assert_eq!(named("requests_total").aliases, ["dynamo_kvindexer_requests_total"]);
        assert_eq!(named("requests_total").labels, ["endpoint", "method", "status"]);
        assert_eq!(named("build_info").kind, "info");
        assert!(all.iter().all(|metric| metric.name != "queued_lots"));
    }

    #[test]
    fn described_labels_are_those_of_metrics_and_their_values_differ() {
        let metrics = describe_metrics(Vec::new());
        for LabelValues { metric, label, values } in describe_labels(Vec::new()) {
            let labels = metrics.iter().find(|described| described.name == metric).map(|described| &described.labels);
            let is_of_workers = metric == "/workers";
            assert!(
                is_of_workers || labels.is_some_and(|labels| labels.iter().any(|of| of == label)),
                "{metric} {label}"
            );
            let names: BTreeSet<_> = values.iter().map(|(value, _)| value).collect();
            assert_eq!(names.len(), values.len(), "{metric} {label}");
            assert!(values.iter().all(|(_, meaning)| meaning.ends_with('.')), "{metric} {label}");
        }
    }
}
