//! Options of access control and TLS.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use flash_indexer_access::{ClaimName, JwtAlgorithm, JwtOptions};
use flash_indexer_curve::{Curve, CurveFiles};
use flash_indexer_server::{ClientFiles, KeyPairFiles, TlsFiles};

#[derive(Args)]
#[command(next_help_heading = "Access")]
#[cfg_attr(test, derive(Default))]
pub(super) struct AccessArguments {
    /// TOML file with the SHA-256 digests of bearer tokens, their scopes and tenants; `flash-indexer token` makes entries.
    /// With it, every HTTP and gRPC request needs a token, except /health, /ready, /openapi.json and /ui. The file is read
    /// again when it changes.
    #[arg(long, env = "FLASH_INDEXER_TOKEN_FILE", value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,

    /// JSON file with the keys (JWKS) of an issuer of JWTs. With it, a bearer token may be a JWT of the issuer, and every HTTP
    /// and gRPC request needs a token, as with --token-file. The file is read again when it changes.
    #[arg(long, env = "FLASH_INDEXER_JWT_KEYS", value_name = "FILE", requires_all = ["jwt_issuer", "jwt_audience"])]
    jwt_keys: Option<PathBuf>,

    /// Issuer of JWTs: the value of their claim iss.
    #[arg(
        long,
        env = "FLASH_INDEXER_JWT_ISSUER",
        value_name = "ISSUER",
        requires = "jwt_keys",
        value_parser = NonEmptyStringValueParser::new()
    )]
    jwt_issuer: Option<String>,

    /// Audience of JWTs: the value of their claim aud, or one of its values.
    #[arg(
        long,
        env = "FLASH_INDEXER_JWT_AUDIENCE",
        value_name = "AUDIENCE",
        requires = "jwt_keys",
        value_parser = NonEmptyStringValueParser::new()
    )]
    jwt_audience: Option<String>,

    /// Allowed algorithms of JWTs.
    #[arg(
        long,
        env = "FLASH_INDEXER_JWT_ALGORITHMS",
        value_name = "ALGORITHMS",
        value_delimiter = ',',
        default_value = "RS256,ES256,EdDSA"
    )]
    jwt_algorithms: Vec<JwtAlgorithm>,

    /// Claim of JWTs with the scopes query, events and admin, as words of a text or as a list; other values in it have no effect.
    /// A name that begins with / is a JSON pointer, such as /realm_access/roles.
    #[arg(long, env = "FLASH_INDEXER_JWT_SCOPES_CLAIM", value_name = "CLAIM", default_value = "scope")]
    jwt_scopes_claim: Option<ClaimName>,

    /// Claim of JWTs with the tenants, as a text or a list; * permits all, and a JWT without the claim none. Without this option,
    /// each JWT permits all tenants.
    #[arg(long, env = "FLASH_INDEXER_JWT_TENANTS_CLAIM", value_name = "CLAIM", requires = "jwt_keys")]
    jwt_tenants_claim: Option<ClaimName>,

    /// TOML file with limits of tenants: held_blocks, index_bytes, ranks, queries_per_second and prompt_tokens_per_second, under [default]
    /// and [tenants.NAME]. A request beyond a limit is answered with 429. The file is read again when it changes.
    #[arg(long = "limits", env = "FLASH_INDEXER_LIMITS", value_name = "FILE")]
    pub(super) limits_file: Option<PathBuf>,

    /// File with the certificate chain of HTTP and gRPC, in PEM, the service's own certificate first. With it, both are
    /// served inside TLS only. This file and those of the next two options are read again when they change.
    #[arg(long, env = "FLASH_INDEXER_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// File with the private key of --tls-cert, in PEM, without a passphrase.
    #[arg(long, env = "FLASH_INDEXER_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// File with the CA certificates, in PEM, that verify client certificates. With it, a client needs a certificate of one
    /// of these CAs to connect, also for /health. What a connected client may do depends on its token alone.
    #[arg(long, env = "FLASH_INDEXER_TLS_CLIENT_CA", value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,

    /// File with the bearer token for requests to --peers. It needs the scopes query and admin there, for all tenants.
    /// This file and those of the next three options are read again before each comparison with the peers.
    #[arg(long, env = "FLASH_INDEXER_PEER_TOKEN_FILE", value_name = "FILE")]
    peer_token_file: Option<PathBuf>,

    /// File with the CA certificates, in PEM, that verify the certificates of https:// peers [default: public CAs].
    #[arg(long, env = "FLASH_INDEXER_PEER_CA", value_name = "FILE")]
    peer_ca: Option<PathBuf>,

    /// File with the certificate chain, in PEM, that this replica presents to its peers.
    #[arg(long, env = "FLASH_INDEXER_PEER_CERT", value_name = "FILE", requires = "peer_key")]
    peer_cert: Option<PathBuf>,

    /// File with the private key of --peer-cert, in PEM.
    #[arg(long, env = "FLASH_INDEXER_PEER_KEY", value_name = "FILE", requires = "peer_cert")]
    peer_key: Option<PathBuf>,

    /// File with the service's CURVE key pair, which encrypts and authenticates ZeroMQ; `flash-indexer curve-key` makes one.
    /// This file and those of the next two options are read again at each connection; only the bound socket keeps its key.
    #[arg(long, env = "FLASH_INDEXER_CURVE_KEY", value_name = "FILE")]
    curve_key: Option<PathBuf>,

    /// File with the public keys of engines that the service connects to: lines KEY HOST, KEY HOST:PORT, KEY ipc://PATH, or
    /// KEY * for all others. With a key, an engine is connected to with CURVE alone, also for replays.
    #[arg(long, env = "FLASH_INDEXER_CURVE_SERVER_KEYS", value_name = "FILE", requires = "curve_key")]
    curve_server_keys: Option<PathBuf>,

    /// File with the public keys of engines that may connect to --listen-events, one on each line. With it, no other engine
    /// can.
    #[arg(long, env = "FLASH_INDEXER_CURVE_CLIENTS", value_name = "FILE", requires_all = ["curve_key", "listen_events"])]
    curve_clients: Option<PathBuf>,

    /// Listen on an address that other hosts reach without --token-file, --jwt-keys and --tls-client-ca: every host that
    /// reaches the port can then query, register engines and read dumps. Also --listen-events without --curve-clients: every
    /// host can then add and clear blocks there. Configured credentials stay in force.
    #[arg(long, env = "FLASH_INDEXER_INSECURE")]
    insecure: bool,
}

