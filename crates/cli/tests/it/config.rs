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

/// The line of a setting in the output of `config print`.
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
        ("prot = 1\nblok-size = 16", "line 1: there is no setting \"prot\""),
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
        (
            "host = \"::1\"\nlog-format = \"xml\"",
            "line 2: invalid value 'xml' for '--log-format <LOG_FORMAT>' [possible values: text, json]",
        ),
        ("\n\n\"prot\" = 1", "line 3: there is no setting"),
        ("gpt-oss-date = \"x\"", "such as 2026-11-23"),
        ("gpt-oss-date = \"2026-02-30\"", "such as 2026-11-23"),
        ("port = 9\nworkers = [\"1=gpu\"]", "line 2: workers has no effect without --block-size"),
        ("jwt-keys = \"keys.json\"", "line 1: jwt-keys has no effect without --jwt-issuer"),
    ] {
        let output = checked(settings);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{settings}: {error}");
        assert!(error.contains(expected), "{settings}: {error}");
        assert!(error.contains("fleet.toml"), "{settings}: {error}");
        assert!(!error.contains("Usage:") && !error.contains("--help'"), "{settings}: {error}");
    }
    let output = checked("block-size = 16\nworkers = [\"a\"]");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("expected instance_id"), "{}", text(&output.stderr));
    // Errors that the options alone do not show.
    for (settings, expected) in [
        (
            "block-size = 16\nworkers = [\"1=tcp://h:1\", \"2=foo\"]",
            "fleet.toml: line 2: failed to register instance 2",
        ),
        ("host = \"0.0.0.0\"", "fleet.toml: line 1: --host 0.0.0.0 is reached"),
        ("port = 9000\ntoken-file = \"nope\"", "fleet.toml: line 2: failed to load"),
        ("prompt-text-bytes = \"1MiB\"", "fleet.toml: line 1: --prompt-text-bytes has no effect without"),
    ] {
        let error = text(&checked(settings).stderr).to_owned();
        assert!(error.contains(expected), "{settings}: {error}");
    }
    let output = run(&["serve", "--config", "/does/not/exist.toml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("/does/not/exist.toml"), "{}", text(&output.stderr));
}

/// The check refuses the settings that `serve` refuses before it binds an address, with the same error text.
#[test]
fn the_check_finds_what_the_start_would_refuse() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    for (name, text) in
        [("empty.toml", ""), ("keys.json", "{}"), ("no.pem", "no PEM"), ("limits.toml", "[default]\nrank = 1\n")]
    {
        std::fs::write(path(name), text).expect("a file");
    }
    let missing = |option: &str| format!("{option} = {:?}", path("missing"));
    let jwt = |file: &str| format!("jwt-keys = {:?}\njwt-issuer = \"i\"\njwt-audience = \"a\"", path(file));
    let tls = |certificate: &str| format!("tls-cert = {:?}\ntls-key = {:?}", path(certificate), path("missing"));
    for (settings, expected) in [
        ("listen-events = \"foo\"".to_owned(), "failed to bind \"foo\" for engines: it starts with neither"),
        ("listen-events = \"tcp://127.0.0.1:x\"".to_owned(), "give --listen-events an address such as"),
        ("block-size = 16\nworkers = \"a=foo\"".to_owned(), "failed to register instance a: invalid endpoint \"foo\""),
        (
            "block-size = 16\nworkers = [\"a=tcp://h:1\", \"a=tcp://h:2\"]".to_owned(),
            "is already registered with tcp://h:1",
        ),
        ("host = \"foo bar\"".to_owned(), "--host \"foo bar\" is neither an address nor the name of a host"),
        ("host = \"localhost:8090\"\ninsecure = true".to_owned(), "is neither an address nor the name of a host"),
        ("body-bytes-total-max = 1".to_owned(), "give at least twice --body-bytes-max"),
        ("grpc-port = 8090".to_owned(), "failed to listen on 127.0.0.1:8090: two options give this address"),
        (missing("token-file"), "failed to load the token file"),
        (format!("token-file = {:?}", path("empty.toml")), "failed to load the token file"),
        (missing("limits"), "missing: No such file"),
        (format!("limits = {:?}", path("limits.toml")), "rank"),
        (jwt("missing"), "missing: No such file"),
        (jwt("keys.json"), "keys.json: "),
        (tls("missing"), "failed to load the certificate"),
        (tls("no.pem"), "failed to load the certificate"),
        (missing("peer-token-file"), "failed to load the bearer token"),
        (missing("peer-ca"), "failed to load the certificate authorities"),
        (missing("otlp-ca") + "\notlp-endpoint = \"https://c:1\"", "failed to load the certificate authorities"),
        (missing("load"), "check --load"),
        (format!("state-dir = {:?}", path("no.pem")), "failed to open the state directory"),
    ] {
        let file = file(&settings);
        let checked = run(&["config", "check", &file.path]);
        let error = text(&checked.stderr);
        assert_eq!(checked.status.code(), Some(1), "{settings}: {error}");
        assert!(error.contains(expected), "{settings}: {error}");
        let served = run(&["serve", "--config", &file.path]);
        let refused = text(&served.stderr);
        assert_eq!(
            (served.status.code(), refused.lines().last()),
            (Some(1), error.lines().last()),
            "{settings}: {refused}"
        );
    }
    // A replica with snapshots or peers starts without the dump that it once began with.
    let kept = format!("{}\nstate-dir = {:?}", missing("load"), path("state"));
    assert!(checked(&kept).status.success(), "{}", text(&checked(&kept).stderr));
    assert!(!folder.path().join("state").exists(), "the check creates nothing");
}

