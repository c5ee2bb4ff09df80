//! Options of the socket that pods connect to, and of their registration.

use std::time::Duration;

use flash_indexer_types::ModelKey;

/// Options of the socket that pods connect to, and of their registration.
#[derive(Debug, Clone)]
pub struct PodOptions {
    /// Addresses to bind, such as `tcp://0.0.0.0:5557`. Port `*` chooses a free port.
    pub endpoints: Vec<String>,
    /// Prefix of topics. Messages with other topics are not received.
    pub topic_prefix: String,
    /// Tenant of pods that register themselves.
    pub tenant_id: String,
    /// Patterns of models whose pods may register themselves. `*` matches any text. An empty list allows every model.
    pub models: Vec<String>,
    /// Maximum number of ranks that pods register themselves. Zero disables it.
    pub pods_max: usize,
    /// Maximum number of models that pods add by registering themselves. Models with other registrations do not count.
    /// None is half of [`IndexerOptions::models_max`](super::IndexerOptions::models_max).
    pub models_max: Option<usize>,
    /// A pod that registered itself is unregistered after it has been disconnected for this time. None never
    /// unregisters it.
    pub timeout: Option<Duration>,
}

impl PodOptions {
    /// Default of [`PodOptions::pods_max`].
    pub const PODS_MAX: usize = 4_096;
    /// Default of [`PodOptions::topic_prefix`].
    pub const TOPIC_PREFIX: &str = "kv@";
    /// Default of [`PodOptions::timeout`].
    pub const TIMEOUT: Duration = Duration::from_secs(300);

    /// Default options for these addresses.
    #[must_use]
    pub fn new(endpoints: Vec<String>) -> Self {
        Self {
            endpoints,
            topic_prefix: Self::TOPIC_PREFIX.to_owned(),
            tenant_id: ModelKey::DEFAULT_TENANT.to_owned(),
            models: Vec::new(),
            pods_max: Self::PODS_MAX,
            models_max: None,
            timeout: Some(Self::TIMEOUT),
        }
    }

    /// Whether pods of this model may register themselves.
    pub(super) fn allows(&self, model_name: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|pattern| matches_pattern(pattern, model_name))
    }
}

/// Whether a text matches a pattern in which `*` matches any text.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_in_a_pattern_matches_any_text() {
        for (pattern, text) in [
            ("llama", "llama"),
            ("*", ""),
            ("*", "x"),
            ("meta/*", "meta/llama"),
            ("*-8b", "llama-8b"),
            ("m*/l*-8b", "meta/llama-8b"),
            ("a*a", "aa"),
            ("*a*", "bab"),
        ] {
            assert!(matches_pattern(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("llama", "llama-3"),
            ("", "x"),
            ("meta/*", "met"),
            ("*-8b", "llama-8b-it"),
            ("a*a", "a"),
            ("a*b*c", "acb"),
        ] {
            assert!(!matches_pattern(pattern, text), "{pattern} {text}");
        }
    }
}
