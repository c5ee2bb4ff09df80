//! Checks of bearer tokens and of tenants' limits: the permission that a request needs, the grant of its token, and the rate
//! of its tenant.

use std::sync::Arc;
use std::time::Instant;

use flash_indexer_access::{
    AccessError, BearerVerifier, Grant, LimitExceeded, LimitsFile, Scope, TenantLimit, TenantRates,
};
use flash_indexer_registry::Indexer;
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_types::ModelKey;

/// Scheme of the header `authorization`, with its space.
const BEARER: &[u8] = b"bearer ";

/// Permission that an endpoint requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permission {
    /// No token.
    Open,
    /// A scope. The handler checks the tenant of the request.
    Tenant(Scope),
    /// A scope for all tenants.
    AllTenants(Scope),
}

/// Access control of a server. Without a verifier of tokens, every request is permitted.
///
/// Consistency: a request is checked against the token file, or the issuer's keys, as they were at most about a second before.
#[derive(Debug)]
pub(crate) struct AccessControl {
    tokens: Option<BearerVerifier>,
    rates: Option<TenantRates>,
    unrestricted: Arc<Grant>,
}

impl AccessControl {
    /// Access control by bearer tokens and the limits of a file.
    pub(crate) fn new(tokens: Option<BearerVerifier>, limits: Option<Arc<LimitsFile>>) -> Self {
        Self { tokens, rates: limits.map(TenantRates::new), unrestricted: Arc::new(Grant::unrestricted()) }
    }

    /// Admits a query of a permitted tenant with this many prompt tokens.
    pub(crate) fn admit_query(&self, model: &ModelKey, tokens: usize) -> Result<(), LimitExceeded> {
        let Some(rates) = &self.rates else { return Ok(()) };
        rates.admit(&model.tenant_id, tokens, Instant::now())
    }

    /// Counts prompt tokens of an admitted query, which are known only after tokenization.
    pub(crate) fn charge(&self, model: &ModelKey, tokens: usize) {
        if let Some(rates) = &self.rates {
            rates.charge(&model.tenant_id, tokens, Instant::now());
        }
    }

    /// The grant of a request, if it has the permission. `authorization` is the value of that header.
    pub(crate) fn admit(&self, authorization: Option<&[u8]>, needed: Permission) -> Result<Arc<Grant>, AccessError> {
        let scope = match needed {
            Permission::Open => return Ok(Arc::clone(&self.unrestricted)),
            Permission::Tenant(scope) | Permission::AllTenants(scope) => scope,
        };
        let Some(tokens) = &self.tokens else { return Ok(Arc::clone(&self.unrestricted)) };
        let token = bearer(authorization.ok_or(AccessError::NoToken)?).ok_or(AccessError::NoToken)?;
        let grant = tokens.grant(token)?;
        grant.check(scope)?;
        if matches!(needed, Permission::AllTenants(_)) {
            grant.check_all_tenants()?;
        }
        Ok(grant)
    }
}

/// Prompt tokens of blocks that a query names by their hashes; none for a model that is not registered here.
pub(crate) fn tokens_of_blocks(indexer: &Indexer, model: &ModelKey, blocks: usize) -> usize {
    indexer.block_size_of(model).map_or(0, |size| blocks.saturating_mul(size.tokens() as usize))
}

/// Name of a tenant's limit in metrics.
pub(crate) const fn limit_metric(limit: TenantLimit) -> Limit {
    match limit {
        TenantLimit::HeldBlocks => Limit::TenantHeldBlocks,
        TenantLimit::Ranks => Limit::TenantRanks,
        TenantLimit::Queries => Limit::TenantQueries,
        TenantLimit::PromptTokens => Limit::TenantPromptTokens,
    }
}

/// The token in the value of an `authorization` header.
fn bearer(value: &[u8]) -> Option<&str> {
    let (scheme, token) = value.split_at_checked(BEARER.len())?;
    let token = std::str::from_utf8(token).ok()?.trim();
    (scheme.eq_ignore_ascii_case(BEARER) && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_follows_the_scheme_in_any_case() {
        for (value, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer   abc ", Some("abc")),
            ("BEARER é", Some("é")),
            ("Bearer", None),
            ("Bearer  ", None),
            ("Basic abc", None),
            ("Bearerabc", None),
            ("abc", None),
        ] {
            assert_eq!(bearer(value.as_bytes()), token, "{value}");
        }
        assert_eq!(bearer(b"Bearer \xff"), None);
    }
}
