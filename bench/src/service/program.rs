//! The service as a separate process.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::client::Connection;

/// Longest wait for a service to listen, and the interval of the attempts.
const START_DEADLINE: Duration = Duration::from_secs(30);
const START_POLL: Duration = Duration::from_millis(20);

/// A port on which no socket listens.
pub(super) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A running service, `flash-indexer serve` or the peer's, killed on drop.
pub(super) struct Program {
    child: Child,
    address: String,
}

impl Program {
    /// Starts the program with its defaults on a free port and waits until it logs its address.
    pub(super) fn start(path: &Path) -> Result<Self> {
        Self::start_with(path, &[])
    }

    /// The same with options.
    pub(super) fn start_with(path: &Path, options: &[&str]) -> Result<Self> {
        let mut child = Command::new(path)
            .args(["serve", "--port", "0"])
            .args(options)
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("failed to start {}", path.display()))?;
        let mut lines = BufReader::new(child.stderr.take().context("its standard error is a pipe")?).lines();
        let address = lines.by_ref().find_map(|line| Some(line.ok()?.split_once("http://")?.1.trim().to_owned()));
        // The log must be read to the end, so the pipe never fills.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| eprintln!("{line}")));
        let Some(address) = address else { bail!("{} exited before it listened; see its log", path.display()) };
        Ok(Self { child, address })
    }

    /// Starts the peer's service on a free port, as a process of this program, and waits until it accepts connections.
    pub(super) fn start_dynamo() -> Result<Self> {
        let port = free_port()?;
        let program = std::env::current_exe().context("failed to find this program, to start the peer's service")?;
        let child = Command::new(program).args(["dynamo-service", "--port", &port.to_string()]).spawn();
        let started =
            Self { child: child.context("failed to start the peer's service")?, address: format!("127.0.0.1:{port}") };
        let since = Instant::now();
        while started.connect().is_err() {
            ensure!(since.elapsed() < START_DEADLINE, "the peer's service does not listen; see its log");
            std::thread::sleep(START_POLL);
        }
        Ok(started)
    }

    /// Sends SIGTERM. Returns the time until the process has ended.
    pub(super) fn end(mut self, deadline: Duration) -> Result<Duration> {
        let started = Instant::now();
        let sent = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status()?;
        ensure!(sent.success(), "failed to send SIGTERM to the service");
        loop {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "the service ended with {status}");
                return Ok(started.elapsed());
            }
            ensure!(started.elapsed() < deadline, "the service does not end");
            std::thread::sleep(START_POLL);
        }
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// A connection that is kept open between requests.
    pub(super) fn connect(&self) -> Result<Connection> {
        Connection::open(&self.address)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
