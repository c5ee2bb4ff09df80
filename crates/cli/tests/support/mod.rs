//! The real program, run as its users run it.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use flash_indexer_test_support::wait_for;

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

/// Says something on standard error even where the test runner captures output.
pub(crate) fn say(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).expect("standard error takes text");
}

/// `flash-indexer serve`, killed on drop.
pub(crate) struct Serve {
    child: Child,
    pub(crate) url: String,
}

impl Serve {
    /// Starts it on a free port and waits until it listens.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let arguments = [&["serve", "--port", "0"], arguments].concat();
        let mut child = flash_indexer(&arguments).stderr(Stdio::piped()).spawn().expect("the program runs");
        let log = BufReader::new(child.stderr.take().expect("it is piped"));
        let (lines, logged) = mpsc::channel();
        // The thread reads to the end, so that the program never waits for its log to be read.
        std::thread::spawn(move || log.lines().map_while(Result::ok).for_each(|line| drop(lines.send(line))));
        let url = loop {
            let line = logged.recv_timeout(PATIENCE).expect("it says where it listens");
            if let Some((_, url)) = line.split_once("listening on ") {
                break url.trim().to_owned();
            }
        };
        Self { child, url }
    }

    /// Sends a signal and returns the exit code.
    pub(crate) fn stop_with(mut self, signal: &str) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().expect("kill runs").success());
        let ended = wait_for("the end of serve", Duration::from_secs(10), || {
            self.child.try_wait().expect("a child can be waited for")
        });
        ended.code()
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
