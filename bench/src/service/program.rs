//! The service as a separate process.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

use super::client::Connection;

/// A running `flash-indexer serve`, killed on drop.
pub(super) struct Program {
    child: Child,
    address: String,
}

impl Program {
    /// Starts the program with its defaults on a free port and waits until it logs its address.
    pub(super) fn start(path: &Path) -> Result<Self> {
        let mut child = Command::new(path)
            .args(["serve", "--port", "0"])
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("failed to start {}", path.display()))?;
        let mut lines = BufReader::new(child.stderr.take().context("its standard error is a pipe")?).lines();
        let address = lines.by_ref().find_map(|line| Some(line.ok()?.split_once("http://")?.1.trim().to_owned()));
        // The log must be read to the end, so that the pipe never fills.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| eprintln!("{line}")));
        let Some(address) = address else { bail!("{} exited before it listened; see its log", path.display()) };
        Ok(Self { child, address })
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
