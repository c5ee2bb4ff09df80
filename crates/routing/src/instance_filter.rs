//! Filter of the instances that a request scores.

use std::collections::BTreeSet;

use flash_indexer_types::InstanceId;

/// The instances that a request scores. An empty list means all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstanceFilter(BTreeSet<InstanceId>);

impl InstanceFilter {
    /// The first of the instances; none if the filter admits all.
    #[must_use]
    pub fn first(&self) -> Option<&InstanceId> {
        self.0.first()
    }

    /// Whether the request scores this instance.
    #[must_use]
    pub fn admits(&self, instance: &InstanceId) -> bool {
        self.0.is_empty() || self.0.contains(instance)
    }
}

impl FromIterator<InstanceId> for InstanceFilter {
    fn from_iter<I: IntoIterator<Item = InstanceId>>(instances: I) -> Self {
        Self(instances.into_iter().collect())
    }
}
