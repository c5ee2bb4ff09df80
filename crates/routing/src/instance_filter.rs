//! Filter of the instances that a request scores.

use std::collections::BTreeSet;

/// The instances that a request scores. An empty list means all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstanceFilter(BTreeSet<String>);

impl InstanceFilter {
    /// Creates a filter of these instances. Without any, it admits all.
    #[must_use]
    pub fn of(instances: impl IntoIterator<Item = String>) -> Self {
        Self(instances.into_iter().collect())
    }

    /// Whether the request scores this instance.
    #[must_use]
    pub fn admits(&self, instance: &str) -> bool {
        self.0.is_empty() || self.0.contains(instance)
    }
}
