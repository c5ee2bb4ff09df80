//! Snapshots in the state directory: a restart continues from them, and damaged ones are skipped.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flash_indexer_server::{Server, ServerOptions, SnapshotOptions, StartError};
use flash_indexer_sim::{Publisher, PublisherOptions, ReplayLoss};
use flash_indexer_test_support::{wait_for, watch_until};
use flash_indexer_wire::{Encoding, encode_batch};
use serde_json::json;

use crate::support::{Engine, PATIENCE, Service, removed, stored, tokens};

/// An interval longer than any test.
const NEVER: Duration = Duration::from_secs(3_600);

fn options(directory: &Path, interval: Duration) -> ServerOptions {
    let snapshots = Some(SnapshotOptions { directory: directory.to_owned(), interval });
    ServerOptions { snapshots, ..ServerOptions::default() }
}

/// The chain 1, 2, 3, …, one block in each batch.
fn chain(sequence: u64) -> Vec<u8> {
    let parent = (sequence > 0).then_some(sequence);
    encode_batch(1.0, &[stored(parent, &[sequence + 1])], None, Encoding::Map)
}

/// An engine that can repeat its last three messages.
fn engine(service: &Service) -> Engine {
    let options = PublisherOptions { buffer_batches: 3, ..PublisherOptions::on_loopback() };
    Engine::with_replay(service, json!(1), Publisher::bind(options).expect("free ports"))
}

fn publish(engine: &Engine, service: &Service, sequences: std::ops::Range<u64>) {
    for sequence in sequences {
        engine.publisher.publish(sequence, &chain(sequence)).expect("published");
        wait(engine, service, sequence);
    }
}

/// Waits until a message is applied and the rank is exact.
fn wait(engine: &Engine, service: &Service, sequence: u64) {
    engine.wait(service, "an exact rank", |listener| {
        listener["last_seq"] == json!(sequence) && listener["trust"] == json!("exact")
    });
}

fn held_tokens(service: &Service, blocks: u64) -> u64 {
    service.score(&tokens(&(1..=blocks).collect::<Vec<_>>()), "1", 0)
}

/// The snapshots of a directory, oldest first.
fn snapshots(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path());
    let mut found: Vec<_> = entries.filter(|path| path.extension().is_some_and(|end| end == "zst")).collect();
    found.sort();
    found
}

fn flip_a_bit(path: &Path) {
    let mut content = fs::read(path).expect("a snapshot");
    let middle = content.len() / 2;
    content[middle] ^= 1;
    fs::write(path, content).expect("written");
}

fn recovered_from(service: &Service) -> String {
    let (status, ready) = service.get("/ready");
    assert_eq!(status, 200, "{ready}");
    ready["recovered_from"].as_str().expect("a source").to_owned()
}

fn skipped(service: &Service, outcome: &str) -> f64 {
    service.metrics().value("flash_indexer_snapshots_total", &[("outcome", outcome)])
}

#[test]
fn a_restart_continues_from_the_last_snapshot_and_replays_only_what_follows_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Service::recovered(options(folder.path(), NEVER));
    assert_eq!(recovered_from(&service), "engines");
    let engine = engine(&service);
    publish(&engine, &service, 0..9);
    drop(service.stop());
    // Published while the service is down. The engine can no longer repeat the first messages.
    (9..11).for_each(|sequence| engine.publisher.keep(sequence, &chain(sequence)));

    let restarted = Service::recovered(options(folder.path(), NEVER));
    wait(&engine, &restarted, 10);
    assert_eq!(held_tokens(&restarted, 11), 44);
    assert!(recovered_from(&restarted).starts_with("snapshot "));
    let metrics = restarted.metrics();
    assert_eq!(metrics.value("flash_indexer_recovered_from_total", &[("source", "snapshot")]), 1.0);
    assert_eq!(metrics.value("flash_indexer_lost_messages_total", &[]), 0.0);
}