#[test]
fn the_file_is_an_argument_or_an_option() {
    let file = file("port = 1\n");
    for arguments in [vec!["check", &file.path], vec!["check", "--config", &file.path], vec!["print", &file.path]] {
        let output = run(&[vec!["config"], arguments].concat());
        let printed = text(&output.stdout);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(printed.contains(&format!("{}: no error", file.path)) || line(&printed, "port") == "port = 1  # file");
    }
    let output = run(&["config", "check", &file.path, "--config", &file.path]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("FILE or --config FILE"), "{}", text(&output.stderr));
}

#[test]
fn a_misspelt_variable_is_an_error_of_the_check_and_a_warning_of_the_service() {
    let misspelt = "there is no setting FLASH_INDEXER_BLOK_SIZE; did you mean FLASH_INDEXER_BLOCK_SIZE?";
    let mut check = flash_indexer(&["config", "check"]);
    let output = check.env("FLASH_INDEXER_BLOK_SIZE", "16").output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains(misspelt), "{}", text(&output.stderr));
    let mut serve = flash_indexer(&["serve", "--load", "/does/not/exist"]);
    let output = serve.env("FLASH_INDEXER_BLOK_SIZE", "16").output().expect("it runs");
    assert!(text(&output.stderr).contains(misspelt), "{}", text(&output.stderr));
}

/// In a namespace with a Service named flash-indexer, Kubernetes sets these in every pod with service links.
#[test]
fn service_links_of_kubernetes_are_no_settings() {
    let links = |command: &mut Command| {
        for (name, value) in [
            ("FLASH_INDEXER_PORT", "tcp://10.0.0.1:8090"),
            ("FLASH_INDEXER_SERVICE_HOST", "10.0.0.1"),
            ("FLASH_INDEXER_SERVICE_PORT_HTTP", "8090"),
            ("FLASH_INDEXER_PORT_8090_TCP_ADDR", "10.0.0.1"),
            ("FLASH_INDEXER_PEERS_SERVICE_PORT", "8090"),
        ] {
            command.env(name, value);
        }
    };
    let mut check = flash_indexer(&["config", "check"]);
    links(&mut check);
    let output = check.output().expect("it runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let mut serve = flash_indexer(&["serve", "--load", "/does/not/exist"]);
    links(&mut serve);
    let output = serve.output().expect("it runs");
    let log = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "the dump alone is wrong: {log}");
    assert!(log.contains("ignoring FLASH_INDEXER_PORT") && log.contains("enableServiceLinks: false"), "{log}");
    assert!(!log.contains("there is no setting"), "{log}");
}

