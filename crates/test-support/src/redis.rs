//! Redis servers for a test: one, a cluster, or one with a replica and sentinels, on free ports of loopback.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::wait_for;

const PATIENCE: Duration = Duration::from_secs(30);

/// Path of `redis-server`, if it is installed: `FLASH_REDIS_SERVER`, or `redis-server` in the search path.
#[must_use]
pub fn find_redis_server() -> Option<PathBuf> {
    let name = redis_server_name();
    let found = Command::new(&name).arg("--version").stdout(Stdio::null()).status();
    found.is_ok_and(|status| status.success()).then(|| name.into())
}

fn redis_server_name() -> OsString {
    std::env::var_os("FLASH_REDIS_SERVER").unwrap_or_else(|| "redis-server".into())
}

/// Path of `redis-server` for a test that needs it.
///
/// If [`find_redis_server`] finds none, the caller skips the test and a note is printed. With `CI=true` the test fails.
///
/// # Panics
///
/// With `CI=true` when it is not installed.
#[must_use]
pub fn redis_server() -> Option<PathBuf> {
    let found = find_redis_server();
    if found.is_some() {
        return found;
    }
    let is_ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
    assert!(!is_ci, "{} is not installed: scripts/prepare installs it", redis_server_name().display());
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let note = format!("SKIPPED: {test} needs redis-server, which is not installed\n");
    std::io::stderr().write_all(note.as_bytes()).expect("standard error takes text");
    None
}

/// A running server, killed on drop.
#[derive(Debug)]
pub struct RedisNode {
    program: PathBuf,
    arguments: Vec<String>,
    port: u16,
    directory: TempDir,
    child: Child,
}

impl RedisNode {
    /// Starts a server, by default without persistence.
    ///
    /// # Panics
    ///
    /// When the server does not start.
    #[must_use]
    pub fn start(program: &PathBuf, more: &[&str]) -> Self {
        let port = free_port();
        let directory = tempfile::tempdir().expect("a directory");
        let mut arguments: Vec<String> = Vec::new();
        if !more.contains(&"--sentinel") {
            let path = directory.path().display().to_string();
            arguments.extend(["--dir", &path, "--save", "", "--appendonly", "no"].map(str::to_owned));
        } else {
            let config = directory.path().join("sentinel.conf");
            std::fs::write(&config, format!("port {port}\ndir {}\n", directory.path().display())).expect("a file");
            arguments.push(config.display().to_string());
        }
        arguments.extend(["--port", &port.to_string(), "--bind", "127.0.0.1"].map(str::to_owned));
        arguments.extend(more.iter().map(|&argument| argument.to_owned()));
        let child = spawn(program, &arguments);
        let node = Self { program: program.clone(), arguments, port, directory, child };
        node.wait_until_up();
        node
    }

    /// The server's port on loopback.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's directory.
    #[must_use]
    pub fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// Sends a command and returns the response as text; lists are lines.
    ///
    /// # Panics
    ///
    /// When the server does not respond.
    #[must_use]
    pub fn command(&self, parts: &[&str]) -> String {
        self.try_command(parts).unwrap_or_else(|error| panic!("{parts:?}: {error}"))
    }

    /// Whether the server has this role now, such as `master`. A server that changes its role closes its connections.
    #[must_use]
    pub fn has_role(&self, role: &str) -> bool {
        self.try_command(&["ROLE"]).is_ok_and(|response| response.starts_with(role))
    }

    /// Sends a command and returns the response as text.
    ///
    /// # Errors
    ///
    /// When the server does not respond.
    pub fn try_command(&self, parts: &[&str]) -> std::io::Result<String> {
        let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
        let lines = self.try_command_bytes(&parts)?;
        Ok(lines.iter().map(|line| String::from_utf8_lossy(line)).collect::<Vec<_>>().join("\n"))
    }

