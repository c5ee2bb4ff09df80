//! Permissions of a token.

use std::collections::BTreeSet;

use flash_indexer_types::names::shortened;
use serde::Deserialize;

use crate::jwt_error::JwtError;

flash_indexer_types::named_enum! {
    /// Group of endpoints that a token may use.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Scope {
        /// Queries, scores, predictions, explanations and lists of instances.
        Query = "query",
        /// Registration of engines.
        Events = "events",
        /// Dumps, digests, peers, states of the whole service, and the text of prompts that it keeps.
        Admin = "admin",
    }
}

/// Place in which the permissions of a token are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrantOrigin {
    /// Its entry in the token file.
    TokenFile,
    /// Its claims.
    Jwt,
}

impl GrantOrigin {
    const fn scopes_remedy(self) -> &'static str {
        match self {
            Self::TokenFile => "add it to the token's `scopes` in the token file",
            Self::Jwt => "have the issuer add it to the claim of --jwt-scopes-claim",
        }
    }

    const fn tenants_remedy(self) -> &'static str {
        match self {
            Self::TokenFile => "add it to the token's `tenants` in the token file",
            Self::Jwt => "have the issuer add it to the claim of --jwt-tenants-claim",
        }
    }

    const fn all_tenants_remedy(self) -> &'static str {
        match self {
            Self::TokenFile => "use a token without `tenants`",
            Self::Jwt => "have the issuer add `*` to the claim of --jwt-tenants-claim",
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
    pub(crate) origin: GrantOrigin,
}

impl Grant {
    /// The grant of every request to a service without access control.
    #[must_use]
    pub fn unrestricted() -> Self {
        let (scopes, origin) = (Scope::ALL.into(), GrantOrigin::TokenFile);
        Self { name: "unrestricted".to_owned(), scopes, tenants: None, origin }
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
    pub fn check(&self, scope: Scope) -> Result<(), AccessError> {
        match self.scopes.contains(&scope) {
            true => Ok(()),
            false => Err(AccessError::Scope { token: self.name.clone(), scope, origin: self.origin }),
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
    pub fn check_tenant(&self, tenant: &str) -> Result<(), AccessError> {
        match self.permits_tenant(tenant) {
            true => Ok(()),
            false => {
                let (token, tenant) = (self.name.clone(), shortened(tenant).into_owned());
                Err(AccessError::Tenant { token, tenant, origin: self.origin })
            }
        }
    }

    /// Checks that the token permits every tenant.
    ///
    /// # Errors
    ///
    /// Fails if the token is bound to some tenants.
    pub fn check_all_tenants(&self) -> Result<(), AccessError> {
        match self.tenants {
            None => Ok(()),
            Some(_) => Err(AccessError::AllTenants { token: self.name.clone(), origin: self.origin }),
        }
    }
}

/// A token in errors: by its name, if it has one.
fn named(token: &str) -> String {
    match token {
        "" => "the JWT, which has no claim `sub` to name it by,".to_owned(),
        name => format!("token {name:?}"),
    }
}

/// Reason why a request is denied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The request has no token.
    #[error("the request has no bearer token; send the header `Authorization: Bearer TOKEN`")]
    NoToken,
    /// The token file has no such token.
    #[error("the bearer token is unknown; use a token whose SHA-256 digest is in the service's token file")]
    UnknownToken,
    /// The token is a JWT that cannot be accepted.
    #[error(transparent)]
    Jwt(#[from] JwtError),
    /// The token lacks the scope of the endpoint.
    #[error("{} lacks the scope `{}`; {}", named(.token), .scope.as_str(), .origin.scopes_remedy())]
    Scope {
        /// Name of the token.
        token: String,
        /// The scope of the endpoint.
        scope: Scope,
        /// Where the scopes are written.
        origin: GrantOrigin,
    },
    /// The token is bound to other tenants.
    #[error("{} does not permit tenant {tenant:?}; {}", named(.token), .origin.tenants_remedy())]
    Tenant {
        /// Name of the token.
        token: String,
        /// The tenant of the request.
        tenant: String,
        /// Where the tenants are written.
        origin: GrantOrigin,
    },
    /// The request concerns all tenants.
    #[error(
        "{} is bound to tenants, and the request concerns all; name a tenant, or {}", named(.token), .origin.all_tenants_remedy()
    )]
    AllTenants {
        /// Name of the token.
        token: String,
        /// Where the tenants are written.
        origin: GrantOrigin,
    },
}

impl AccessError {
    /// Name of the reason in metrics.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::NoToken => "no_token",
            Self::UnknownToken => "unknown_token",
            Self::Jwt(error) => error.as_str(),
            Self::Scope { .. } => "scope",
            Self::Tenant { .. } | Self::AllTenants { .. } => "tenant",
        }
    }

    /// Whether the request lacks a known token, as opposed to a permission.
    #[must_use]
    pub const fn is_unauthenticated(&self) -> bool {
        matches!(self, Self::NoToken | Self::UnknownToken | Self::Jwt(_))
    }
}
