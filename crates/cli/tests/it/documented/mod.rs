//! Commands and options in README.md and the other pages: each command of a block `sh` runs here, or is listed with the reason
//! why it does not.
//!
//! | module | role |
//! |---|---|
//! | `pages` | the commands and options of the pages |
//! | `links` | links between pages |
//! | `world` | the hosts, files, engines and services that they name |

mod links;
mod pages;
mod world;

use std::collections::{BTreeMap, BTreeSet};

use self::Treatment::{Ends, NotRun, Parses, Serves, Stays};
use self::pages::{Page, ShellCommand, pages, repository};
use self::world::World;
use crate::support::{Serve, run, text};

/// Treatment of a command by the test.
#[derive(Clone, Copy)]
enum Treatment {
    /// Runs to a successful end.
    Ends { with: &'static str },
    /// Starts a service, which listens, and stops at the end of the block.
    Serves { with: &'static str },
    /// Runs until it is interrupted at the end of the block.
    Stays { with: &'static str },
    /// The program's own parser accepts it. The reason why it does not run.
    Parses(&'static str),
    /// A command of another program, or a build. The reason why it does not run. The packages, scripts and JSON that it names
    /// are checked.
    NotRun(&'static str),
}

const RUN: Treatment = Ends { with: "" };
const SERVE: Treatment = Serves { with: "" };
const BUILD: Treatment = NotRun("a build, as the one of this test");
const GPU: Treatment = NotRun("an engine, which needs a model and a GPU; docs/engines.md says how each was tested");
const ROOT: Treatment = NotRun("installs on the machine; scripts/test-packages tests the unit and the package's files");
const CLUSTER: Treatment = NotRun("needs a cluster; scripts/test-packages renders the chart and runs its commands");

/// Commands by their beginning; the longest match counts. `with` is appended, to keep a command on loopback and end it in time.
const TREATMENTS: &[(&str, Treatment)] = &[
    ("flash-indexer serve", SERVE),
    ("flash-indexer simulate --register", Ends { with: "--host 127.0.0.1 --requests 100" }),
    ("flash-indexer simulate --connect", Stays { with: "--host 127.0.0.1 --requests 20" }),
    ("flash-indexer query", RUN),
    (
        "flash-indexer query --tokens",
        Parses("its token is not the one made before; crates/server/tests have requests with tokens"),
    ),
    ("flash-indexer explain", RUN),
    ("flash-indexer doctor", RUN),
    ("flash-indexer dump", RUN),
    ("flash-indexer diff", RUN),
    ("flash-indexer token", RUN),
    ("flash-indexer curve-key", RUN),
    ("flash-indexer relay", Parses("follows the engine of its host; crates/ingest/src/tests/relay.rs runs relays")),
    ("curl", RUN),
    (
        "curl -X POST localhost:8090/register -d '{\"instance_id\": 1, \"endpoint\": \"vllm:",
        NotRun("asks the engine; crates/server/tests/service/discovery.rs has a stand-in of its server"),
    ),
    ("prompt=", NotRun("a variable of the shell for the engine's prompt")),
    ("curl localhost:8000", GPU),
    ("curl localhost:8090/score_completions -d \"", NotRun("the score of the prompt that the engine got")),
    ("python3 -c", RUN),
    ("zstd", RUN),
    // The name server and the API server would not be those on loopback.
    (
        "flash-indexer serve --block-size 16 --model-name llama-3-8b --discovery-dns",
        Serves { with: "--discovery-dns-server 127.0.0.1:9" },
    ),
    (
        "flash-indexer serve --block-size 16 --model-name llama-3-8b --discovery-kubernetes",
        Serves { with: "--discovery-kubernetes-api http://127.0.0.1:9" },
    ),
    (
        "flash-indexer serve --host 0.0.0.0 --endpoint-picker-bind",
        Serves { with: "--discovery-kubernetes-api http://127.0.0.1:9" },
    ),
    ("flash-indexer serve --redis rediss:", Parses("a server with TLS; crates/redis/tests run one")),
    ("flash-indexer serve --redis redis+cluster:", Parses("a cluster; crates/redis/tests run one")),
    ("flash-indexer serve --redis redis+sentinel:", Parses("sentinels; crates/redis/tests run one")),
    (
        "flash-indexer query --url https:",
        Parses("its host is in no certificate; commands_reach_a_service_inside_tls runs it"),
    ),
    (
        "flash-indexer serve --jwt-keys",
        Parses("has no issuer; crates/server/tests/service/jwt.rs runs the service with one"),
    ),
    (
        "flash-indexer serve --tokenizer-hub",
        if cfg!(feature = "hub") { SERVE } else { NotRun("needs the feature hub") },
    ),
    ("flash-indexer replay --verify", Parses("replays for a minute; tests/it/replay.rs runs it with fewer requests")),
    ("flash-indexer bench", Parses("measures for minutes; tests/it/replay.rs runs it with fewer requests")),
    ("scripts/demo", NotRun("a build, then the demo: the_demo_prints_a_row_a_second_and_ends")),
    ("scripts/test", NotRun("runs this test")),
    ("scripts/build-deb", NotRun("a release build; its files are those of the completions and the manual pages")),
    ("bench/run", NotRun("measures other projects' indexes for an hour, and builds them")),
    ("cargo build", BUILD),
    ("cargo run -p flash-indexer-simulator", NotRun("a build; crates/simulator/tests runs seeds")),
    ("cargo run -p flash-indexer-examples --example publish", NotRun("a build; engines of this test publish the same")),
    ("cargo test -p", NotRun("runs tests beside this one")),
    ("RUSTFLAGS=\"--cfg loom\" cargo test -p flash-indexer-core", NotRun("scripts/test runs it in CI")),
    ("scripts/fuzz", NotRun("a build of minutes; scripts/test runs it in CI")),
    ("target/fuzz/*/release/stream_histories", NotRun("scripts/fuzz builds it")),
    ("python3 -m venv .venv", NotRun("scripts/test-python makes one")),
    (".venv/bin/pip install ./clients/python", NotRun("scripts/test-python does it")),
    ("pip install ./clients/python", NotRun("scripts/test-python does it")),
    (".venv/bin/python clients/python/examples/first_score.py", NotRun("clients/python/tests/test_readme.py runs it")),
    ("vllm serve", GPU),
    ("python -m sglang.launch_server", GPU),
    ("trtllm-serve", GPU),
    ("pip install smg-grpc-servicer[vllm]", GPU),
    ("pip install maturin", NotRun("scripts/test-native does it")),
    ("maturin build", NotRun("scripts/test-native does it")),
    ("pip install target/wheels", NotRun("scripts/test-native does it")),
    ("cc clients/c/examples/router.c", NotRun("clients/c/tests compile it, in scripts/test-native")),
    ("go mod edit", NotRun("a path that the reader chooses; scripts/test-go builds the module")),
    ("grpcurl", NotRun("another program; crates/server/tests/service calls the same methods and reflection")),
    ("helm template", CLUSTER),
    ("helm install", CLUSTER),
    ("kubectl create secret", CLUSTER),
    ("docker", NotRun("needs a container engine; scripts/test-packages reads the Dockerfile")),
    ("install ", ROOT),
    ("systemd-sysusers", ROOT),
    ("systemctl enable", ROOT),
    ("apt-get install ./target/debian", ROOT),
];

fn treatment(command: &str) -> Option<&'static (&'static str, Treatment)> {
    TREATMENTS.iter().filter(|(start, _)| command.starts_with(start)).max_by_key(|(start, _)| start.len())
}

/// Processes that a block has started.
#[derive(Default)]
struct Started {
    services: Vec<Serve>,
    staying: Vec<world::Staying>,
}

impl Started {
    fn stop(self) -> Result<(), String> {
        let staying = self.staying.into_iter().map(world::Staying::interrupt);
        let services = self.services.into_iter().map(|service| service.stop_with("-TERM"));
        let codes: Vec<_> = staying.chain(services).collect();
        if codes.iter().all(|&code| code == Some(0)) { Ok(()) } else { Err(format!("exit codes {codes:?}")) }
    }
}

fn check(command: &ShellCommand, world: &World, started: &mut Started, asks_later: bool) -> Result<(), String> {
    let normalized = command.normalized();
    let Some((_, treatment)) = treatment(&normalized) else {
        return Err("the command is new: add it to TREATMENTS, to be run or with a reason".to_owned());
    };
    match *treatment {
        Ends { with } => drop(world.run(&format!("{} {with}", command.text))?),
        Stays { with } => started.staying.push(world.stay(&format!("{} {with}", command.text))),
        Serves { with } => {
            let service = world.serve(&format!("{} {with}", command.text));
            // The page describes registered engines, and engines imported from a peer.
            if command.text.contains("--peers") && asks_later {
                service.wait_until_ready();
            } else if asks_later
                && !["--token-file", "--tls-", "--discovery"].iter().any(|part| command.text.contains(part))
            {
                world.register_engines(&service);
            }
            started.services.push(service);
        }
        Parses(reason) => world.parse(&normalized).map_err(|error| format!("{error}    not run: {reason}"))?,
        NotRun(reason) => check_names(&command.text).map_err(|error| format!("{error}\n    not run: {reason}"))?,
    }
    Ok(())
}

/// Checks the scripts, packages, files and JSON that a command of another program names.
fn check_names(command: &str) -> Result<(), String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let exists = |path: &str| match repository().join(path).exists() {
        true => Ok(()),
        false => Err(format!("{path} does not exist")),
    };
    for pair in words.windows(2) {
        match pair {
            ["-p" | "--package", package] => {
                let name = package.strip_prefix("flash-indexer-").unwrap_or(package);
                let is_client = name == "c" && exists("clients/c/Cargo.toml").is_ok();
                let is_example = name == "examples" && exists("examples/Cargo.toml").is_ok();
                if !is_client && !is_example {
                    exists(&format!("crates/{name}/Cargo.toml"))?;
                }
            }
            ["--manifest-path" | "--file" | "-I", path] => exists(path)?,
            ["--example", name] if command.contains("flash-indexer-examples") => {
                exists(&format!("examples/{name}.rs"))?
            }
            _ => {}
        }
    }
    let is_of_repository =
        |word: &&&str| ["scripts/", "bench/run", "deploy/", "clients/"].iter().any(|start| word.starts_with(start));
    words.iter().filter(is_of_repository).try_for_each(|path| exists(path))?;
    let json = command.split('\'').skip(1).step_by(2).filter(|text| text.starts_with('{'));
    for text in json {
        serde_json::from_str::<serde_json::Value>(text).map_err(|error| format!("{text}: {error}"))?;
    }
    Ok(())
}

fn check_pages(is_checked: impl Fn(&str) -> bool) {
    let pages = pages();
    let checked: Vec<&Page> = pages.iter().filter(|page| is_checked(&page.path)).collect();
    let (mut failures, mut commands) = (Vec::new(), 0);
    for page in checked {
        let blocks = page.shell_blocks();
        if blocks.is_empty() {
            continue;
        }
        let world = World::new(&pages);
        for block in blocks {
            world.begin_block();
            let mut started = Started::default();
            for (at, command) in block.iter().enumerate() {
                commands += 1;
                // Shown with a panic, such as that of a service that does not listen.
                println!("{}: {}", command.place, command.text);
                let is_question = |later: &ShellCommand| !later.normalized().starts_with("flash-indexer serve");
                let asks_later = block[at + 1..].iter().any(is_question);
                if let Err(error) = check(command, &world, &mut started, asks_later) {
                    failures.push(format!("{}: {}\n    {error}", command.place, command.text));
                }
            }
            if let Err(error) = started.stop() {
                failures.push(format!("{}: {error}", block[0].place));
            }
        }
    }
    assert!(commands > 0, "no command was read");
    assert!(failures.is_empty(), "documented commands fail:\n{}", failures.join("\n"));
}

const OPERATIONS: &str = "docs/operations.md";

#[test]
fn commands_of_the_readme_run() {
    check_pages(|page| page == "README.md");
}

#[test]
fn commands_of_operations_run() {
    check_pages(|page| page == OPERATIONS);
}

#[test]
fn commands_of_the_other_pages_run() {
    check_pages(|page| page != "README.md" && page != OPERATIONS);
}

#[test]
fn each_treatment_has_a_command() {
    let pages = pages();
    let commands = pages.iter().flat_map(Page::shell_blocks).flatten();
    let used: BTreeSet<_> = commands.filter_map(|command| Some(treatment(&command.normalized())?.0)).collect();
    let unused: Vec<_> = TREATMENTS.iter().map(|(start, _)| start).filter(|start| !used.contains(*start)).collect();
    assert!(unused.is_empty(), "no page has these commands any more: {unused:#?}");
}

#[test]
fn each_block_has_a_language() {
    const LANGUAGES: [&str; 8] = ["sh", "text", "json", "yaml", "toml", "python", "go", "c"];
    for page in pages() {
        for block in page.blocks() {
            let is_known = LANGUAGES.contains(&block.language.as_str());
            assert!(is_known, "{}:{}: write ```sh for commands, ```text for drawings", page.path, block.line);
        }
    }
}

#[test]
fn table_cells_have_at_most_two_lines() {
    const CHARACTERS_MAX: usize = 200;
    // Help texts and descriptions of fields are also used in other places.
    let is_of_help =
        |page: &&Page| ["docs/reference/commands.md", "docs/reference/endpoints.md"].contains(&&*page.path);
    for page in pages().iter().filter(|page| !is_of_help(page)) {
        for (line, cell) in page.cells() {
            let count = cell.chars().count();
            assert!(count <= CHARACTERS_MAX, "{}:{line}: a cell has {count} characters: {cell}", page.path);
        }
    }
}

#[test]
fn examples_of_the_help_parse() {
    let world = World::new(&pages());
    world.run("touch fleet.zst").expect("a file");
    let mut wrong = Vec::new();
    for command in COMMANDS {
        let help = text(&run(&[command, "--help"]).stdout);
        for example in help.lines().map(str::trim).filter(|line| line.starts_with("flash-indexer ")) {
            if let Err(error) = world.parse(example) {
                wrong.push(format!("{example}\n    {error}"));
            }
        }
    }
    assert!(wrong.is_empty(), "examples that fail:\n{}", wrong.join("\n"));
}

const COMMANDS: [&str; 15] = [
    "serve",
    "simulate",
    "relay",
    "curve-key",
    "query",
    "explain",
    "doctor",
    "token",
    "dump",
    "diff",
    "replay",
    "bench",
    "config",
    "completions",
    "man",
];

/// Options of other programs that pages name, with their programs.
const FOREIGN_OPTIONS: &[(&str, &str)] = &[
    ("--chat-template", "vLLM, SGLang"),
    ("--chat-template-content-format", "vLLM"),
    ("--completion-template", "SGLang"),
    ("--default-chat-template-kwargs", "vLLM"),
    ("--dry-run", "kubectl"),
    ("--from-file", "kubectl"),
    ("--enable-prompt-tokens-details", "vLLM"),
    ("--kv-events-config", "vLLM, SGLang"),
    ("--lora-modules", "vLLM"),
    ("--page-size", "SGLang"),
    ("--prefix-caching-hash-algo", "vLLM"),
    ("--build-arg", "docker"),
    ("--strict", "helm"),
    ("--verbose", "the simulator"),
    ("--format", "git"),
];

/// Options by command of the program.
fn options() -> BTreeMap<&'static str, BTreeSet<String>> {
    let of = |command: &'static str| {
        let help = if command == "config" { run(&["config", "print", "--help"]) } else { run(&[command, "--help"]) };
        let help = text(&help.stdout);
        // A line of an option begins with it; other lines may name one that does not exist.
        let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
        let options = lines.flat_map(|line| line.split_once("--").map(|(_, option)| option));
        let names = options.map(|option| option.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').next());
        (command, names.flatten().map(|name| format!("--{name}")).collect::<BTreeSet<_>>())
    };
    COMMANDS.into_iter().map(of).collect()
}

#[test]
fn each_named_option_exists() {
    // These name options of the past.
    let is_history = |path: &str| path == "CHANGELOG.md" || path.starts_with("docs/decisions/");
    // These name options of their own programs.
    let has_others = |path: &str| {
        ["fuzz/", "crates/", "clients/", "testdata/", "CONTRIBUTING.md", "BENCHMARKS.md", "docs/benchmarks/"]
            .iter()
            .any(|start| path.starts_with(start))
    };
    let options = options();
    let mut wrong = Vec::new();
    let pages: Vec<Page> =
        pages().into_iter().filter(|page| !is_history(&page.path) && !has_others(&page.path)).collect();
    for page in &pages {
        for span in page.code_spans() {
            let words: Vec<&str> = span.split(' ').collect();
            let command = words.iter().find_map(|word| options.get_key_value(word));
            let is_command = words[0] == "flash-indexer" || options.contains_key(words[0]);
            for word in words.iter().filter(|word| word.starts_with("--") && word.len() > 2) {
                let option = word.split(|c: char| c != '-' && !c.is_ascii_alphanumeric()).next().unwrap_or_default();
                let exists = match command.filter(|_| is_command) {
                    Some((_, options)) => options.contains(option),
                    None => options.values().any(|options| options.contains(option)),
                };
                // A program without the feature hub lacks its options.
                let is_foreign = option.starts_with("--tokenizer-hub")
                    || FOREIGN_OPTIONS.iter().any(|(foreign, _)| *foreign == option);
                if !exists && !is_foreign {
                    wrong.push(format!("{}: {option} in `{span}`", page.path));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "options that do not exist:\n{}", wrong.join("\n"));
    let spans: Vec<String> = pages.iter().flat_map(Page::code_spans).collect();
    let is_named = |option: &str| spans.iter().any(|span| span.split([' ', '=']).any(|word| word == option));
    let unused: Vec<_> = FOREIGN_OPTIONS.iter().filter(|(option, _)| !is_named(option)).collect();
    assert!(unused.is_empty(), "no page names {unused:?}");
}

#[test]
fn the_reference_is_that_of_the_program() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = run(&["reference", folder.path().to_str().expect("text")]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for name in ["commands.md", "endpoints.md", "openapi.json", "metrics.md", "reasons.md"] {
        let written = std::fs::read_to_string(folder.path().join(name)).expect("a page");
        let committed = std::fs::read_to_string(repository().join("docs/reference").join(name)).expect("a page");
        assert!(written == committed, "{name} is stale: run `flash-indexer reference docs/reference`");
    }
}

#[test]
fn operations_names_metrics_and_reasons_of_the_reference() {
    let read = |path: &str| std::fs::read_to_string(repository().join(path)).expect("a page");
    let reference = read("docs/reference/metrics.md") + &read("docs/reference/reasons.md");
    let operations = read("docs/operations.md");
    let tables = operations.split("\n## Metrics\n").nth(1).expect("the section");
    let first_cells = tables.lines().filter(|line| line.starts_with("| `")).filter_map(|line| line.split(" | ").next());
    let names: Vec<&str> = first_cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert!(names.len() > 100, "{names:?}");
    let listed = |name: &str| {
        let (label, value) = name.split_once('=').unwrap_or(("", name));
        [label, value.trim_matches('"')].iter().all(|part| part.is_empty() || reference.contains(&format!("`{part}`")))
    };
    let unknown: Vec<_> = names.into_iter().filter(|name| !listed(name)).collect();
    assert!(unknown.is_empty(), "neither a metric nor a reason: {unknown:?}");
}