impl AccessArguments {
    /// Refuses an address that other hosts reach, unless clients need credentials or the operator permits it.
    pub(super) fn check(&self, option: &str, host: &str) -> Result<()> {
        let needs_token = self.token_file.is_some() || self.jwt_keys.is_some();
        let needs_credentials = needs_token || self.tls_client_ca.is_some();
        ensure!(
            needs_credentials || self.insecure || is_loopback(host),
            "{option} {host} is reached by other hosts, and clients need no credentials; give --token-file, --jwt-keys, --tls-client-ca, or \
             --insecure if the network restricts who reaches the port"
        );
        Ok(())
    }

    /// Refuses an address for engines that other hosts reach, unless engines need keys or the operator permits it.
    pub(super) fn check_events(&self, endpoints: &[String]) -> Result<()> {
        let is_open = |endpoint: &&String| host_of(endpoint).is_some_and(|host| !is_loopback(host));
        match endpoints.iter().find(is_open) {
            Some(endpoint) if self.curve_clients.is_none() && !self.insecure => bail!(
                "--listen-events {endpoint} is reached by other hosts, and engines need no key there; give --curve-clients, or --insecure if \
                 the network restricts who reaches the port"
            ),
            _ => Ok(()),
        }
    }

    /// CURVE keys, if CURVE is used. An open port for engines despite keys would be an oversight.
    pub(super) fn curve(&self, listens_for_engines: bool) -> Result<Option<Arc<Curve>>> {
        let Some(key) = self.curve_key.clone() else { return Ok(None) };
        match (&self.curve_server_keys, &self.curve_clients) {
            (_, None) if listens_for_engines => {
                bail!(
                    "--listen-events with --curve-key admits every engine; give --curve-clients, the list of their keys"
                )
            }
            (None, None) => bail!("--curve-key has no effect alone; give --curve-server-keys or --curve-clients"),
            _ => {}
        }
        let (servers, clients) = (self.curve_server_keys.clone(), self.curve_clients.clone());
        Ok(Some(Arc::new(Curve::load(&CurveFiles { key, servers, clients })?)))
    }

