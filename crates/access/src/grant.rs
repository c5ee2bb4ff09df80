//! Permissions of a token.

use std::collections::BTreeSet;

use flash_indexer_types::names::shortened;
use serde::Deserialize;

/// Group of endpoints that a token may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Queries, scores, predictions, explanations and lists of instances.
    Query,
    /// Registration of engines.
    Events,
    /// Dumps, digests, peers, and states of the whole service.
    Admin,
}

impl Scope {
    /// Name of the scope in the token file.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Events => "events",
            Self::Admin => "admin",
        }
    }
}

/// Permissions of a token: scopes, for some tenants or for all. A scope does not include another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub(crate) name: String,
    pub(crate) scopes: BTreeSet<Scope>,
    /// None permits every tenant.
    pub(crate) tenants: Option<BTreeSet<String>>,
}

impl Grant {
    /// The grant of every request to a service without access control.
    #[must_use]
    pub fn unrestricted() -> Self {
        let scopes = [Scope::Query, Scope::Events, Scope::Admin].into();
        Self { name: "unrestricted".to_owned(), scopes, tenants: None }
    }

    /// Name of the token, for logs and errors.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Checks that the token has a scope.
    ///
    /// # Errors
    ///
    /// Fails if the token lacks the scope.
    pub fn check(&self, scope: Scope) -> Result<(), Denied> {
        match self.scopes.contains(&scope) {
            true => Ok(()),
            false => Err(Denied::Scope { token: self.name.clone(), scope }),
        }
    }

    /// Whether the token permits a tenant.
    #[must_use]
    pub fn permits_tenant(&self, tenant: &str) -> bool {
        self.tenants.as_ref().is_none_or(|tenants| tenants.contains(tenant))
    }

    /// Checks that the token permits a tenant.
    ///
    /// # Errors
    ///
    /// Fails if the token is bound to other tenants.
    pub fn check_tenant(&self, tenant: &str) -> Result<(), Denied> {
        match self.permits_tenant(tenant) {
            true => Ok(()),
            false => Err(Denied::Tenant { token: self.name.clone(), tenant: shortened(tenant).into_owned() }),
        }
    }

    /// Checks that the token permits every tenant.
    ///
    /// # Errors
    ///
    /// Fails if the token is bound to some tenants.
    pub fn check_all_tenants(&self) -> Result<(), Denied> {
        match self.tenants {
            None => Ok(()),
            Some(_) => Err(Denied::AllTenants { token: self.name.clone() }),
        }
    }
}

/// Reason for which a request is denied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The request has no token.
    #[error("the request has no bearer token; send the header `Authorization: Bearer TOKEN`")]
    NoToken,
    /// The token file has no such token.
    #[error("the bearer token is unknown; use a token whose SHA-256 digest is in the service's token file")]
    UnknownToken,
    /// The token lacks the scope of the endpoint.
    #[error("token {token:?} lacks the scope `{}`; add it to the token's `scopes` in the token file", .scope.as_str())]
    Scope {
        /// Name of the token.
        token: String,
        /// The scope of the endpoint.
        scope: Scope,
    },
    /// The token is bound to other tenants.
    #[error("token {token:?} does not permit tenant {tenant:?}; add it to the token's `tenants` in the token file")]
    Tenant {
        /// Name of the token.
        token: String,
        /// The tenant of the request.
        tenant: String,
    },
    /// The request concerns all tenants.
    #[error(
        "token {token:?} is bound to tenants, and the request concerns all; name a tenant, or use a token without `tenants`"
    )]
    AllTenants {
        /// Name of the token.
        token: String,
    },
}

impl Denied {
    /// Name of the reason in metrics.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::NoToken => "no_token",
            Self::UnknownToken => "unknown_token",
            Self::Scope { .. } => "scope",
            Self::Tenant { .. } | Self::AllTenants { .. } => "tenant",
        }
    }

    /// Whether the request lacks a known token, as opposed to a permission.
    #[must_use]
    pub const fn is_unauthenticated(&self) -> bool {
        matches!(self, Self::NoToken | Self::UnknownToken)
    }
}