    /// Sends a command of bytes and returns the parts of the response.
    ///
    /// # Errors
    ///
    /// When the server does not respond.
    pub fn try_command_bytes(&self, parts: &[&[u8]]) -> std::io::Result<Vec<Vec<u8>>> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut request = format!("*{}\r\n", parts.len()).into_bytes();
        for part in parts {
            request.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
            request.extend_from_slice(part);
            request.extend_from_slice(b"\r\n");
        }
        (&stream).write_all(&request)?;
        let mut answer = Vec::new();
        read_response(&mut BufReader::new(stream), &mut answer)?;
        Ok(answer)
    }

    /// Kills the server with SIGKILL, as the kernel does when memory runs out.
    ///
    /// # Panics
    ///
    /// When the server cannot be killed.
    pub fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }

    /// Starts the server again after [`RedisNode::kill`], on the same port and directory.
    ///
    /// # Panics
    ///
    /// When the server does not start.
    pub fn restart(&mut self) {
        self.child = spawn(&self.program, &self.arguments);
        self.wait_until_up();
    }

    /// Sends the server a signal, such as `STOP` or `CONT`.
    ///
    /// # Panics
    ///
    /// When there is no program `kill`.
    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill").arg(format!("-{signal}")).arg(self.child.id().to_string()).status();
        assert!(sent.expect("kill runs").success());
    }

    fn wait_until_up(&self) {
        let is_up = || self.try_command(&["PING"]).ok().filter(|answer| answer == "PONG" || answer.contains("NOAUTH"));
        let _ = wait_for("a redis server", PATIENCE, is_up);
    }
}

