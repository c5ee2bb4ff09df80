//! A strict reader of the two text formats of metrics, and of the conventions for their names.

use std::collections::{BTreeMap, BTreeSet};

pub(crate) type Labels = BTreeMap<String, String>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Classic,
    OpenMetrics,
}

#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) labels: Labels,
    pub(crate) value: f64,
}

#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) samples: Vec<Sample>,
}

/// Metrics that were read and checked.
#[derive(Debug)]
pub(crate) struct Exposition {
    pub(crate) families: Vec<Family>,
}

impl Exposition {
    /// Reads a text, and panics if Prometheus would reject it or its conventions do not allow it.
    pub(crate) fn read(text: &str, format: Format) -> Self {
        assert!(text.ends_with('\n'), "the last line is not ended");
        let mut lines: Vec<&str> = text.lines().collect();
        if format == Format::OpenMetrics {
            assert_eq!(lines.pop(), Some("# EOF"), "OpenMetrics ends with a mark");
        }
        let mut families: Vec<Family> = Vec::new();
        let mut unit = None;
        for line in lines {
            let comment = line.strip_prefix("# ").map(|comment| comment.splitn(3, ' ').collect::<Vec<_>>());
            match comment.as_deref() {
                Some(["HELP", name, help]) => {
                    assert!(help.ends_with('.') && !help.ends_with(".."), "it is no sentence: {line}");
                    assert!(families.iter().all(|known| known.name != *name), "{line}");
                    unit = None;
                    families.push(Family { name: (*name).to_owned(), kind: String::new(), samples: Vec::new() });
                }
                Some(["TYPE", name, kind]) => {
                    let family = families.last_mut().expect("HELP comes first");
                    assert!(family.name == *name && family.kind.is_empty(), "{line}");
                    family.kind = (*kind).to_owned();
                }
                Some(["UNIT", name, named]) => {
                    assert!(format == Format::OpenMetrics && name.ends_with(&format!("_{named}")), "{line}");
                    assert!(unit.replace(*named).is_none(), "{line}");
                }
                _ => {
                    let family = families.last_mut().expect("a family comes first");
                    let sample = sample(line);
                    assert!(
                        suffixes(&family.kind, format).contains(&sample.name.strip_prefix(&family.name).unwrap_or("?")),
                        "{line} in {}",
                        family.name
                    );
                    family.samples.push(sample);
                }
            }
        }
        families.iter().for_each(|family| family.check(format));
        Self { families }
    }

    pub(crate) fn family(&self, name: &str) -> Option<&Family> {
        self.families.iter().find(|family| family.name == name)
    }

    /// The value of one sample; zero if it is not there.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let fits = |sample: &&Sample| {
            sample.name == name
                && labels.iter().all(|(key, value)| sample.labels.get(*key).is_some_and(|is| is == value))
        };
        let samples = self.families.iter().flat_map(|family| &family.samples);
        samples.filter(fits).map(|sample| sample.value).sum()
    }
}

/// Suffixes of a family's name in its samples.
fn suffixes(kind: &str, format: Format) -> &'static [&'static str] {
    match (kind, format) {
        ("histogram", _) => &["_bucket", "_sum", "_count"],
        ("counter", Format::OpenMetrics) => &["_total"],
        ("info", Format::OpenMetrics) => &["_info"],
        ("counter", Format::Classic) | ("gauge", _) => &[""],
        _ => panic!("no metric of this format has the type {kind:?}"),
    }
}

/// `name{label="value",…} number`
fn sample(line: &str) -> Sample {
    let name_end = line.find(['{', ' ']).unwrap_or_else(|| panic!("no sample: {line}"));
    let (name, mut rest) = line.split_at(name_end);
    assert!(is_name(name), "{line}");
    let mut labels = Labels::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, quoted) = rest.split_once("=\"").unwrap_or_else(|| panic!("no label: {line}"));
            assert!(is_name(label) && !label.starts_with("__"), "{line}");
            let (value, after) = unquoted(quoted, line);
            assert!(labels.insert(label.to_owned(), value).is_none(), "twice the same label: {line}");
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &rest[1..];
    }
    let number = rest.strip_prefix(' ').unwrap_or_else(|| panic!("no value: {line}"));
    let value = number.parse().unwrap_or_else(|_| panic!("no number: {line}"));
    Sample { name: name.to_owned(), labels, value }
}

/// A label's value up to its closing quote, and the rest of the line.
fn unquoted<'a>(quoted: &'a str, line: &str) -> (String, &'a str) {
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.push(match chars.next() {
                Some((_, 'n')) => '\n',
                Some((_, escaped @ ('\\' | '"'))) => escaped,
                other => panic!("no such escape {other:?}: {line}"),
            }),
            char => value.push(char),
        }
    }
    panic!("a label's value does not end: {line}");
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

impl Family {
    fn check(&self, format: Format) {
        let Self { name, kind, samples } = self;
        assert!(is_name(name) && !name.contains("__"), "{name}");
        let ends_as_counter = name.ends_with("_total");
        assert_eq!(ends_as_counter, kind == "counter" && format == Format::Classic, "{name} is a {kind}");
        let stem = name.strip_suffix("_total").unwrap_or(name);
        for unit in ["ms", "us", "milliseconds", "micros", "minutes", "kb", "mb", "kilobytes", "percent"] {
            assert!(!stem.split('_').any(|word| word == unit), "{name} is not in a base unit");
        }
        for unit in ["seconds", "bytes"] {
            let is_last = stem.ends_with(unit);
            assert_eq!(is_last, stem.split('_').any(|word| word == unit), "{name}: the unit comes last");
        }
        let mut seen = BTreeSet::new();
        for Sample { name, labels, value } in samples {
            assert!(seen.insert((name, labels)), "twice: {name} {labels:?}");
            assert!(value.is_finite() && (kind == "gauge" || *value >= 0.0), "{name} {value}");
            assert_eq!(labels.contains_key("le"), name.ends_with("_bucket") && kind == "histogram", "{name}");
        }
        if kind == "histogram" {
            self.check_histogram();
        }
    }

    fn check_histogram(&self) {
        let mut series: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
        for sample in self.samples.iter().filter(|sample| sample.name.ends_with("_bucket")) {
            let mut labels = sample.labels.clone();
            let bound = labels.remove("le").expect("checked before");
            series.entry(labels).or_default().push((bound.parse().expect("a number"), sample.value));
        }
        for (labels, buckets) in &series {
            assert!(buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1), "{buckets:?}");
            let one = |suffix: &str| {
                let name = format!("{}{suffix}", self.name);
                let mut found = self.samples.iter().filter(|sample| sample.name == name && sample.labels == *labels);
                found.next().unwrap_or_else(|| panic!("no {name}")).value
            };
            let last = buckets.last().expect("a bucket");
            assert_eq!((last.0, last.1), (f64::INFINITY, one("_count")), "{}", self.name);
            assert!(one("_sum") >= 0.0);
        }
        let counts = self.samples.iter().filter(|sample| sample.name.ends_with("_count")).count();
        assert_eq!(series.len(), counts, "{}", self.name);
    }
}
