//! Shared caches: caches of a host or of a pool, from which several instances load blocks.

use std::sync::Arc;

use flash_indexer_core::Tier;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{InstanceId, InstanceIdError, UncheckedInstanceId};

/// Limit of the shared caches that a rank is attached to.
pub const SHARED_CACHES_MAX: usize = 8;

flash_indexer_core::named_enum! {
    /// Kind of a shared cache. Its id is the kind, a colon and a name: `node:NAME` or `pool:NAME`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "lowercase")]
    pub enum SharedCacheKind {
        /// The cache of one host, such as an LMCache server.
        Node = "node",
        /// A store that several hosts use, such as Mooncake's.
        Pool = "pool",
    }
}

impl SharedCacheKind {
    /// Tier of blocks whose events name no medium, the device, or the cache's own medium. No instance has them in its
    /// device memory.
    #[must_use]
    pub const fn tier(self) -> Tier {
        match self {
            Self::Node => Tier::Host,
            Self::Pool => Tier::External,
        }
    }
}

impl InstanceId {
    /// Kind of the shared cache that has this id; none for the id of an instance.
    #[must_use]
    pub fn shared_cache(&self) -> Option<SharedCacheKind> {
        let (kind, name) = self.as_key().split_once(':')?;
        SharedCacheKind::named(kind).filter(|_| !name.is_empty())
    }
}

/// Ids of the shared caches that a rank is attached to, in order and without repetitions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SharedCaches(Option<Arc<[InstanceId]>>);

/// Invalid list of shared caches.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SharedCachesError {
    /// Too many of them.
    #[error("shared_caches has {count} ids; at most {SHARED_CACHES_MAX} are allowed: attach the instance to fewer")]
    TooMany {
        /// Number of ids.
        count: usize,
    },
    /// The id of an instance.
    #[error("invalid id {0} in shared_caches: give node:NAME or pool:NAME")]
    Instance(InstanceId),
    /// An invalid id.
    #[error("invalid id in shared_caches: {0}")]
    Id(#[from] InstanceIdError),
}

impl SharedCaches {
    /// Creates a list from unchecked ids.
    ///
    /// # Errors
    ///
    /// If there are too many, or one is not a valid id of a shared cache.
    pub fn new(ids: impl IntoIterator<Item = UncheckedInstanceId>) -> Result<Self, SharedCachesError> {
        let ids: Result<Vec<_>, _> = ids.into_iter().map(UncheckedInstanceId::checked).collect();
        let mut ids = ids?;
        if let Some(instance) = ids.iter().find(|id| id.shared_cache().is_none()) {
            return Err(SharedCachesError::Instance(instance.clone()));
        }
        ids.sort();
        ids.dedup();
        match ids.len() {
            0 => Ok(Self::default()),
            1..=SHARED_CACHES_MAX => Ok(Self(Some(ids.into()))),
            count => Err(SharedCachesError::TooMany { count }),
        }
    }

    /// The ids.
    #[must_use]
    pub fn ids(&self) -> &[InstanceId] {
        self.0.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(text: &str) -> UncheckedInstanceId {
        serde_json::from_value(text.into()).expect("an id")
    }

    #[test]
    fn ids_of_shared_caches_have_a_kind_and_a_name() {
        let kind = |text| InstanceId::parse(text).expect("an id").shared_cache();
        assert_eq!(kind("node:host-1"), Some(SharedCacheKind::Node));
        assert_eq!(kind("pool:a:b"), Some(SharedCacheKind::Pool));
        for instance in ["node:", "pool", "node-1", "nodes:1", "7", "x:node:y", "Node:1"] {
            assert_eq!(kind(instance), None, "{instance}");
        }
    }

    #[test]
    fn a_list_is_ordered_and_bounded() {
        let ids = SharedCaches::new(["pool:p", "node:n", "pool:p"].map(given)).expect("a list");
        assert_eq!(ids, SharedCaches::new(["node:n", "pool:p"].map(given)).expect("a list"));
        assert_eq!(ids.ids().iter().map(InstanceId::as_key).collect::<Vec<_>>(), ["node:n", "pool:p"]);
        assert_eq!(SharedCaches::new([]).expect("a list"), SharedCaches::default());
        let many = |count: usize| SharedCaches::new((0..count).map(|number| given(&format!("node:{number}"))));
        assert!(many(SHARED_CACHES_MAX).is_ok());
        let count = SHARED_CACHES_MAX + 1;
        assert_eq!(many(count), Err(SharedCachesError::TooMany { count }));
        let error = SharedCaches::new([given("pod-1")]).expect_err("an instance").to_string();
        assert_eq!(error, "invalid id pod-1 in shared_caches: give node:NAME or pool:NAME");
        assert!(matches!(SharedCaches::new([given("node:\n")]), Err(SharedCachesError::Id(_))));
    }
}