    /// The key set of JWTs and their required claims, if JWTs are used.
    pub(super) fn jwt(&self) -> Option<(PathBuf, JwtOptions)> {
        let keys = self.jwt_keys.clone()?;
        let options = JwtOptions {
            issuer: self.jwt_issuer.clone().expect("--jwt-keys requires it"),
            audience: self.jwt_audience.clone().expect("--jwt-keys requires it"),
            algorithms: self.jwt_algorithms.clone(),
            scopes_claim: self.jwt_scopes_claim.clone().expect("it has a default"),
            tenants_claim: self.jwt_tenants_claim.clone(),
        };
        Some((keys, options))
    }

    /// Files of the listeners' TLS, if it is used.
    pub(super) fn tls(&self) -> Option<TlsFiles> {
        let pair = key_pair(self.tls_cert.as_ref(), self.tls_key.as_ref())?;
        Some(TlsFiles { pair, client_ca: self.tls_client_ca.clone() })
    }

    /// Files of the credentials for requests to peers.
    pub(super) fn peer_credentials(&self) -> ClientFiles {
        ClientFiles {
            token: self.peer_token_file.clone(),
            ca: self.peer_ca.clone(),
            pair: key_pair(self.peer_cert.as_ref(), self.peer_key.as_ref()),
        }
    }
}

fn key_pair(certificate: Option<&PathBuf>, key: Option<&PathBuf>) -> Option<KeyPairFiles> {
    let (certificate, key) = certificate.cloned().zip(key.cloned())?;
    Some(KeyPairFiles { certificate, key })
}

/// Host of an address that ZeroMQ binds; none for a socket file.
fn host_of(endpoint: &str) -> Option<&str> {
    let (host, _port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
    Some(host.trim_start_matches('[').trim_end_matches(']'))
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
    fn only_loopback_addresses_need_no_credentials() {
        let check = |host, token_file, insecure| {
            AccessArguments { token_file, insecure, ..AccessArguments::default() }.check("--host", host).is_ok()
        };
        for host in ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", "localhost", "LOCALHOST"] {
            assert!(check(host, None, false), "{host}");
        }
        for host in ["0.0.0.0", "::", "10.0.0.1", "localhost.example.com", "indexer", ""] {
            assert!(!check(host, None, false), "{host}");
            assert!(check(host, Some("tokens.toml".into()), false), "{host}");
            assert!(check(host, None, true), "{host}");
            let mutual = AccessArguments { tls_client_ca: Some("ca.pem".into()), ..AccessArguments::default() };
            assert!(mutual.check("--host", host).is_ok(), "{host}");
            let issuer = AccessArguments { jwt_keys: Some("jwks.json".into()), ..AccessArguments::default() };
            assert!(issuer.check("--host", host).is_ok(), "{host}");
        }
    }

    #[test]
    fn only_loopback_addresses_for_engines_need_no_keys() {
        let check = |access: AccessArguments, endpoint: &str| {
            access.check_events(&["tcp://127.0.0.1:5557".to_owned(), endpoint.to_owned()]).is_ok()
        };
        for endpoint in ["tcp://127.0.0.1:5557", "tcp://[::1]:*", "tcp://localhost:5557", "ipc:///run/events"] {
            assert!(check(AccessArguments::default(), endpoint), "{endpoint}");
        }
        for endpoint in ["tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://[::]:5557", "tcp://10.0.0.1:*", "tcp://eth0:5557"]
        {
            let tokens = AccessArguments { token_file: Some("tokens.toml".into()), ..AccessArguments::default() };
            assert!(!check(tokens, endpoint), "{endpoint}: a token admits no engine");
            let keys = AccessArguments { curve_clients: Some("clients".into()), ..AccessArguments::default() };
            assert!(check(keys, endpoint), "{endpoint}");
            assert!(check(AccessArguments { insecure: true, ..AccessArguments::default() }, endpoint), "{endpoint}");
        }
    }
}
