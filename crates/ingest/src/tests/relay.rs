//! Engines that are followed through a relay: their ranks have the same trust as those of engines that are followed directly.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use flash_indexer_relay::{HasherOptions, RelayOptions};
use flash_indexer_sim::{Publisher, PublisherOptions};
use flash_indexer_test_support::wait_for;
use flash_indexer_types::{ConnectionStatus, Trust};
use flash_indexer_wire::EngineAdapter;

use super::fixture::{Fixture, PATIENCE, RANK, chain_after, payload};
use crate::QUEUE_BYTES_MIN;

/// An engine with its relay, and a fixture that follows the relay.
struct Relayed {
    engine: Option<Publisher>,
    /// Ports that restarts keep.
    engine_options: PublisherOptions,
    options: RelayOptions,
    relay: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
    fixture: Fixture,
}

fn free_endpoint() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    format!("tcp://{}", listener.local_addr().expect("an address"))
}

impl Relayed {
    fn start(engine_replays: bool) -> Self {
        let engine_options = PublisherOptions {
            endpoint: free_endpoint(),
            replay_endpoint: free_endpoint(),
            ..PublisherOptions::on_loopback()
        };
        let options = RelayOptions {
            engine: engine_options.endpoint.clone(),
            engine_replay: engine_replays.then(|| engine_options.replay_endpoint.clone()),
            hasher: HasherOptions {
                block_size: flash_indexer_core::hashing::BlockSize::new(1).expect("not zero"),
                lora_name: None,
                adapter: EngineAdapter::Detect,
                has_salts: true,
            },
            publish: free_endpoint(),
            publish_replay: free_endpoint(),
            connects: false,
            topic: None,
            replay_messages_max: 1_000,
            curve: None,
        };
        let fixture = Fixture::without_engines(1, QUEUE_BYTES_MIN, None);
        fixture.listen(&options.publish, Some(options.publish_replay.clone()));
        let mut relayed = Self { engine: None, engine_options, options, relay: None, fixture };
        relayed.start_engine();
        relayed.start_relay();
        relayed
    }

    fn start_engine(&mut self) {
        let bind = || Publisher::bind(self.engine_options.clone()).ok();
        self.engine = Some(wait_for("the engine's ports", PATIENCE, bind));
    }

    fn start_relay(&mut self) {
        let (stop, options) = (Arc::new(AtomicBool::new(false)), self.options.clone());
        let stopping = Arc::clone(&stop);
        let run = move || {
            flash_indexer_relay::run(&options, &|| stopping.load(Ordering::Relaxed)).expect("free ports");
        };
        self.relay = Some((stop, std::thread::spawn(run)));
        let engine = self.engine.as_ref().expect("an engine");
        assert!(engine.wait_for_subscriber(PATIENCE).expect("a socket"), "the relay does not subscribe");
    }

    fn stop_relay(&mut self) {
        let Some((stop, thread)) = self.relay.take() else { return };
        stop.store(true, Ordering::Relaxed);
        thread.join().expect("no panic");
        let listener = self.fixture.listener(0);
        let is_lost = || (listener.connection() != ConnectionStatus::Connected).then_some(());
        wait_for("the loss of the connection", PATIENCE, is_lost);
    }

    fn publish(&self, sequence: u64, payload: &[u8]) {
        self.engine.as_ref().expect("an engine").publish(sequence, payload).expect("published");
    }

    fn keep(&self, sequence: u64, payload: &[u8]) {
        self.engine.as_ref().expect("an engine").keep(sequence, payload);
    }
}

impl Drop for Relayed {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.relay.take() {
            stop.store(true, Ordering::Relaxed);
            let _ = thread.join();
        }
    }
}

#[test]
fn a_relayed_engine_is_exact_and_its_gaps_are_repaired() {
    let relayed = Relayed::start(true);
    relayed.publish(0, &payload(1));
    relayed.fixture.wait(0, 0, Trust::Exact);
    relayed.keep(1, &chain_after(Some(1), 2, 1));
    relayed.publish(2, &chain_after(Some(2), 3, 1));
    relayed.fixture.wait(0, 2, Trust::Exact);
    assert_eq!(relayed.fixture.held_blocks(), 3);
}

#[test]
fn messages_that_the_engine_cannot_replay_degrade_the_rank() {
    let relayed = Relayed::start(true);
    relayed.publish(0, &payload(1));
    relayed.fixture.wait(0, 0, Trust::Exact);
    relayed.publish(2, &payload(3));
    relayed.fixture.wait(0, 2, Trust::Degraded);
}

#[test]
fn a_restarted_engine_is_followed_from_its_start() {
    let mut relayed = Relayed::start(true);
    for sequence in 0..4 {
        relayed.publish(sequence, &payload(sequence + 1));
    }
    relayed.fixture.wait(0, 3, Trust::Exact);
    drop(relayed.engine.take());
    let listener = relayed.fixture.listener(0);
    let is_lost = || (listener.connection() != ConnectionStatus::Connected).then_some(());
    wait_for("the loss of the connection, as of the engine's own", PATIENCE, is_lost);
    relayed.start_engine();
    relayed.keep(0, &payload(10));
    relayed.publish(1, &payload(11));
    relayed.fixture.wait(0, 1, Trust::Exact);
    assert_eq!(relayed.fixture.held_blocks(), 2, "the blocks of the earlier epoch are gone");
}

#[test]
fn a_restarted_relay_replays_what_was_published_meanwhile() {
    let mut relayed = Relayed::start(true);
    relayed.publish(0, &payload(1));
    relayed.fixture.wait(0, 0, Trust::Exact);
    relayed.stop_relay();
    relayed.publish(1, &chain_after(Some(1), 2, 1));
    relayed.start_relay();
    relayed.fixture.wait(0, 1, Trust::Exact);
    assert_eq!(relayed.fixture.held_blocks(), 2);
}

#[test]
fn a_restarted_relay_of_an_engine_without_replays_is_never_taken_for_exact() {
    let mut relayed = Relayed::start(false);
    relayed.publish(0, &payload(1));
    relayed.fixture.wait(0, 0, Trust::Exact);
    relayed.stop_relay();
    relayed.publish(1, &payload(2));
    relayed.start_relay();
    relayed.publish(2, &payload(3));
    relayed.fixture.wait(0, 2, Trust::Degraded);
}

#[test]
fn a_store_that_a_restarted_relay_cannot_hash_degrades_the_rank() {
    let mut relayed = Relayed::start(false);
    relayed.publish(0, &payload(1));
    relayed.fixture.wait(0, 0, Trust::Exact);
    relayed.stop_relay();
    relayed.start_relay();
    // No message is missing, but the relay cannot determine whether block 1 has a salt.
    relayed.publish(1, &chain_after(Some(1), 2, 1));
    relayed.fixture.wait(0, 1, Trust::Degraded);
    let report = relayed.fixture.listener(0).report(RANK);
    assert_eq!(report.rejected.get("hash_inputs_unknown"), Some(&1), "{report:?}");
}
