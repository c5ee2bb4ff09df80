//! Limits of tenants, and the file that lists them.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::str::FromStr;

use flash_indexer_types::names::{NameError, NameField, check_name};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::config_file::{ConfigFile, FileContent};
use crate::toml_error::TomlError;

/// Limit of the tenants in a file.
pub const TENANTS_MAX: usize = 4_096;

/// Seconds after which a client may retry after reaching a limit that does not recover with time.
const QUOTA_RETRY_S: u32 = 60;

/// The limits of a file on disk.
pub type LimitsFile = ConfigFile<Limits>;

/// Limits of each tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    default: Option<TenantLimits>,
    #[serde(default)]
    tenants: BTreeMap<String, TenantLimits>,
}

/// Limits of one tenant. A field without a value has no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantLimits {
    /// Blocks that the tenant's ranks hold together.
    #[serde(default, deserialize_with = "at_least_one")]
    pub held_blocks: Option<NonZeroU64>,
    /// Bytes of the indexes of the tenant's models.
    #[serde(default, deserialize_with = "at_least_one")]
    pub index_bytes: Option<NonZeroU64>,
    /// Registered ranks.
    #[serde(default, deserialize_with = "at_least_one")]
    pub ranks: Option<NonZeroU64>,
    /// Queries, scores, predictions and explanations a second.
    #[serde(default, deserialize_with = "at_least_one")]
    pub queries_per_second: Option<NonZeroU32>,
    /// Tokens of their prompts a second.
    #[serde(default, deserialize_with = "at_least_one")]
    pub prompt_tokens_per_second: Option<NonZeroU32>,
}

/// Reads a number, with an error in the words of the file's authors.
fn at_least_one<'de, D: Deserializer<'de>, T: FromStr>(deserializer: D) -> Result<Option<T>, D::Error> {
    let given = toml::Value::deserialize(deserializer)?;
    let number = given.as_integer().and_then(|number| number.to_string().parse().ok());
    number
        .map(Some)
        .ok_or_else(|| D::Error::custom("expected a whole number of at least 1; leave the field out for no limit"))
}

/// Kind of a tenant's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TenantLimit {
    /// Blocks held.
    HeldBlocks,
    /// Registered ranks.
    Ranks,
    /// Queries a second.
    Queries,
    /// Prompt tokens a second.
    PromptTokens,
}

impl TenantLimit {
    const fn unit(self) -> &'static str {
        match self {
            Self::HeldBlocks => "held blocks",
            Self::Ranks => "ranks",
            Self::Queries => "queries a second",
            Self::PromptTokens => "prompt tokens a second",
        }
    }

    const fn remedy(self) -> &'static str {
        match self {
            Self::HeldBlocks => "raise `held_blocks` of the tenant",
            Self::Ranks => "unregister some, or raise `ranks` of the tenant",
            Self::Queries => "send fewer, or raise `queries_per_second` of the tenant",
            Self::PromptTokens => "send fewer, or raise `prompt_tokens_per_second` of the tenant",
        }
    }
}

/// A request beyond a tenant's limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "tenant {tenant:?} has reached its limit of {max} {}; retry after {retry_after_s} s; {} in the limits file",
    .limit.unit(), .limit.remedy()
)]
pub struct LimitExceeded {
    /// The tenant.
    pub tenant: String,
    /// The limit.
    pub limit: TenantLimit,
    /// Its value.
    pub max: u64,
    /// Seconds until the request may succeed.
    pub retry_after_s: u32,
}

impl LimitExceeded {
    /// The refusal of a rank.
    #[must_use]
    pub fn ranks(tenant: &str, max: u64) -> Self {
        Self { tenant: tenant.to_owned(), limit: TenantLimit::Ranks, max, retry_after_s: QUOTA_RETRY_S }
    }
}

/// Invalid limits file.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum LimitsError {
    #[error("the file has no limits: it may be half written; list some, or write [default] alone for none")]
    Empty,
    #[error("invalid file: {0}; docs/operations.md describes its format")]
    Format(#[from] TomlError),
    #[error("the file has {count} tenants; at most {TENANTS_MAX} are allowed: limit the others by [default]")]
    TooMany { count: usize },
    #[error("[tenants.{name:?}]: {source}")]
    Tenant { name: String, source: NameError },
}

