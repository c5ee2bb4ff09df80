//! The hosts and files that documented commands name, with a service and engines at these hosts.

use std::cell::{Cell, OnceCell};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc;

use flash_indexer_core::SequenceHash;
use flash_indexer_sim::{Publisher, PublisherOptions};
use flash_indexer_test_support::{
    Authority, JwtSigningKey, RedisNode, find_redis_server, jwt_key_set, tiny_tokenizer, wait_for,
};
use flash_indexer_wire::{BlockStored, Encoding, EngineEvent, TokenIds, encode_batch};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::pages::{Page, repository};
use crate::support::{PATIENCE, Serve, flash_indexer, text};

const PROGRAM: &str = env!("CARGO_BIN_EXE_flash-indexer");
/// Models of the documented commands, with the block sizes of their engines.
const MODELS: [(&str, u32); 4] = [("llama-3-8b", 16), ("default", 16), ("demo", 4), ("meta-llama/Llama-3.1-8B", 16)];
/// Tokens of the prompt that the engines hold.
const HELD_TOKENS: u32 = 32;
/// Options with which clap parses a command and runs nothing.
const PARSE_ONLY: &str = "--help";

/// Stand-ins for the hosts of the documented commands. Each host is an address of loopback, so documented ports stay as they are.
pub(super) struct World {
    folder: TempDir,
    /// Second and third bytes of all addresses.
    network: (u8, u8),
    /// Addresses given to documented services.
    services: Cell<u8>,
    /// Address that replaces `localhost`.
    localhost: Cell<u8>,
    registrations: Vec<Value>,
    _engines: Vec<Publisher>,
    service: Serve,
    redis: OnceCell<RedisNode>,
}

/// Last byte of the address of the service that commands query.
const SERVICE: u8 = 1;
/// … of the engine `gpu-0`; `gpu-1` has the next one.
const GPU_0: u8 = 10;
/// … of a host without services.
const NO_SERVICE: u8 = 99;
/// … of the first service that a documented command starts.
const STARTED: u8 = 100;

impl World {
    pub(super) fn new(pages: &[Page]) -> Self {
        static NUMBER: AtomicU16 = AtomicU16::new(0);
        let number = u32::from(NUMBER.fetch_add(1, Ordering::Relaxed));
        let mixed = std::process::id().wrapping_mul(31).wrapping_add(number);
        let network = (64 + (mixed >> 8) as u8 % 128, mixed as u8);
        let address = |host: u8| format!("127.{}.{}.{host}", network.0, network.1);
        let folder = tempfile::tempdir().expect("a folder");
        write_files(folder.path(), pages);
        let engine = |endpoint: String, replay_endpoint: String, block_size: u32| {
            let options = PublisherOptions { endpoint, replay_endpoint, ..PublisherOptions::on_loopback() };
            let publisher = Publisher::bind(options).expect("free ports");
            let stored = EngineEvent::Stored(BlockStored {
                block_hashes: (1..=u64::from(HELD_TOKENS / block_size)).map(SequenceHash).collect(),
                token_ids: TokenIds::Plain((1..=HELD_TOKENS).collect()),
                block_size,
                ..BlockStored::default()
            });
            publisher.keep(0, &encode_batch(1.0, &[stored], None, Encoding::Map));
            publisher
        };
        let (mut engines, mut registrations) = (Vec::new(), Vec::new());
        for (model, block_size) in MODELS {
            // The engines that documented commands name by their hosts are of the first model.
            let ports = |gpu: u8| match model == MODELS[0].0 {
                true => (5557.to_string(), 6557.to_string(), GPU_0 + gpu),
                false => ("*".to_owned(), "*".to_owned(), GPU_0 + gpu),
            };
            for (gpu, instance) in [(1, json!(1)), (2, json!(2)), (3, json!("pod-a"))] {
                let (port, replay_port, host) = ports(gpu);
                let endpoint = |port: &str| format!("tcp://{}:{port}", address(host));
                let publisher = engine(endpoint(&port), endpoint(&replay_port), block_size);
                registrations.push(json!({
                    "instance_id": instance, "model_name": model, "block_size": block_size,
                    "endpoint": publisher.endpoint(), "replay_endpoint": publisher.replay_endpoint(),
                }));
                engines.push(publisher);
            }
        }
        let mut serve = command_in(folder.path(), PROGRAM);
        serve.args(["serve", "--host", &address(SERVICE), "--tokenizer-dir", ".cache/huggingface/hub"]);
        serve.args(["--grpc-port", "8092"]);
        let service = Serve::started_by(serve);
        let world = Self {
            folder,
            network,
            services: Cell::new(0),
            localhost: Cell::new(SERVICE),
            registrations,
            _engines: engines,
            service,
            redis: OnceCell::new(),
        };
        world.register_engines(&world.service);
        world
    }

