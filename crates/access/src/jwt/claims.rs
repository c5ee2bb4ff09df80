//! Claims of a token that become scopes and tenants.

use std::collections::BTreeSet;
use std::str::FromStr;

use serde_json::Value;

use crate::grant::Scope;

/// Value of the claim with the tenants that permits all.
const ALL_TENANTS: &str = "*";

/// Name of a claim, or the JSON pointer (RFC 6901) of one inside another, such as `/realm_access/roles`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimName(String);

/// An empty name of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the name of a claim must not be empty; give one, or a JSON pointer such as /realm_access/roles")]
pub struct ClaimNameError;

impl FromStr for ClaimName {
    type Err = ClaimNameError;

    fn from_str(name: &str) -> Result<Self, ClaimNameError> {
        if name.is_empty() { Err(ClaimNameError) } else { Ok(Self(name.to_owned())) }
    }
}

impl ClaimName {
    /// Value of the claim.
    pub(super) fn value<'c>(&self, claims: &'c Value) -> Option<&'c Value> {
        if self.0.starts_with('/') { claims.pointer(&self.0) } else { claims.get(&self.0) }
    }
}

/// Scopes in the value of a claim. Other texts in it are for other services.
pub(super) fn scopes(claim: Option<&Value>) -> BTreeSet<Scope> {
    let names: BTreeSet<&str> = match claim {
        Some(Value::String(names)) => names.split_ascii_whitespace().collect(),
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => BTreeSet::new(),
    };
    Scope::ALL.into_iter().filter(|scope| names.contains(scope.as_str())).collect()
}

/// Tenants in the value of a claim; none for all.
pub(super) fn tenants(claim: Option<&Value>) -> Option<BTreeSet<String>> {
    let names: BTreeSet<String> = match claim {
        Some(Value::String(name)) => [name.clone()].into(),
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => BTreeSet::new(),
    };
    if names.contains(ALL_TENANTS) { None } else { Some(names) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_name_with_a_slash_is_a_pointer() {
        let claims = json!({ "https://example.com/roles": "a", "realm_access": { "roles": ["query"] } });
        let value = |name: &str| name.parse::<ClaimName>().expect("a name").value(&claims).cloned();
        assert_eq!(value("https://example.com/roles"), Some(json!("a")));
        assert_eq!(value("/realm_access/roles"), Some(json!(["query"])));
        assert_eq!(value("realm_access.roles"), None);
        assert_eq!("".parse::<ClaimName>(), Err(ClaimNameError));
    }

    #[test]
    fn scopes_are_words_or_a_list_and_other_values_are_none() {
        let of = |value: Value| scopes(Some(&value)).into_iter().map(Scope::as_str).collect::<Vec<_>>();
        assert_eq!(of(json!("openid query  events profile")), ["query", "events"]);
        assert_eq!(of(json!(["admin", "query", 5, "query events"])), ["query", "admin"]);
        for value in [json!("queries Query"), json!([]), json!({ "query": true }), json!(true), Value::Null] {
            assert!(of(value.clone()).is_empty(), "{value}");
        }
        assert!(scopes(None).is_empty());
    }

    #[test]
    fn a_claim_without_tenants_permits_none() {
        let of = |value: Value| tenants(Some(&value)).map(Vec::from_iter);
        assert_eq!(of(json!("a b")), Some(vec!["a b".to_owned()]), "a name may have a space");
        assert_eq!(of(json!(["b", 5, "a"])), Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(of(json!(["a", "*"])), None);
        for value in [json!([]), json!({ "a": 1 }), json!(5), Value::Null] {
            assert_eq!(of(value.clone()), Some(Vec::new()), "{value}");
        }
        assert_eq!(tenants(None), Some(BTreeSet::new()));
    }
}