#[test]
fn a_setting_that_may_have_a_password_is_not_printed() {
    let worker = "1=http://user:secret@127.0.0.1:1";
    let store = "redis://user:secret@127.0.0.1:1";
    let output = run(&["config", "print", "--redis", store, "--workers", worker, "--block-size", "16"]);
    let printed = text(&output.stdout);
    let are_named = printed.contains("# redis =") && printed.contains("# workers =");
    assert!(output.status.success() && are_named, "{printed}{}", text(&output.stderr));
    assert!(!printed.contains("secret"), "{printed}");
    for wrong in ["redis://user:secret@127.0.0.1:9999999/0", "redis://user:pass/secret@127.0.0.1:1"] {
        let mut command = flash_indexer(&["config", "check"]);
        let error = text(&command.env("FLASH_INDEXER_REDIS", wrong).output().expect("it runs").stderr);
        assert!(error.contains("FLASH_INDEXER_REDIS: invalid value 'redis://…@127.0.0.1:"), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
    for settings in ["redis = \"redis://user:secret@127.0.0.1:1", "redis = \"redis://user:secret@127.0.0.1:x\""] {
        let error = text(&checked(settings).stderr);
        assert!(error.contains("line 1") && !error.contains("secret"), "{error}");
    }
}

/// A malformed address has its password at a different place than a correct one.
#[test]
fn a_password_in_a_malformed_address_is_not_printed() {
    for (wrong, shown) in [
        ("u:secret@127.0.0.1:1", "…@127.0.0.1:1"),
        (":secret@h:1", "…@h:1"),
        ("redis:/u:secret@h", "…@h"),
        ("redis:u:secret@h", "…@h"),
        ("redis+cluster//u:secret@h", "…@h"),
        ("redsi://u:secret@h", "…@h"),
        ("redis+ring://u:secret@h", "…@h"),
        ("redis://h/?password=secret", "redis://h/?…"),
        ("redis://h?password=secret", "redis://h?…"),
        ("redis+sentinel://h/main?password=secret", "redis+sentinel://h/main?…"),
        ("redis://u:se cret secret@h:x", "redis://…@h:x"),
        ("redis://u:12/secret@h", "redis://…@h"),
        ("redis://u:secret", "…"),
        ("u:secret", "…"),
    ] {
        let mut by_variable = flash_indexer(&["config", "check"]);
        by_variable.env("FLASH_INDEXER_REDIS", wrong);
        let by_option = flash_indexer(&["config", "check", "--redis", wrong]);
        let file = file(&format!("redis = {wrong:?}"));
        let by_file = flash_indexer(&["config", "check", &file.path]);
        for mut command in [by_variable, by_option, by_file] {
            let output = command.output().expect("it runs");
            let error = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{wrong}: {error}");
            assert!(error.contains(&format!("invalid value '{shown}' for '--redis <URL>'")), "{wrong}: {error}");
            assert!(!error.contains("secret"), "{wrong}: {error}");
        }
    }
    for arguments in [&["--redis", "redis://h", "u:secret@h"][..], &["--peers", "u:secret@h/"], &["--redsi=u:secret@h"]]
    {
        let output = run(&[&["serve"], arguments].concat());
        let error = text(&output.stderr);
        assert!(output.status.code() == Some(2) && !error.contains("secret"), "{arguments:?}: {error}");
    }
    let error = text(&checked("secret = 1\nsecret = 2").stderr);
    assert!(error.contains("line 2: duplicate key") && !error.contains("secret"), "{error}");
}

#[test]
fn a_wrong_variable_is_named() {
    for (name, value) in [("FLASH_INDEXER_PORT", "x"), ("FLASH_INDEXER_ALLOW_IPC", "maybe")] {
        let output = flash_indexer(&["config", "check"]).env(name, value).output().expect("it runs");
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(&format!("{name}: invalid value '{value}'")), "{error}");
    }
    let output =
        flash_indexer(&["config", "check", "--port", "y"]).env("FLASH_INDEXER_PORT", "1").output().expect("it runs");
    assert!(!text(&output.stderr).contains("FLASH_INDEXER_PORT"), "{}", text(&output.stderr));
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
