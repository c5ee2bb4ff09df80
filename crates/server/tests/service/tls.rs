//! TLS of HTTP, gRPC and peers.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flash_indexer_access::{NewToken, Scope};
use flash_indexer_credentials::ClientCredentials;
use flash_indexer_server::{ClientFiles, KeyPairFiles, ServerOptions, TlsFiles};
use flash_indexer_test_support::{Authority, IssuedFiles, wait_for};
use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::json;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

use crate::support::proto::QueryRequest;
use crate::support::proto::router_service_client::RouterServiceClient;
use crate::support::{BLOCK_TOKENS, Engine, PATIENCE, Service, stored, tokens};

fn pair(issued: &IssuedFiles) -> KeyPairFiles {
    KeyPairFiles { certificate: issued.certificate.clone(), key: issued.key.clone() }
}

fn client(ca: Option<&Authority>, issued: Option<&IssuedFiles>) -> ClientFiles {
    ClientFiles { token: None, ca: ca.map(Authority::file), pair: issued.map(pair) }
}

fn load(files: &ClientFiles) -> ClientCredentials {
    ClientCredentials::load(files).expect("credentials")
}

/// A service with a certificate of this authority, which its tests trust.
fn service(authority: &Authority, options: ServerOptions) -> Service {
    let tls = Some(TlsFiles { pair: pair(&authority.issue("server")), client_ca: None });
    Service::start_as(ServerOptions { tls, ..options }, &load(&client(Some(authority), None)))
}

fn failures(service: &Service, reason: &str) -> f64 {
    let metrics = service.metrics();
    let family = metrics.family("flash_indexer_tls_handshake_failures");
    family.map_or(0.0, |_| metrics.value("flash_indexer_tls_handshake_failures_total", &[("reason", reason)]))
}

fn wait_for_failures(service: &Service, reason: &str, count: f64) {
    wait_for(reason, PATIENCE, || (failures(service, reason) >= count).then_some(()));
}

fn config(authority: &Path, alpn: &[u8]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(authority).expect("a file") {
        roots.add(certificate.expect("a certificate")).expect("an authority");
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().expect("versions");
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    Arc::new(config)
}

fn address(service: &Service) -> String {
    service.url("").trim_start_matches("https://").to_owned()
}

/// A connection that a test reads and writes itself.
struct Held(StreamOwned<ClientConnection, TcpStream>);

impl Held {
    fn open(service: &Service, authority: &Path) -> Self {
        let stream = TcpStream::connect(address(service)).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        let name = ServerName::try_from("localhost").expect("a name");
        let connection = ClientConnection::new(config(authority, b"http/1.1"), name).expect("a configuration");
        Self(StreamOwned::new(connection, stream))
    }

    /// The status line of the answer to a request, whose body is read as well.
    fn health(&mut self) -> String {
        self.0.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").expect("sent");
        let mut answer = Vec::new();
        while !answer.ends_with(b"}") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).expect("an answer");
            answer.push(byte[0]);
        }
        String::from_utf8(answer).expect("text").lines().next().expect("a line").to_owned()
    }

    fn certificate(&self) -> Vec<u8> {
        self.0.conn.peer_certificates().expect("a handshake")[0].to_vec()
    }
}

#[test]
fn a_service_with_a_certificate_answers_inside_tls_only() {
    let (authority, other) = (Authority::new(), Authority::new());
    let service = service(&authority, ServerOptions::default());
    assert_eq!(service.get("/health").0, 200);
    assert_eq!(service.post("/query", &json!({ "model_name": "m", "token_ids": [1] })).0, 404);

    let mut plain = TcpStream::connect(address(&service)).expect("a connection");
    plain.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    plain.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").expect("sent");
    let mut answer = Vec::new();
    // The service may reset the connection.
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/"), "{answer:?}");
    wait_for_failures(&service, "not_tls", 1.0);

    for untrusting in [client(Some(&other), None), ClientFiles::default()] {
        let error = service.get_as(&load(&untrusting), "/health").expect_err("the certificate is not trusted");
        let remedy = flash_indexer_credentials::tls_remedy(&error).unwrap_or_else(|| panic!("{error:?}"));
        assert!(remedy.contains("authority of the server's certificate"), "{remedy}");
    }
    // A client may close the connection before its alert is read.
    let refused = || failures(&service, "refused_by_client") + failures(&service, "closed");
    wait_for("both refusals", PATIENCE, || (refused() >= 2.0).then_some(()));
}

