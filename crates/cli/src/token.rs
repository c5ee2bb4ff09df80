//! `flash-indexer token`: a new bearer token and its entry for the token file.

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use flash_indexer_access::{FileContent, NewToken, Scope, Tokens};

/// Make a bearer token and its entry for the token file of `serve`.
///
/// The token is printed once, to standard error; the entry, which has only the token's digest, to standard output.
#[derive(Args)]
#[command(after_help = "Examples:
  flash-indexer token router --scope query >> tokens.toml
  flash-indexer token engines --scope events --tenant team-a >> tokens.toml
  flash-indexer token peer --scope query,admin >> tokens.toml

Clients send it in the header `Authorization: Bearer TOKEN`. Commands such as `query` take it from FLASH_INDEXER_TOKEN.")]
pub(crate) struct TokenArguments {
    /// Name of the token, for logs and errors.
    name: String,

    /// What the token permits, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', required = true)]
    scope: Vec<ScopeName>,

    /// Tenants that the token permits, separated by commas [default: all].
    #[arg(long, value_delimiter = ',')]
    tenant: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum ScopeName {
    /// Queries, scores, predictions, explanations, lists of instances; metrics if all tenants are permitted.
    Query,
    /// Registration of engines.
    Events,
    /// Dumps, digests, peers, states of the whole service, and the text of prompts that it keeps.
    Admin,
}

pub(crate) fn run(arguments: &TokenArguments) -> Result<()> {
    let token = NewToken::generate().context("failed to make a token: no random bytes")?;
    let scope = |name: &ScopeName| match name {
        ScopeName::Query => Scope::Query,
        ScopeName::Events => Scope::Events,
        ScopeName::Admin => Scope::Admin,
    };
    let scopes: Vec<Scope> = arguments.scope.iter().map(scope).collect();
    let entry = token.entry(&arguments.name, &scopes, &arguments.tenant);
    Tokens::parse(&entry).context("failed to make a token")?;
    eprintln!("{}", token.secret());
    print!("{entry}");
    Ok(())
}