impl FileContent for Limits {
    const NAME: &'static str = "limits file";
    const REMEDY: &'static str = "create it, or make it readable";
    type Error = LimitsError;

    fn parse(text: &str) -> Result<Self, LimitsError> {
        let limits: Self = toml::from_str(text).map_err(|error| TomlError::of(text, &error))?;
        if limits.default.is_none() && limits.tenants.is_empty() {
            return Err(LimitsError::Empty);
        }
        if limits.tenants.len() > TENANTS_MAX {
            return Err(LimitsError::TooMany { count: limits.tenants.len() });
        }
        for name in limits.tenants.keys() {
            check_name(NameField::TenantId, name)
                .map_err(|source| LimitsError::Tenant { name: name.clone(), source })?;
        }
        Ok(limits)
    }
}

impl Limits {
    /// Limits of a tenant: those of its entry, and the defaults for omitted fields.
    #[must_use]
    pub fn of(&self, tenant: &str) -> TenantLimits {
        let Self { default, tenants } = self;
        let (own, default) = (tenants.get(tenant).copied().unwrap_or_default(), default.unwrap_or_default());
        TenantLimits {
            held_blocks: own.held_blocks.or(default.held_blocks),
            index_bytes: own.index_bytes.or(default.index_bytes),
            ranks: own.ranks.or(default.ranks),
            queries_per_second: own.queries_per_second.or(default.queries_per_second),
            prompt_tokens_per_second: own.prompt_tokens_per_second.or(default.prompt_tokens_per_second),
        }
    }
}

impl LimitsFile {
    /// Limits of a tenant, as of the last read of the file.
    #[must_use]
    pub fn of(&self, tenant: &str) -> TenantLimits {
        self.content().of(tenant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_replaces_the_defaults_that_it_names() {
        let text = "[default]\nranks = 4\nqueries_per_second = 10\n\n[tenants.a]\nranks = 9\nheld_blocks = 7\n";
        let limits = Limits::parse(text).expect("limits");
        let (a, other) = (limits.of("a"), limits.of("b"));
        assert_eq!((a.ranks, a.queries_per_second), (NonZeroU64::new(9), NonZeroU32::new(10)));
        assert_eq!((a.held_blocks, a.prompt_tokens_per_second), (NonZeroU64::new(7), None));
        assert_eq!((other.ranks, other.held_blocks), (NonZeroU64::new(4), None));
        assert_eq!(Limits::parse("[default]").expect("no limits").of("a"), TenantLimits::default());
        for half_written in ["", "# [default]\n"] {
            let error = Limits::parse(half_written).expect_err("it has no limits");
            assert!(error.to_string().contains("half written"), "{error}");
        }
    }

    #[test]
    fn an_error_names_the_line_and_the_cause_without_text_of_the_file() {
        for (text, parts) in [
            ("[default]\nranks = 4\nSECRET = 5\n", ["line 3: unknown field", "`ranks`"]),
            ("[default]\nqueries_per_second = 0 # SECRET\n", ["line 2: ", "at least 1"]),
            ("[default]\nranks = -1 # SECRET\n", ["line 2: ", "at least 1"]),
            ("[tenants.a]\nranks = \"SECRET\"\n", ["line 2: ", "at least 1"]),
            ("\n[SECRET.a]\nranks = 1\n", ["line 2: unknown field", "`default` or `tenants`"]),
            ("[tenants.SECRET]\n[tenants.SECRET]\n", ["line 2: ", "duplicate key"]),
            ("[SECRET\n", ["line 1: ", "invalid table header"]),
        ] {
            let error = Limits::parse(text).expect_err(text).to_string();
            for part in parts {
                assert!(error.contains(part), "{text}: {part} is missing: {error}");
            }
            assert!(!error.contains("SECRET"), "{text}: {error}");
        }
        let long = format!("[tenants.{}]\nranks = 1\n", "a".repeat(10_000));
        assert!(matches!(Limits::parse(&long), Err(LimitsError::Tenant { .. })));
    }
}