#[test]
fn a_service_with_client_authorities_requires_a_certificate_and_then_a_token() {
    let (authority, other) = (Authority::new(), Authority::new());
    let token = NewToken::generate().expect("random bytes");
    let token_file = authority.path("tokens.toml");
    std::fs::write(&token_file, token.entry("router", &[Scope::Query], &[])).expect("a file");
    let tls = Some(TlsFiles { pair: pair(&authority.issue("server")), client_ca: Some(authority.file()) });
    let known = load(&client(Some(&authority), Some(&authority.issue("client"))));
    let with_token = known.clone().with_token(token.secret().parse().expect("a token"));

    let service = Service::start_as(ServerOptions { tls: tls.clone(), ..ServerOptions::default() }, &known);
    assert_eq!(service.get("/peers").0, 200, "without a token file, a connection permits everything");
    let refused = |files: &ClientFiles| service.get_as(&load(files), "/health").expect_err("it is refused");
    refused(&client(Some(&authority), None));
    wait_for_failures(&service, "no_client_certificate", 1.0);
    refused(&client(Some(&authority), Some(&other.issue("client"))));
    wait_for_failures(&service, "client_certificate", 1.0);

    let options = ServerOptions { tls, token_file: Some(token_file), ..ServerOptions::default() };
    let service = Service::start_as(options, &with_token);
    assert_eq!(service.get_as(&known, "/workers").expect("an answer").0, 401, "a certificate grants no scope");
    assert_eq!(service.get("/workers").0, 200);
    assert_eq!(service.get("/peers").0, 403, "the token has the scope query");
}

#[test]
fn new_certificates_are_used_while_old_connections_live() {
    let (authority, successor) = (Authority::new(), Authority::new());
    let files = authority.issue("server");
    let trusted = authority.path("both.crt");
    let both = [&authority, &successor].map(|authority| std::fs::read_to_string(authority.file()).expect("a file"));
    std::fs::write(&trusted, both.concat()).expect("a file");
    let tls = Some(TlsFiles { pair: pair(&files), client_ca: None });
    let credentials = load(&ClientFiles { ca: Some(trusted.clone()), ..ClientFiles::default() });
    let service = Service::start_as(ServerOptions { tls, ..ServerOptions::default() }, &credentials);
    let shown = || {
        let mut held = Held::open(&service, &trusted);
        assert_eq!(held.health(), "HTTP/1.1 200 OK");
        held
    };
    let mut old = shown();
    let first = old.certificate();

    successor.issue_to(&files);
    let second = wait_for("the new certificate", PATIENCE, || Some(shown().certificate()).filter(|now| *now != first));
    assert_eq!(old.health(), "HTTP/1.1 200 OK", "the old connection lives");

    let failed = || service.metrics().value("flash_indexer_reload_failures_total", &[("file", "certificates")]);
    let before = failed();
    std::fs::write(&files.key, "nonsense").expect("a file");
    wait_for("a failed read", PATIENCE, || (failed() > before).then_some(()));
    assert_eq!(shown().certificate(), second, "the previous certificate stays in force");
    assert_eq!(old.health(), "HTTP/1.1 200 OK");
}

#[test]
fn unfinished_handshakes_delay_no_other_client() {
    const CONNECTIONS_MAX: usize = 6;
    let authority = Authority::new();
    let service = service(&authority, ServerOptions { connections_max: CONNECTIONS_MAX, ..ServerOptions::default() });
    // No bytes, the head of a record, and the first bytes of a client's greeting.
    let unfinished: [&[u8]; 3] =
        [b"", b"\x16\x03\x01\x02\x00", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x55\x55"];
    let mut held = Vec::new();
    for bytes in unfinished {
        for _ in 0..2 * CONNECTIONS_MAX {
            let mut stream = TcpStream::connect(address(&service)).expect("a connection");
            stream.write_all(bytes).expect("sent");
            held.push(stream);
        }
        assert_eq!(Held::open(&service, &authority.file()).health(), "HTTP/1.1 200 OK", "beside {bytes:?}");
    }
    wait_for_failures(&service, "evicted", 1.0);
    let limits = service.metrics().value("flash_indexer_limit_reached_total", &[("limit", "connections")]);
    assert!(limits >= (3 * CONNECTIONS_MAX) as f64, "{limits}");
}

/// A connection for gRPC inside TLS.
fn channel(service: &Service, authority: &Path) -> Result<Channel, tonic::transport::Error> {
    let (address, connector) = (service.grpc_address(), TlsConnector::from(config(authority, b"h2")));
    let connector = tower::service_fn(move |_: tonic::transport::Uri| {
        let connector = connector.clone();
        async move {
            let stream = tokio::net::TcpStream::connect(address).await?;
            let name = ServerName::try_from("localhost").expect("a name");
            Ok::<_, io::Error>(TokioIo::new(connector.connect(name, stream).await?))
        }
    });
    service.block_on(Endpoint::from_static("http://localhost").timeout(PATIENCE).connect_with_connector(connector))
}

#[test]
fn grpc_is_served_inside_tls_only() {
    let (authority, other) = (Authority::new(), Authority::new());
    let service = service(&authority, ServerOptions { grpc_port: Some(0), ..ServerOptions::default() });
    let engine = Engine::registered(&service, json!("one"), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1, 2])]);
    let mut client = RouterServiceClient::new(channel(&service, &authority.file()).expect("a connection"));
    let request = QueryRequest { model_name: "m".to_owned(), token_ids: tokens(&[1, 2]), ..QueryRequest::default() };
    let answer = service.block_on(client.query(request.clone())).expect("an answer").into_inner();
    assert_eq!(answer.ranks.len(), 1);

    assert!(channel(&service, &other.file()).is_err(), "the certificate is not trusted");
    wait_for_failures(&service, "refused_by_client", 1.0);
    let plain = Endpoint::from_shared(format!("http://{}", service.grpc_address())).expect("an address");
    let answer = service.block_on(async {
        let channel = plain.timeout(PATIENCE).connect().await.map_err(|error| error.to_string())?;
        RouterServiceClient::new(channel).query(request).await.map_err(|status| status.to_string())
    });
    answer.expect_err("plain gRPC is refused");
    wait_for_failures(&service, "not_tls", 1.0);
}

