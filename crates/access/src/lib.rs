//! Access control: bearer tokens with scopes and tenants, and limits of tenants.
//!
//! A token file holds the SHA-256 digests of tokens, never the tokens. Each token grants scopes, for some tenants or for
//! all.
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
//! | `grant.rs` | what a token permits, and the reasons for which a request is denied |
//! | `tokens.rs` | the token file's format, and the search for a token |
//! | `limits.rs` | limits of tenants, and the format of their file |
//! | `rates.rs` | what tenants have recently used of their rates |
//! | `config_file.rs` | a file on disk, read again when it changes |
//! | `new_token.rs` | new tokens and their entries |

mod config_file;
mod grant;
mod limits;
mod new_token;
mod rates;
mod tokens;

pub use config_file::{ConfigFile, FileContent, LoadError};
pub use grant::{Denied, Grant, Scope};
pub use limits::{LimitExceeded, Limits, LimitsError, LimitsFile, TENANTS_MAX, TenantLimit, TenantLimits};
pub use new_token::NewToken;
pub use rates::TenantRates;
pub use tokens::{TOKEN_BYTES_MAX, TOKENS_MAX, TokenFile, Tokens, TokensError};
