//! Access control: bearer tokens with scopes and tenants, and limits of tenants.
//!
//! A token file holds the SHA-256 digests of tokens, never the tokens. Each token grants scopes, for some tenants or for
//! all. JSON web tokens are verified with the keys of their issuer, and their claims become grants.
//!
//! ```
//! use flash_indexer_access::{FileContent, NewToken, Scope, Tokens};
//!
//! let token = NewToken::generate()?;
//! let file = token.entry("router-eu", &[Scope::Query], &["default".to_owned()]);
//! let tokens = Tokens::parse(&file)?;
//! let grant = tokens.grant(token.secret())?;
//! assert!(grant.check(Scope::Query).is_ok() && grant.check_tenant("default").is_ok());
//! assert!(grant.check(Scope::Admin).is_err() && grant.check_tenant("other").is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | file | role |
//! |---|---|
//! | `grant.rs` | permissions of a token, and the reasons why a request is denied |
//! | `tokens.rs` | the token file's format, and the search for a token |
//! | `jwt/` | verification of JSON web tokens, the issuer's keys, and the claims that become scopes and tenants |
//! | `jwt_error.rs` | the reasons why a JSON web token is refused |
//! | `verifier.rs` | the search for a token in the file and among those of the issuer |
//! | `limits.rs` | limits of tenants, and the format of their file |
//! | `tenant_state.rs` | what remains of a tenant's limits, shared by its models |
//! | `rates.rs` | recent use of tenants' rates |
//! | `config_file.rs` | a file on disk, read again when it changes |
//! | `toml_error.rs` | errors of TOML files, without text of the file |
//! | `new_token.rs` | new tokens and their entries |

mod config_file;
mod grant;
mod jwt;
mod jwt_error;
mod limits;
mod new_token;
mod rates;
mod tenant_state;
mod tokens;
mod toml_error;
mod verifier;

pub use config_file::{ConfigFile, FileContent, LoadError};
pub use grant::{AccessError, Grant, GrantOrigin, Scope};
pub use jwt::{
    ClaimName, ClaimNameError, JWT_KEYS_MAX, JwtAlgorithm, JwtAlgorithmError, JwtKeyFile, JwtKeys, JwtKeysError,
    JwtOptions, JwtVerifier,
};
pub use jwt_error::{JWT_BYTES_MAX, JWT_LEEWAY_S, JwtError};
pub use limits::{LimitExceeded, Limits, LimitsError, LimitsFile, TENANTS_MAX, TenantLimit, TenantLimits};
pub use new_token::NewToken;
pub use rates::TenantRates;
pub use tenant_state::{TenantState, TenantStates};
pub use tokens::{TOKEN_BYTES_MAX, TOKENS_MAX, TokenFile, Tokens, TokensError};
pub use toml_error::TomlError;
pub use verifier::BearerVerifier;
