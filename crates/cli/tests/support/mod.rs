//! Runs the real program.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use flash_indexer_core::SequenceHash;
use flash_indexer_sim::{Publisher, PublisherOptions};
use flash_indexer_test_support::wait_for;
use flash_indexer_wire::{BlockStored, CacheGroup, Encoding, EngineEvent, TokenIds, encode_batch};
use serde_json::{Value, json};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The program with these arguments.
pub(crate) fn flash_indexer(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flash-indexer"));
    command.args(arguments).stdin(Stdio::null());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FLASH_INDEXER_")) {
        command.env_remove(name);
    }
    command
}

/// Runs the program to its end.
pub(crate) fn run(arguments: &[&str]) -> Output {
    flash_indexer(arguments).output().expect("the program runs")
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Prints to standard error even if the test runner captures output.
pub(crate) fn print_uncaptured(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).expect("standard error takes text");
}

/// `flash-indexer serve`, killed on drop.
pub(crate) struct Serve {
    child: Child,
    pub(crate) url: String,
    /// Log that is open and not read.
    _unread_log: Option<BufReader<ChildStderr>>,
}

impl Serve {
    /// Starts the service on a free port and waits until it listens.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::started_by(flash_indexer(&[&["serve", "--port", "0"], arguments].concat()))
    }

    /// Starts the service by this command and waits until it listens.
    pub(crate) fn started_by(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the program runs");
        let log = BufReader::new(child.stderr.take().expect("it is piped"));
        let (lines, logged) = mpsc::channel();
        // The thread reads to the end: a full pipe never blocks the service.
        std::thread::spawn(move || log.lines().map_while(Result::ok).for_each(|line| drop(lines.send(line))));
        let mut read = Vec::new();
        let url = loop {
            let Ok(line) = logged.recv_timeout(PATIENCE) else {
                panic!("{command:?} does not listen:\n{}", read.join("\n"));
            };
            if let Some((_, url)) = line.split_once("listening on ") {
                break url.trim().to_owned();
            }
            read.push(line);
        };
        Self { child, url, _unread_log: None }
    }

    /// Starts the service with a log of every event, and reads none of it once the service listens.
    pub(crate) fn start_with_unread_log() -> Self {
        let mut serve = flash_indexer(&["serve", "--port", "0"]);
        serve.env("FLASH_INDEXER_LOG", "trace").stderr(Stdio::piped());
        let mut child = serve.spawn().expect("the program runs");
        let mut log = BufReader::new(child.stderr.take().expect("it is piped"));
        let url = loop {
            let mut line = String::new();
            assert_ne!(log.read_line(&mut line).expect("text"), 0, "it logs its address");
            if let Some((_, url)) = line.split_once("listening on ") {
                break url.trim().to_owned();
            }
        };
        Self { child, url, _unread_log: Some(log) }
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().expect("kill runs").success());
    }

    /// Waits until `/ready` succeeds.
    pub(crate) fn wait_until_ready(&self) {
        wait_for("readiness", PATIENCE, || (self.get("/ready").0 == 200).then_some(()));
    }

    pub(crate) fn get(&self, path: &str) -> (u16, Value) {
        read(agent().get(format!("{}{path}", self.url)).call())
    }

    /// A counter or gauge without labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let mut response = agent().get(format!("{}/metrics", self.url)).call().expect("an answer");
        let text = response.body_mut().read_to_string().expect("text");
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name}")).parse().expect("a number")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        read(agent().post(format!("{}{path}", self.url)).send_json(body))
    }

    /// Sends a signal and returns the exit code.
    pub(crate) fn stop_with(mut self, signal: &str) -> Option<i32> {
        self.signal(signal);
        let ended =
            wait_for("the end of serve", PATIENCE, || self.child.try_wait().expect("a child can be waited for"));
        ended.code()
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE)).build().into()
}

fn read(response: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> (u16, Value) {
    let mut response = response.expect("an answer");
    let status = response.status().as_u16();
    (status, response.body_mut().with_config().limit(u64::MAX).read_json().expect("JSON"))
}

/// Blocks of two tokens in one of a hybrid model's cache groups.
fn in_group<'a>(group: CacheGroup<'a>, blocks: &[u64]) -> EngineEvent<'a> {
    EngineEvent::Stored(BlockStored {
        block_hashes: blocks.iter().copied().map(SequenceHash).collect(),
        token_ids: TokenIds::Plain(blocks.iter().flat_map(|&block| [block as u32, 0]).collect()),
        block_size: 2,
        group,
        ..BlockStored::default()
    })
}

/// A service that has indexed a hybrid engine with these blocks in its window of two.
pub(crate) fn hybrid_service(window: &[u64]) -> (Serve, Publisher) {
    let sliding = CacheGroup { idx: Some(0), kind: Some("sliding_window"), sliding_window: Some(5) };
    let full = CacheGroup { idx: Some(1), kind: Some("full_attention"), sliding_window: None };
    let publisher = Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
    let events = [in_group(full, &[1, 2, 3]), in_group(sliding, window)];
    publisher.keep(0, &encode_batch(1.0, &events, None, Encoding::Map));
    (listening_to(&publisher), publisher)
}

/// A service that has applied all messages that an engine can replay.
pub(crate) fn listening_to(publisher: &Publisher) -> Serve {
    let serve = Serve::start(&[]);
    let registration = json!({
        "instance_id": 1, "endpoint": publisher.endpoint(), "replay_endpoint": publisher.replay_endpoint(),
        "model_name": "m", "block_size": 2,
    });
    assert_eq!(serve.post("/register", &registration).0, 201);
    wait_for("an exact rank", PATIENCE, || {
        let (_, workers) = serve.get("/workers");
        (workers[0]["listeners"]["0"]["trust"] == json!("exact")).then_some(())
    });
    serve
}
