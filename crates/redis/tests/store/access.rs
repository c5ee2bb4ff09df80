//! Stores with access control and TLS.

use std::path::Path;
use std::process::{Command, Stdio};

use flash_indexer_core::Tier;
use flash_indexer_redis::{Credentials, StoreOptions};
use flash_indexer_test_support::{RedisNode, redis_server, wait_for, watch_until};

use crate::publishing::{path, rank, stored};
use crate::support::{PATIENCE, Replica, options};

/// Rights of the store's user, as `docs/redis.md` lists them.
const RIGHTS: &str = "~{fi:* +eval +evalsha +ping +get +set +del +pexpire +hget +hset +hsetnx +hmget +hdel +hexists \
                      +hgetall +zadd +zscore +zrem +zrangebyscore +time";

#[test]
fn a_user_with_the_documented_rights_suffices_and_a_wrong_password_is_reported() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    let rights = RIGHTS.split_whitespace();
    let command: Vec<&str> = ["ACL", "SETUSER", "indexer", "on", ">s@cret"].into_iter().chain(rights).collect();
    assert_eq!(node.command(&command), "OK");
    assert_eq!(node.command(&["ACL", "SETUSER", "default", "off"]), "OK");
    let url = |who: &str| format!("redis://{who}127.0.0.1:{}", node.port());
    let given = Credentials { user: Some("indexer".into()), password: Some("s@cret".into()), authorities: None };
    let [a, b] = [options(&url("indexer:s%40cret@")), StoreOptions { credentials: given, ..options(&url("")) }];
    let [a, b] = [Replica::start(a), Replica::start(b)];
    let long = path(1, 10);
    a.apply(rank(1), &stored(&long, Tier::Device));
    b.wait_for_depth(&long, rank(1), 10);
    a.unregister(rank(1));
    b.wait_until("the rank is removed", &long, |depths| depths.is_empty());

    let wrong = Replica::start(options(&url("indexer:wrong@")));
    watch_until("a reason", PATIENCE, || {
        let report = wrong.store.report();
        assert!(!report.is_connected && !report.url.contains("wrong"));
        report.last_error.contains("uthentication").then_some(())
    });
}

fn openssl(directory: &Path, arguments: &str) {
    let mut command = Command::new("openssl");
    command.args(arguments.split_whitespace()).current_dir(directory).stdout(Stdio::null()).stderr(Stdio::null());
    assert!(command.status().expect("openssl runs: scripts/prepare installs it").success(), "{arguments}");
}

#[test]
fn an_encrypted_store_is_used_only_with_a_trusted_certificate() {
    let Some(redis) = redis_server() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path();
    let new_key = "-newkey rsa:2048 -nodes -days 2";
    openssl(place, &format!("req -x509 {new_key} -keyout ca.key -out ca.pem -subj /CN=authority"));
    openssl(place, &format!("req {new_key} -keyout node.key -out node.csr -subj /CN=localhost"));
    std::fs::write(place.join("names"), "subjectAltName=DNS:localhost\n").expect("a file");
    openssl(
        place,
        "x509 -req -in node.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out node.pem",
    );
    let file = |name: &str| place.join(name).display().to_string();
    let node = RedisNode::start(&redis, &[]);
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("its address").port();
    for (setting, value) in [
        ("tls-cert-file", file("node.pem")),
        ("tls-key-file", file("node.key")),
        ("tls-ca-cert-file", file("ca.pem")),
        ("tls-auth-clients", "no".to_owned()),
        ("tls-port", port.to_string()),
    ] {
        assert_eq!(node.command(&["CONFIG", "SET", setting, &value]), "OK", "{setting}");
    }
    let authorities = std::fs::read(place.join("ca.pem")).expect("a certificate");
    let trusting = Credentials { authorities: Some(authorities), ..Credentials::default() };
    let url = format!("rediss://localhost:{port}");
    let options = || StoreOptions { credentials: trusting.clone(), ..options(&url) };
    let [a, b] = [Replica::start(options()), Replica::start(options())];
    let long = path(1, 10);
    a.apply(rank(1), &stored(&long, Tier::Device));
    b.wait_for_depth(&long, rank(1), 10);

    let untrusting = Replica::start(crate::support::options(&url));
    wait_for("a reason", PATIENCE, || untrusting.store.report().last_error.contains("certificate").then_some(()));
}
