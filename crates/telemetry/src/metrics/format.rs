//! The two text formats that Prometheus scrapes.

use std::collections::HashMap;

/// Text format of a metrics response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextFormat {
    /// Prometheus' own text format, which every scraper reads.
    Classic,
    /// OpenMetrics 1.0, for clients that accept it.
    OpenMetrics,
}

impl TextFormat {
    /// The format's `Content-Type`.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Converts encoded OpenMetrics, without the `# EOF` line, to this format.
    pub(super) fn finish(self, mut metrics: String) -> String {
        match self {
            Self::Classic => classic(&metrics),
            Self::OpenMetrics => {
                metrics.push_str("# EOF\n");
                metrics
            }
        }
    }
}

/// Converts OpenMetrics to the classic format, which names counters and infos by their samples and has neither units nor infos.
fn classic(metrics: &str) -> String {
    let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let suffixes: HashMap<&str, &str> = types.map(|(name, kind)| (name, sample_suffix(kind))).collect();
    let mut text = String::with_capacity(metrics.len());
    for line in metrics.lines() {
        let words = line.strip_prefix("# ").and_then(|comment| {
            let (keyword, rest) = comment.split_once(' ')?;
            let (name, rest) = rest.split_once(' ')?;
            Some((keyword, name, rest))
        });
        match words {
            Some(("UNIT", ..)) => continue,
            Some((keyword, name, rest)) => {
                let suffix = suffixes.get(name).copied().unwrap_or_default();
                let rest = if (keyword, rest) == ("TYPE", "info") { "gauge" } else { rest };
                text.extend(["# ", keyword, " ", name, suffix, " ", rest]);
            }
            None => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

/// The suffix that OpenMetrics appends to the name of a metric of this type in its samples.
pub(super) fn sample_suffix(kind: &str) -> &'static str {
    match kind {
        "counter" => "_total",
        "info" => "_info",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_classic_format_names_counters_and_infos_by_their_samples() {
        let metrics = "# HELP a_requests Requests.\n# TYPE a_requests counter\na_requests_total{p=\"# TYPE b\"} 1\n\
            # HELP b_seconds Time.\n# TYPE b_seconds gauge\n# UNIT b_seconds seconds\nb_seconds 0.5\n\
            # HELP c C.\n# TYPE c info\nc_info{v=\"1\"} 1\n";
        let expected = "# HELP a_requests_total Requests.\n# TYPE a_requests_total counter\na_requests_total{p=\"# TYPE b\"} 1\n\
            # HELP b_seconds Time.\n# TYPE b_seconds gauge\nb_seconds 0.5\n\
            # HELP c_info C.\n# TYPE c_info gauge\nc_info{v=\"1\"} 1\n";
        assert_eq!(TextFormat::Classic.finish(metrics.to_owned()), expected);
        assert_eq!(TextFormat::OpenMetrics.finish(metrics.to_owned()), format!("{metrics}# EOF\n"));
    }
}