impl Drop for RedisNode {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Options of a cluster.
#[derive(Debug, Clone, Copy)]
pub struct ClusterSetup {
    /// Masters, each with an equal share of the slots.
    pub masters: usize,
    /// Replicas of each master.
    pub replicas: usize,
    /// The setting `cluster-require-full-coverage`; Redis defaults to `true`.
    pub is_full_coverage_required: bool,
}

/// Starts a cluster of masters without replicas, which continues to serve the remaining slots when a master is down.
///
/// # Panics
///
/// When the nodes do not form a cluster.
#[must_use]
pub fn redis_cluster(program: &PathBuf, masters: usize) -> Vec<RedisNode> {
    redis_cluster_with(program, ClusterSetup { masters, replicas: 0, is_full_coverage_required: false })
}

/// Starts a cluster on loopback; returns its masters in the order of their slots, then their replicas.
///
/// # Panics
///
/// When the nodes do not form a cluster.
#[must_use]
pub fn redis_cluster_with(program: &PathBuf, setup: ClusterSetup) -> Vec<RedisNode> {
    let ClusterSetup { masters, replicas, is_full_coverage_required } = setup;
    let coverage = if is_full_coverage_required { "yes" } else { "no" };
    let start = |_| {
        let bus = free_port().to_string();
        let more = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-node-timeout", "2000"];
        let more = [&more[..], &["--cluster-require-full-coverage", coverage, "--repl-diskless-sync-delay", "0"]];
        (RedisNode::start(program, &more.concat()), bus)
    };
    let nodes: Vec<_> = (0..masters * (1 + replicas)).map(start).collect();
    for (at, (node, bus)) in nodes.iter().enumerate() {
        let slot = |at: usize| (at * 16_384 / masters).to_string();
        if at < masters {
            let last = (at + 1) * 16_384 / masters - 1;
            assert_eq!(node.command(&["CLUSTER", "ADDSLOTSRANGE", &slot(at), &last.to_string()]), "OK");
        }
        let met = nodes[0].0.command(&["CLUSTER", "MEET", "127.0.0.1", &node.port.to_string(), bus]);
        assert_eq!(met, "OK");
    }
    let nodes: Vec<RedisNode> = nodes.into_iter().map(|(node, _)| node).collect();
    for (at, replica) in nodes.iter().enumerate().skip(masters) {
        let master = nodes[at % masters].command(&["CLUSTER", "MYID"]);
        wait_for("a replica to accept its master", PATIENCE, || {
            (replica.command(&["CLUSTER", "REPLICATE", &master]) == "OK").then_some(())
        });
        wait_for("a replica in step", PATIENCE, || {
            replica.command(&["INFO", "replication"]).contains("master_link_status:up").then_some(())
        });
    }
    for node in &nodes {
        wait_for("a cluster", PATIENCE, || {
            let info = node.command(&["CLUSTER", "INFO"]);
            let replicas_known = node.command(&["CLUSTER", "NODES"]).matches("slave").count();
            (info.contains("cluster_state:ok")
                && info.contains("cluster_slots_assigned:16384")
                && replicas_known == masters * replicas)
                .then_some(())
        });
    }
    nodes
}

/// A master, its replica, and sentinels. A majority of them promotes the replica when the master is down. The sentinels
/// name the master `fleet`.
#[derive(Debug)]
pub struct RedisWithSentinels {
    /// The master at the start.
    pub master: RedisNode,
    /// Its replica.
    pub replica: RedisNode,
    /// The sentinels.
    pub sentinels: Vec<RedisNode>,
}

impl RedisWithSentinels {
    /// Starts all of them and waits until each sentinel monitors the replica and has discovered the other sentinels.
    ///
    /// # Panics
    ///
    /// When one does not.
    #[must_use]
    pub fn start(program: &PathBuf, sentinels: usize) -> Self {
        let master = RedisNode::start(program, &["--repl-diskless-sync-delay", "0"]);
        let master_port = master.port.to_string();
        let replica = RedisNode::start(program, &["--replicaof", "127.0.0.1", &master_port]);
        let majority = (sentinels / 2 + 1).to_string();
        let sentinels: Vec<_> = (0..sentinels).map(|_| RedisNode::start(program, &["--sentinel"])).collect();
        for sentinel in &sentinels {
            for command in [
                &["SENTINEL", "MONITOR", "fleet", "127.0.0.1", &master_port, &majority][..],
                &["SENTINEL", "SET", "fleet", "down-after-milliseconds", "1000"],
                &["SENTINEL", "SET", "fleet", "failover-timeout", "5000"],
            ] {
                assert_eq!(sentinel.command(command), "OK", "{command:?}");
            }
        }
        let knows = |sentinel: &RedisNode, list: &str, node: &RedisNode| {
            let port = node.port.to_string();
            sentinel.command(&["SENTINEL", list, "fleet"]).lines().any(|line| line == port)
        };
        wait_for("the sentinels to monitor the replica", PATIENCE, || {
            let is_linked = replica.command(&["INFO", "replication"]).contains("master_link_status:up");
            let is_known = sentinels.iter().all(|sentinel| knows(sentinel, "REPLICAS", &replica));
            let know_each_other = |sentinel: &RedisNode| {
                sentinels.iter().all(|other| other.port == sentinel.port || knows(sentinel, "SENTINELS", other))
            };
            (is_linked && is_known && sentinels.iter().all(know_each_other)).then_some(())
        });
        Self { master, replica, sentinels }
    }
}

fn spawn(program: &PathBuf, arguments: &[String]) -> Child {
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap_or_else(|error| panic!("{}: {error}", program.display()))
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}

/// Reads a response; nested lists are flattened.
fn read_response(stream: &mut impl BufRead, parts: &mut Vec<Vec<u8>>) -> std::io::Result<()> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let line = line.trim_end();
    let (kind, rest) = line.split_at(1);
    let length = rest.parse::<i64>().unwrap_or(-1);
    match kind {
        "$" if length >= 0 => {
            let mut text = vec![0; length as usize + 2];
            stream.read_exact(&mut text)?;
            text.truncate(length as usize);
            parts.push(text);
        }
        "*" if length >= 0 => {
            for _ in 0..length {
                read_response(stream, parts)?;
            }
        }
        _ => parts.push(rest.as_bytes().to_vec()),
    }
    Ok(())
}