#[test]
fn readiness_waits_for_the_history_of_a_restored_engine() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Service::recovered(options(folder.path(), NEVER));
    // A reply has three messages and is cut off.
    let publisher = PublisherOptions { replay_loss: ReplayLoss::RestAfter(3), ..PublisherOptions::on_loopback() };
    let engine = Engine::with_replay(&service, json!(1), Publisher::bind(publisher).expect("free ports"));
    publish(&engine, &service, 0..3);
    drop(service.stop());
    (3..8).for_each(|sequence| engine.publisher.keep(sequence, &chain(sequence)));
    let restarted = Service::start_with(options(folder.path(), NEVER));
    let reasons = std::cell::RefCell::new(String::new());
    watch_until("readiness", PATIENCE, || {
        let (status, answer) = restarted.get("/ready");
        reasons.borrow_mut().push_str(&answer.to_string());
        if status == 200 {
            let listener = restarted.listener(&json!(1), 0);
            assert_eq!(listener["last_seq"], json!(7), "{listener}");
        }
        (status == 200).then_some(())
    });
    let reasons = reasons.into_inner();
    assert!(reasons.contains("catching up"), "{reasons}");
}

#[test]
fn readiness_waits_for_a_restored_engine_that_has_ended_for_a_limited_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Service::recovered(options(folder.path(), NEVER));
    let engine = engine(&service);
    publish(&engine, &service, 0..3);
    drop(service.stop());
    drop(engine);
    let restarted = Service::start_with(options(folder.path(), NEVER));
    let reasons = std::cell::RefCell::new(String::new());
    wait_for("readiness", PATIENCE, || {
        let (status, answer) = restarted.get("/ready");
        reasons.borrow_mut().push_str(&answer.to_string());
        (status == 200).then_some(())
    });
    let reasons = reasons.into_inner();
    assert!(reasons.contains("restored, and not connected yet (waiting up to 10 s): instance 1"), "{reasons}");
    assert_ne!(restarted.listener(&json!(1), 0)["status"], json!("connected"));
}

#[test]
fn a_rank_whose_engine_cannot_replay_what_followed_the_snapshot_is_degraded() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Service::recovered(options(folder.path(), NEVER));
    let engine = Engine::registered(&service, json!(1), 0, &json!({}));
    engine.say(&service, 0, &[stored(None, &[1])]);
    drop(service.stop());
    // Nothing shows that this was published.
    engine.publisher.publish(1, &encode_batch(1.0, &[removed(&[1])], None, Encoding::Map)).expect("published");
    let restarted = Service::recovered(options(folder.path(), NEVER));
    engine.wait(&restarted, "a connection", |listener| listener["status"] == json!("connected"));
    assert_eq!(restarted.listener(&json!(1), 0)["trust"], json!("degraded"));
}

#[test]
fn a_damaged_snapshot_is_skipped_and_the_one_before_it_loaded() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Service::recovered(options(folder.path(), NEVER));
    let engine = engine(&service);
    publish(&engine, &service, 0..9);
    drop(service.stop());
    let service = Service::recovered(options(folder.path(), NEVER));
    publish(&engine, &service, 9..10);
    drop(service.stop());

    let [older, newer] = snapshots(folder.path()).try_into().expect("two snapshots");
    flip_a_bit(&newer);
    let service = Service::recovered(options(folder.path(), NEVER));
    wait(&engine, &service, 9);
    assert_eq!(held_tokens(&service, 10), 40);
    assert_eq!(recovered_from(&service), format!("snapshot {}", older.display()));
    assert_eq!(skipped(&service, "damaged"), 1.0);
    drop(service.stop());

    for snapshot in snapshots(folder.path()) {
        let length = fs::metadata(&snapshot).expect("a snapshot").len();
        fs::OpenOptions::new().write(true).open(&snapshot).expect("a snapshot").set_len(length - 1).expect("cut off");
    }
    let service = Service::recovered(options(folder.path(), NEVER));
    assert_eq!((recovered_from(&service), skipped(&service, "damaged")), ("engines".to_owned(), 3.0));
    assert_eq!(service.get("/workers").1, json!([]), "a damaged snapshot registers no rank");
}

