//! Options of access control.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use flash_indexer_server::PeerToken;

#[derive(Args)]
#[command(next_help_heading = "Access")]
pub(super) struct AccessArguments {
    /// TOML file with the SHA-256 digests of bearer tokens, their scopes and tenants; `flash-indexer token` makes entries.
    /// With it, every HTTP and gRPC request needs a token, but for /health, /ready and /openapi.json. The file is read
    /// again when it changes.
    #[arg(long, env = "FLASH_INDEXER_TOKEN_FILE", value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,

    /// File with the bearer token for requests to --peers. It needs the scopes query and admin there, for all tenants.
    #[arg(long, env = "FLASH_INDEXER_PEER_TOKEN_FILE", value_name = "FILE")]
    peer_token_file: Option<PathBuf>,

    /// Listen on an address that other hosts reach without --token-file. Every host that reaches the port can then query,
    /// register engines and read dumps.
    #[arg(long, env = "FLASH_INDEXER_INSECURE")]
    insecure: bool,
}

impl AccessArguments {
    /// Refuses an address that other hosts reach, unless requests need tokens or the operator permits it.
    pub(super) fn check(&self, host: &str) -> Result<()> {
        if self.token_file.is_some() || self.insecure || is_loopback(host) {
            return Ok(());
        }
        bail!(
            "--host {host} is reached by other hosts, and requests need no token; give --token-file, or --insecure if the \
             network restricts who reaches the port"
        )
    }

    /// The token for requests to peers.
    pub(super) fn peer_token(&self) -> Result<Option<PeerToken>> {
        let Some(path) = &self.peer_token_file else { return Ok(None) };
        let failed = || format!("failed to read --peer-token-file {}", path.display());
        let text = std::fs::read_to_string(path).with_context(failed)?;
        text.parse().map(Some).with_context(failed)
    }
}

/// Whether an address is this host's own. A name may resolve to any address.
fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_addresses_need_no_token() {
        let check = |host, token_file, insecure| {
            AccessArguments { token_file, peer_token_file: None, insecure }.check(host).is_ok()
        };
        for host in ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", "localhost", "LOCALHOST"] {
            assert!(check(host, None, false), "{host}");
        }
        for host in ["0.0.0.0", "::", "10.0.0.1", "localhost.example.com", "indexer", ""] {
            assert!(!check(host, None, false), "{host}");
            assert!(check(host, Some("tokens.toml".into()), false), "{host}");
            assert!(check(host, None, true), "{host}");
        }
    }
}