    /// Begins a block of commands: `localhost` is the service with engines, until a command of the block starts its own.
    pub(super) fn begin_block(&self) {
        self.localhost.set(SERVICE);
    }

    /// Registers the engines, and waits until what they have published is applied.
    pub(super) fn register_engines(&self, service: &Serve) {
        for registration in &self.registrations {
            let (status, answer) = service.post("/register", registration);
            assert!(status == 201 || status == 200, "{registration}: {answer}");
        }
        wait_for("exact ranks", PATIENCE, || {
            let (_, workers) = service.get("/workers");
            let workers = workers.as_array().expect("a list").clone();
            let is_exact = |worker: &Value| worker["listeners"]["0"]["trust"] == json!("exact");
            workers.iter().all(is_exact).then_some(())
        });
    }

    fn address(&self, host: u8) -> String {
        format!("127.{}.{}.{host}", self.network.0, self.network.1)
    }

    /// A command with the addresses of this world. `own` is that of a service that it starts.
    fn localize(&self, command: &str, own: u8) -> String {
        let local = self.address(self.localhost.get());
        let mut command = command.replace("127.0.0.1", &local).replace("localhost", &local);
        command = command.replace("0.0.0.0", &self.address(own));
        for gpu in 1..=9 {
            command = command.replace(&format!("gpu-{gpu}:"), &format!("{}:", self.address(GPU_0 + gpu)));
        }
        for peer in ["replica-b:", "replica-c:"] {
            command = command.replace(peer, &format!("{}:", self.address(NO_SERVICE)));
        }
        if command.contains("cache:6379") {
            command = command.replace("cache:6379", &self.redis());
        }
        command
    }

    /// Address of a Redis server. A machine without one has an address without a server.
    fn redis(&self) -> String {
        let Some(program) = find_redis_server() else { return format!("{}:6379", self.address(NO_SERVICE)) };
        format!("127.0.0.1:{}", self.redis.get_or_init(|| RedisNode::start(&program, &[])).port())
    }

    fn shell(&self, script: &str) -> Command {
        let mut shell = command_in(self.folder.path(), "bash");
        let local = self.address(self.localhost.get());
        shell.args(["-c", script]).env("FLASH_INDEXER_URL", format!("http://{local}:8090"));
        shell
    }

    /// Runs a command to its end; returns its output if it succeeds.
    pub(super) fn run(&self, command: &str) -> Result<String, String> {
        let output = self.shell(&self.localize(command, SERVICE)).output().expect("bash runs");
        let shown = format!("{}{}", text(&output.stdout), text(&output.stderr));
        if output.status.success() { Ok(shown) } else { Err(shown) }
    }

    /// Starts a documented service and waits until it listens. Later commands of the block query it, unless it has its own port.
    pub(super) fn serve(&self, command: &str) -> Serve {
        let has_port = command.contains("--port ");
        let own = if has_port { SERVICE } else { self.next_service() };
        let mut shell = self.shell(&format!("exec {}", self.localize(command, own)));
        let service = Serve::started_by({
            shell.env("FLASH_INDEXER_HOST", self.address(own));
            shell
        });
        if !has_port {
            self.localhost.set(own);
        }
        service
    }

    fn next_service(&self) -> u8 {
        self.services.set(self.services.get() + 1);
        STARTED + self.services.get()
    }

    /// Starts simulated engines that stay up, and waits until they have started.
    pub(super) fn stay(&self, command: &str) -> Staying {
        let mut shell = self.shell(&format!("exec {}", self.localize(command, SERVICE)));
        let mut child = shell.stdout(Stdio::piped()).spawn().expect("bash runs");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let (lines, printed) = mpsc::channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).for_each(|line| drop(lines.send(line))));
        let staying = Staying { child };
        while !printed.recv_timeout(PATIENCE).expect("it says that it stays").contains("Ctrl-C") {}
        staying
    }

    /// Parses a command of the program, and runs only the checks of `config check`.
    pub(super) fn parse(&self, command: &str) -> Result<(), String> {
        let command =
            [" >", " &&", " |"].iter().fold(command, |command, end| command.split(end).next().unwrap_or(command));
        let script =
            format!("record() {{ printf '%s\\0' \"$@\"; }}; {}", command.replacen("flash-indexer", "record", 1));
        let recorded = self.shell(&self.localize(&script, SERVICE)).output().expect("bash runs");
        assert!(recorded.status.success(), "{command}: {}", text(&recorded.stderr));
        let recorded = text(&recorded.stdout);
        let words: Vec<&str> = recorded.split_terminator('\0').collect();
        let mut parsed = command_in(self.folder.path(), PROGRAM);
        match words.split_first() {
            Some((&"serve", options)) => parsed.args(["config", "check"]).args(options),
            _ => parsed.args(words).arg(PARSE_ONLY),
        };
        let output = parsed.output().expect("the program runs");
        if output.status.success() { Ok(()) } else { Err(text(&output.stderr)) }
    }
}

