//! `--config`, `config check` and `config print`, as an operator runs them.

use std::process::{Command, Output};

use crate::support::{Serve, flash_indexer, run, text};

struct File {
    _directory: tempfile::TempDir,
    path: String,
}

fn file(settings: &str) -> File {
    let directory = tempfile::tempdir().expect("a folder");
    let path = directory.path().join("fleet.toml");
    std::fs::write(&path, settings).expect("a file");
    File { path: path.to_str().expect("text").to_owned(), _directory: directory }
}

fn checked(settings: &str) -> Output {
    run(&["config", "check", "--config", &file(settings).path])
}

/// The line of a setting in what `config print` prints.
fn line<'a>(printed: &'a str, name: &str) -> &'a str {
    let of_name = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(" ="));
    printed.lines().find(of_name).unwrap_or_else(|| panic!("{name} is missing: {printed}"))
}

#[test]
fn the_command_line_precedes_the_environment_which_precedes_the_file_which_precedes_the_defaults() {
    let file = file("port = 1\nthreads = 2\ndecoders = 3\nmodel-name = \"m\"\n");
    let mut command = flash_indexer(&["config", "print", "--config", &file.path, "--port", "9"]);
    let output = command.env("FLASH_INDEXER_PORT", "8").env("FLASH_INDEXER_THREADS", "7").output().expect("it runs");
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{printed}{}", text(&output.stderr));
    for (name, expected) in [
        ("port", "port = 9  # command line"),
        ("threads", "threads = 7  # environment"),
        ("decoders", "decoders = 3  # file"),
        ("model-name", "model-name = \"m\"  # file"),
        ("# host", "# host = \"127.0.0.1\"  # default"),
        ("# grpc-port", "# grpc-port ="),
    ] {
        assert_eq!(line(&printed, name), expected);
    }
}

#[test]
fn what_is_printed_is_a_file_with_the_same_settings() {
    let settings = "allow-ipc = true\nblock-size = 16\nworkers = [\"1=tcp://h:1\", \"2:1=tcp://h:2|replay=tcp://h:3\"]\n\
                    tier-weights = \"gpu=1.0,cpu=0.5\"\ngpt-oss-date = 2026-01-02\nmemory-max = \"2GiB\"\n\
                    otlp-endpoint = \"http://collector:4318\"\notlp-sample-ratio = 0.5\n";
    let print = |settings: &str| {
        let output = run(&["config", "print", "--config", &file(settings).path]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let values = |printed: &str| {
        let values = printed.lines().map(|line| line.split("  # ").next().unwrap_or_default().to_owned());
        values.collect::<Vec<_>>()
    };
    let printed = print(settings);
    assert_eq!(line(&printed, "workers"), "workers = [\"1=tcp://h:1\", \"2:1=tcp://h:2|replay=tcp://h:3\"]  # file");
    assert_eq!(line(&printed, "gpt-oss-date"), "gpt-oss-date = \"2026-01-02\"  # file");
    assert_eq!(values(&print(&printed)), values(&printed));
}

#[test]
fn the_service_uses_the_file_and_says_so() {
    let file = file("block-size = 16\nworkers = [\"a=tcp://127.0.0.1:9\"]\n");
    let serve = Serve::start(&["--config", &file.path]);
    assert_eq!(serve.get("/workers").1[0]["instance_id"], "a");
}

#[test]
fn a_wrong_setting_is_an_error_that_names_the_file_and_the_fix() {
    for (settings, expected) in [
        ("prot = 1", "there is no setting \"prot\"; did you mean \"port\"?"),
        ("memory_max = \"2GiB\"", "did you mean \"memory-max\"?"),
        ("config = \"other.toml\"", "there is no setting \"config\""),
        ("nonsense-of-another-program = 1", "see flash-indexer serve --help"),
        ("port = 99999", "99999"),
        ("port = [1, 2]", "port: give one value instead of a list"),
        ("allow-ipc = \"yes\"", "allow-ipc: give true or false"),
        ("[redis]\nurl = 1", "redis: give a value instead of a table"),
        ("port = ", "failed to parse the file"),
        ("otlp-endpoint = \"collector:4318\"", "expected one such as http://collector:4318"),
        ("otlp-endpoint = \"grpc://collector:4317\"", "usually 4318"),
        ("otlp-endpoint = \"http://c:1\"\notlp-sample-ratio = 1.5", "a number from 0 to 1"),
        ("workers = [\"a=tcp://h:1\"]", "--block-size"),
    ] {
        let output = checked(settings);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{settings}: {error}");
        assert!(error.contains(expected), "{settings}: {error}");
        assert!(error.contains("fleet.toml") || settings.starts_with("workers"), "{settings}: {error}");
    }
    let output = checked("block-size = 16\nworkers = [\"a\"]");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("expected instance_id"), "{}", text(&output.stderr));
    let output = run(&["serve", "--config", "/does/not/exist.toml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("/does/not/exist.toml"), "{}", text(&output.stderr));
}

#[test]
fn a_setting_that_may_have_a_password_is_not_printed() {
    let output = run(&["config", "print", "--redis", "redis://user:secret@127.0.0.1:1"]);
    let printed = text(&output.stdout);
    assert!(output.status.success() && printed.contains("# redis ="), "{printed}{}", text(&output.stderr));
    assert!(!printed.contains("secret"), "{printed}");
}

#[test]
fn packages_get_completions_and_manual_pages() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        assert!(output.status.success() && text(&output.stdout).contains("discovery-grace-s"), "{shell}");
    }
    let script = text(&run(&["completions", "bash"]).stdout);
    let complete = "f=$(complete -p flash-indexer); f=${f##*-F }; COMP_WORDS=(flash-indexer serve --demo-) COMP_CWORD=2
        ${f%% *} flash-indexer --demo- serve; echo ${COMPREPLY[@]}";
    let completed = Command::new("bash").args(["-c", &format!("{script}\n{complete}")]).output().expect("bash runs");
    assert_eq!(text(&completed.stdout), "--demo-engines --demo-seconds\n", "{}", text(&completed.stderr));
    let pages = tempfile::tempdir().expect("a folder");
    let output = run(&["man", pages.path().to_str().expect("text")]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = std::fs::read_to_string(pages.path().join("flash-indexer-serve.1")).expect("a page");
    assert!(page.contains("FLASH_INDEXER_CONFIG") || page.contains("FLASH\\_INDEXER\\_CONFIG"), "{page}");
    let version = text(&run(&["--version"]).stdout);
    assert!(version.starts_with(&format!("flash-indexer {} (", env!("CARGO_PKG_VERSION"))), "{version}");
}
