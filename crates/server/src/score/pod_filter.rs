//! Which pods are asked about.

use std::collections::BTreeSet;

/// The pods that a score is wanted of; an empty list means all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodFilter(BTreeSet<String>);

impl PodFilter {
    /// These pods, or all if there are none.
    #[must_use]
    pub fn of(pods: impl IntoIterator<Item = String>) -> Self {
        Self(pods.into_iter().collect())
    }

    /// Whether this pod is asked about.
    #[must_use]
    pub fn admits(&self, pod: &str) -> bool {
        self.0.is_empty() || self.0.contains(pod)
    }
}