#[test]
fn a_snapshot_of_a_newer_program_is_unreadable_and_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Service::recovered(options(folder.path(), NEVER));
    let engine = engine(&service);
    publish(&engine, &service, 0..5);
    drop(service.stop());
    let newer = folder.path().join("snapshot-00000000000000000009.ndjson.zst");
    fs::write(&newer, zstd::encode_all(&b"{\"dump\":{\"version\":2}}\n"[..], 1).expect("compressed")).expect("written");

    let service = Service::recovered(options(folder.path(), NEVER));
    wait(&engine, &service, 4);
    assert_eq!((skipped(&service, "unreadable"), skipped(&service, "damaged")), (1.0, 0.0));
    assert!(recovered_from(&service).starts_with("snapshot "));
    drop(service.stop());
    assert!(newer.exists());
}

#[test]
fn a_service_that_is_killed_continues_from_a_periodic_snapshot() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Service::recovered(options(folder.path(), Duration::from_millis(20)));
    let engine = engine(&service);
    publish(&engine, &service, 0..9);
    let written = || service.metrics().value("flash_indexer_snapshots_total", &[("outcome", "written")]);
    let before = written();
    // The second snapshot from now on begins after the last message.
    wait_for("two snapshots", PATIENCE, || (written() >= before + 2.0).then_some(()));
    // State after a kill: the files, one of them unfinished.
    let left = tempfile::tempdir().expect("a folder");
    let newest = snapshots(folder.path()).pop().expect("a snapshot");
    fs::copy(&newest, left.path().join(newest.file_name().expect("a name"))).expect("copied");
    fs::write(left.path().join("unfinished"), b"\x28\xb5\x2f\xfd").expect("written");

    let restarted = Service::recovered(options(left.path(), NEVER));
    wait(&engine, &restarted, 8);
    assert_eq!(held_tokens(&restarted, 9), 36);
    drop(restarted.stop());
    assert_eq!(snapshots(left.path()).len(), 2, "the last snapshot of the second service");
    assert!(!left.path().join("unfinished").exists());
}

#[test]
fn a_snapshot_that_cannot_be_written_is_counted_and_stops_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Service::recovered(options(folder.path(), Duration::from_millis(20)));
    let engine = engine(&service);
    fs::remove_dir_all(folder.path()).expect("removed");
    let failed = || service.metrics().value("flash_indexer_snapshots_total", &[("outcome", "failed")]);
    wait_for("a failed snapshot", PATIENCE, || (failed() >= 1.0).then_some(()));
    publish(&engine, &service, 0..3);
    assert_eq!((held_tokens(&service, 3), service.get("/ready").0), (12, 200));
}

#[test]
fn a_second_service_does_not_use_the_same_state_directory() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Service::recovered(options(folder.path(), NEVER));
    let second = service.block_on(Server::start(ServerOptions { port: 0, ..options(folder.path(), NEVER) }));
    let error = second.expect_err("the directory is in use");
    assert!(matches!(error, StartError::StateDirectory(_)), "{error}");
    assert!(error.to_string().ends_with("give each replica a directory of its own"), "{error}");
    drop(service.stop());
    drop(Service::recovered(options(folder.path(), NEVER)));
}

#[test]
fn a_store_below_a_removed_block_is_no_loss_after_a_restart_or_a_recovery_from_a_peer() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Service::recovered(options(folder.path(), NEVER));
    let engine = engine(&service);
    publish(&engine, &service, 0..5);
    let say = |sequence, events: &[_]| {
        engine.publisher.publish(sequence, &encode_batch(1.0, events, None, Encoding::Map)).expect("published");
    };
    say(5, &[removed(&[1, 3])]);
    wait(&engine, &service, 5);
    drop(service.stop());

    let restarted = Service::recovered(options(folder.path(), NEVER));
    let peer = Service::from_peer(&restarted.url(""));
    for service in [&restarted, &peer] {
        wait(&engine, service, 5);
    }
    say(6, &[stored(Some(5), &[6])]);
    for service in [&restarted, &peer] {
        wait(&engine, service, 6);
        assert_eq!(held_tokens(service, 6), 0, "block 1 is removed");
    }
    say(7, &[stored(None, &[1]), stored(Some(2), &[3])]);
    for service in [&restarted, &peer] {
        wait(&engine, service, 7);
        assert_eq!(held_tokens(service, 6), 24, "all blocks are held again");
    }
}
