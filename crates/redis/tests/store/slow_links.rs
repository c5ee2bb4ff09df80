//! Status of the ranks of a replica with a slow connection to the store.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use flash_indexer_core::Tier;
use flash_indexer_redis::StoreOptions;
use flash_indexer_test_support::{RedisNode, redis_server, wait_for, watch_until};

use crate::publishing::{path, rank, stored};
use crate::support::{PATIENCE, Replica, device_depth, holder, options, single_url};

/// Latency of the slow connection, in each direction.
const LATENCY: Duration = Duration::from_millis(300);

/// Starts a proxy of a server that delays all bytes; returns its port. Its threads end with the process.
fn slow_proxy(node: &RedisNode) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let (port, server) = (listener.local_addr().expect("its address").port(), node.port());
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)) else { continue };
            let [from_client, from_server] = [&client, &server].map(|stream| stream.try_clone().expect("a handle"));
            thread::spawn(move || delay(from_client, server));
            thread::spawn(move || delay(from_server, client));
        }
    });
    port
}

fn delay(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        thread::sleep(LATENCY);
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    // The other side may have closed it already.
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn the_status_of_a_rank_ends_before_its_entries_whatever_the_latency() {
    let Some(redis) = redis_server() else { return };
    let node = RedisNode::start(&redis, &[]);
    let time_to_live = Duration::from_secs(4);
    let slow_url = format!("redis://127.0.0.1:{}", slow_proxy(&node));
    let a = Replica::start(StoreOptions { time_to_live, ..options(&slow_url) });
    let b = Replica::start(options(&single_url(&node)));
    let long = path(1, 10);
    a.apply(rank(1), &stored(&long, Tier::Device));
    wait_for("the status", PATIENCE, || {
        b.store.directory().get(holder(rank(1))).is_some_and(|listed| listed.state == b"fine").then_some(())
    });
    // The last confirmation and the last lease expire.
    a.die();
    watch_until("the directory without the rank", PATIENCE, || {
        let directory = b.store.directory();
        let Some(listed) = directory.get(holder(rank(1))) else { return Some(()) };
        let depth = device_depth(&b.find(&long)?, rank(1));
        let is_valid = listed.state == b"fine" && Instant::now() < listed.valid_until;
        assert!(!is_valid || depth == 10, "{depth} blocks of a rank whose status is valid");
        None
    });
}