#[test]
fn replicas_recover_and_compare_over_mutual_tls() {
    let authority = Authority::new();
    let tls = Some(TlsFiles { pair: pair(&authority.issue("server")), client_ca: Some(authority.file()) });
    let files = client(Some(&authority), Some(&authority.issue("replica")));
    let service = Service::start_as(ServerOptions { tls, ..ServerOptions::default() }, &load(&files));
    let engine = Engine::registered(&service, json!("one"), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1, 2])]);

    let replica = |peer_credentials: &ClientFiles| {
        Service::recovered(ServerOptions {
            peers: vec![service.url("").parse().expect("a URL")],
            peer_credentials: peer_credentials.clone(),
            peer_check_interval: Some(Duration::from_millis(20)),
            ..ServerOptions::default()
        })
    };
    let checks = |replica: &Service, outcome: &str| {
        replica.metrics().value("flash_indexer_peer_checks_total", &[("outcome", outcome)])
    };
    let recovered = replica(&files);
    assert_eq!(recovered.score(&tokens(&[1, 2]), "one", 0), u64::from(2 * BLOCK_TOKENS));
    engine.say_to_both((&service, &recovered), 1, &[stored(Some(2), &[3])]);
    wait_for("a comparison", PATIENCE, || (checks(&recovered, "equal") >= 1.0).then_some(()));

    // A replica with the certificate of another authority is refused, until its files are replaced.
    let other = Authority::new();
    let replaced = other.issue("replica");
    let (certificate, key) = (authority.path("late.crt"), authority.path("late.key"));
    std::fs::copy(&replaced.certificate, &certificate).expect("a copy");
    std::fs::copy(&replaced.key, &key).expect("a copy");
    let late = IssuedFiles { certificate, key };
    let empty = replica(&ClientFiles { pair: Some(pair(&late)), ..files });
    assert_eq!(empty.get("/workers").1, json!([]), "the peer refuses the connection");
    wait_for("a failed comparison", PATIENCE, || (checks(&empty, "unreachable") >= 1.0).then_some(()));
    let registration = json!({
        "instance_id": "one", "endpoint": engine.publisher.endpoint(), "model_name": "m", "block_size": BLOCK_TOKENS,
    });
    assert_eq!(empty.post("/register", &registration).0, 201);
    authority.issue_to(&late);
    wait_for("a comparison with the new certificate", PATIENCE, || {
        let compared = ["equal", "not_compared", "worse", "dispute", "drift", "other_epoch"];
        (compared.iter().map(|outcome| checks(&empty, outcome)).sum::<f64>() >= 1.0).then_some(())
    });
}

#[test]
fn a_server_without_usable_certificates_does_not_start() {
    let authority = Authority::new();
    let (first, second) = (authority.issue("first"), authority.issue("second"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let error = |tls: TlsFiles| {
        let options = ServerOptions { port: 0, tls: Some(tls), ..ServerOptions::default() };
        runtime.block_on(flash_indexer_server::Server::start(options)).expect_err("it cannot start").to_string()
    };
    let mixed = KeyPairFiles { certificate: first.certificate.clone(), key: second.key };
    let mixed = error(TlsFiles { pair: mixed, client_ca: None });
    assert!(mixed.contains("give the private key of the first certificate in"), "{mixed}");
    let missing = error(TlsFiles { pair: pair(&first), client_ca: Some(authority.path("none")) });
    assert!(missing.contains("failed to load the certificate authorities"), "{missing}");
    let swapped = KeyPairFiles { certificate: first.key.clone(), key: first.certificate };
    let swapped = error(TlsFiles { pair: swapped, client_ca: None });
    assert!(swapped.contains("it has no certificate; write certificates in PEM"), "{swapped}");
}
