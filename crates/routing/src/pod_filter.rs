//! Filter of the pods that a request scores.

use std::collections::BTreeSet;

/// The pods that a request scores. An empty list means all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodFilter(BTreeSet<String>);

impl PodFilter {
    /// Creates a filter of these pods. Without any, it admits all.
    #[must_use]
    pub fn of(pods: impl IntoIterator<Item = String>) -> Self {
        Self(pods.into_iter().collect())
    }

    /// Whether the request scores this pod.
    #[must_use]
    pub fn admits(&self, pod: &str) -> bool {
        self.0.is_empty() || self.0.contains(pod)
    }
}