/// A process that runs until it is interrupted.
pub(super) struct Staying {
    child: Child,
}

impl Staying {
    /// Interrupts it like Ctrl-C, and returns its exit code.
    pub(super) fn interrupt(mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill runs").success());
        wait_for("the end of a command", PATIENCE, || self.child.try_wait().expect("a child can be waited for")).code()
    }
}

impl Drop for Staying {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program that runs in this folder, without settings of the machine.
fn command_in(folder: &Path, program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FLASH_INDEXER_")) {
        command.env_remove(name);
    }
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", folder.join("bin").display()));
    command.env("HOME", folder).current_dir(folder).stdin(Stdio::null());
    command
}

/// Writes the files that documented commands name, with the contents that the pages show, if they do.
fn write_files(folder: &Path, pages: &[Page]) {
    let write = |path: &str, content: &str| {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, content).expect("a file");
    };
    let shown = |page: &str, start: &str| -> String {
        let page = pages.iter().find(|candidate| candidate.path == page).expect("the page");
        let mut blocks = page.blocks().into_iter().map(|block| block.lines.join("\n"));
        blocks.find(|text| text.starts_with(start)).unwrap_or_else(|| panic!("no block that starts with {start:?}"))
    };
    write("engines.json", &shown("docs/operations.md", "[{\"instance_id\": \"gpu-1\""));
    write("jwks.json", &jwt_key_set(&[&JwtSigningKey::ed25519("e")]));
    write("limits.toml", &shown("docs/operations.md", "# flash-indexer serve --limits"));
    write("fleet.toml", &shown("docs/operations.md", "block-size = 16"));
    write("prompt.txt", &(1..=HELD_TOKENS).map(|token| token.to_string()).collect::<Vec<_>>().join(" "));
    let token = flash_indexer(&["token", "test", "--scope", "query,events,admin"]).output().expect("the program runs");
    write("tokens.toml", &text(&token.stdout));
    for secret in ["token", "peer-token", "password"] {
        write(secret, "a-secret-of-many-characters");
    }
    let model = ".cache/huggingface/hub/models--meta-llama--Llama-3.1-8B";
    write(&format!("{model}/refs/main"), "1");
    write(&format!("{model}/snapshots/1/tokenizer.json"), &tiny_tokenizer().to_string());
    let template = "{% for message in messages %}{{ message.content }} {% endfor %}";
    let config = json!({ "chat_template": template }).to_string();
    write(&format!("{model}/snapshots/1/tokenizer_config.json"), &config);
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        let content = std::fs::read_to_string(folder.join(model).join("snapshots/1").join(file)).expect("a file");
        write(&format!(".cache/huggingface/hub/llama-3-8b/{file}"), &content);
    }
    let authority = Authority::new();
    for (certificate, key) in [("tls.crt", "tls.key"), ("replica.crt", "replica.key")] {
        let issued = authority.issue(certificate);
        std::fs::copy(issued.certificate, folder.join(certificate)).expect("a file");
        std::fs::copy(issued.key, folder.join(key)).expect("a file");
    }
    for name in ["ca.crt", "ca.pem", "clients.crt"] {
        authority.write_to(&folder.join(name));
    }
    std::fs::create_dir_all(folder.join("bin")).expect("a folder");
    std::fs::create_dir_all(folder.join("target/release")).expect("a folder");
    for place in ["bin/flash-indexer", "target/release/flash-indexer"] {
        symlink(PROGRAM, folder.join(place)).expect("a link");
    }
    for name in ["scripts", "bench", "deploy"] {
        symlink(repository().join(name), folder.join(name)).expect("a link");
    }
    // An answer that is an error fails the command.
    write("bin/curl", "#!/bin/sh\nPATH=${PATH#*:} exec curl --silent --show-error --fail-with-body \"$@\"\n");
    std::fs::set_permissions(folder.join("bin/curl"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("a file");
}
