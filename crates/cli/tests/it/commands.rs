//! The commands, as an operator runs them.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{PATIENCE, Serve, flash_indexer, hybrid_service, run, text};
use flash_indexer_test_support::{Authority, IssuedFiles, tiny_tokenizer, wait_for};
use serde_json::{Value, json};

#[test]
fn the_demo_prints_a_row_a_second_and_ends() {
    let output = run(&["serve", "--demo", "--demo-seconds", "3", "--port", "0"]);
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}{}", text(&output.stderr));
    let mut lines = shown.lines().skip_while(|line| !line.starts_with("workers"));
    assert!(lines.next().is_some_and(|header| header.contains("hit predicted")), "{shown}");
    let rows: Vec<Vec<f64>> = lines
        .map(|row| row.split_whitespace().map(|cell| cell.trim_end_matches('%').parse().expect("a figure")).collect())
        .collect();
    assert!(rows.len() >= 2, "{shown}");
    let last = rows.last().expect("a row");
    assert_eq!((last.len(), last[0]), (8, 4.0), "{shown}");
    assert!(last[1..].iter().all(|&figure| figure > 0.0), "a figure is missing: {shown}");
}

#[test]
fn the_demo_answers_a_first_query() {
    let mut demo = flash_indexer(&["serve", "--demo", "--port", "0"]);
    demo.stdout(Stdio::null());
    let serve = Serve::started_by(demo);
    let prompt = json!({ "model": "demo", "detail": true, "token_ids": (1..=64).collect::<Vec<u32>>() });
    let score = wait_for("a score of the first engine", PATIENCE, || {
        let (status, scores) = serve.post("/score_completions", &prompt);
        (status == 200 && scores["pods"]["1"]["score"] == json!(4.0)).then_some(scores)
    });
    assert_eq!(score["pods"]["1"]["trust"], json!("exact"));
    assert_eq!(serve.stop_with("-INT"), Some(0));
}

#[test]
fn the_program_alone_names_the_first_steps() {
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("First steps:\n  flash-indexer serve --demo"), "{}", text(&output.stderr));
}

#[test]
fn sigterm_and_ctrl_c_stop_the_service_cleanly() {
    for signal in ["-TERM", "-INT"] {
        let serve = Serve::start(&["--workers", "1=tcp://127.0.0.1:9,2:1=tcp://127.0.0.1:9", "--block-size", "16"]);
        assert_eq!(serve.stop_with(signal), Some(0), "{signal}");
    }
}

#[test]
fn a_log_that_is_not_read_stops_no_request_and_not_the_end() {
    let serve = Serve::start_with_unread_log();
    wait_for("dropped log lines", PATIENCE, || {
        (0..100).for_each(|_| assert_eq!(serve.get("/health").0, 200));
        (serve.metric("flash_indexer_log_lines_dropped_total") > 0.0).then_some(())
    });
    assert_eq!(serve.stop_with("-TERM"), Some(0));
}

#[test]
fn workers_option_sets_replay_endpoints() {
    let workers = "a=tcp://127.0.0.1:9|replay=tcp://127.0.0.1:10,b:1=tcp://127.0.0.1:9";
    let serve = Serve::start(&["--workers", workers, "--block-size", "16"]);
    let (_, listed) = serve.get("/workers");
    let replay = |worker: usize, rank: &str| listed[worker]["listeners"][rank]["replay_endpoint"].clone();
    assert_eq!(replay(0, "0"), json!("tcp://127.0.0.1:10"));
    assert_eq!((replay(1, "1"), listed[1]["endpoints"]["1"].clone()), (Value::Null, "tcp://127.0.0.1:9".into()));
    for wrong in ["a", "a=tcp://h:1|tcp://h:2", "a=tcp://h:1|replay=tcp://h:2|replay=tcp://h:3", "a=tcp://h:1|replay="]
    {
        let output = run(&["serve", "--port", "0", "--block-size", "16", "--workers", wrong]);
        assert_eq!(output.status.code(), Some(1), "{wrong}");
        let error = text(&output.stderr);
        assert!(
            error.contains("|replay=") || ["tcp://host:5557", "tcp://host:6557"].iter().any(|fix| error.contains(fix)),
            "{wrong}: {error}"
        );
    }
}

#[test]
fn prompts_of_gpt_oss_have_the_date_that_is_configured() {
    let models = tempfile::tempdir().expect("a folder");
    let model = models.path().join("m");
    std::fs::create_dir(&model).expect("a folder");
    std::fs::write(model.join("tokenizer.json"), tiny_tokenizer().to_string()).expect("a tokenizer");
    std::fs::write(model.join("config.json"), "{\"model_type\": \"gpt_oss\"}").expect("a configuration");
    let directory = models.path().to_str().expect("a path");
    let serve = Serve::start(&["--tokenizer-dir", directory, "--gpt-oss-date", "2026-01-02"]);
    let request = json!({ "model": "m", "messages": [{ "role": "user", "content": "one" }] });
    let (status, answer) = serve.post("/render", &request);
    let prompt = answer["prompt"].as_str().unwrap_or_default();
    assert!(status == 200 && prompt.contains("\nCurrent date: 2026-01-02\n"), "{status} {answer}");
    let output = run(&["serve", "--port", "0", "--gpt-oss-date", "x"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("such as 2026-11-23"), "{}", text(&output.stderr));
}

#[test]
fn query_prints_a_table_or_json() {
    let serve = Serve::start(&[]);
    let mut engines = flash_indexer(&["simulate", "--engines", "2", "--requests", "20", "--stay"])
        .args(["--port", "0", "--replay-port", "0", "--register", &serve.url, "--model-name", "m"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program runs");
    let query =
        |more: &[&str]| run(&[&["query", "--url", &serve.url, "--model", "m", "--tokens", "1,2,3"], more].concat());
    let table = wait_for("a table", PATIENCE, || {
        let output = query(&[]);
        let shown = text(&output.stdout);
        let held = shown.lines().filter(|line| line.contains("exact")).count();
        (output.status.success() && held == 2).then_some(shown)
    });
    assert!(table.starts_with("matched tokens of 3\n") && table.contains("instance"), "{table}");
    let json = text(&query(&["--json"]).stdout);
    let answer: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(answer["scores"]["1"]["0"], json!(0));
    engines.kill().expect("it is still there");
    engines.wait().expect("it ends");
}

#[test]
fn a_password_in_a_url_is_not_printed() {
    let serve = Serve::start(&[]);
    let with_user = |url: &str| url.replace("http://", "http://user:secret@");
    let url = with_user(&serve.url);
    let shows_url = |arguments: &[&str]| {
        let output = run(arguments);
        let shown = text(&output.stdout) + &text(&output.stderr);
        assert!(!shown.contains("secret"), "{arguments:?}: {shown}");
        shown.contains("…@")
    };
    // Nothing listens there, and the scheme is missing.
    for url in [&with_user("http://127.0.0.1:9"), "user:secret@127.0.0.1:9"] {
        for command in [
            &["query", "--model", "m", "--tokens", "1"][..],
            &["explain", "--model", "m", "--tokens", "1"],
            &["dump", "--model", "m"],
            &["doctor"],
        ] {
            assert!(shows_url(&[command, &["--url", url]].concat()), "{command:?} {url}");
        }
        assert!(shows_url(&["diff", url, url]));
        assert!(shows_url(&["simulate", "--port", "0", "--replay-port", "0", "--register", url]));
    }
    for arguments in [
        &["dump", "--model", "m", "--url", &url][..],
        &["query", "--model", "m", "--tokens", "1", "--url", &format!("{url}/nothing")],
        &["doctor", &url],
        &["doctor", &url, "--json", "--engine-url", &url],
    ] {
        shows_url(arguments);
    }
    assert!(shows_url(&["diff", &url, &url]), "it names both services");
    let mut help = flash_indexer(&["query", "--help"]);
    let help = text(&help.env("FLASH_INDEXER_URL", &url).output().expect("it runs").stdout);
    assert!(help.contains("FLASH_INDEXER_URL") && !help.contains("secret"), "{help}");
}

#[test]
fn engines_that_connect_are_listed_and_predicted() {
    let path = std::env::temp_dir().join(format!("flash-indexer-pods-{}", std::process::id()));
    let address = format!("ipc://{}", path.display());
    let serve = Serve::start(&["--listen-events", &address, "--decoders", "2", "--pod-models", "m*"]);
    let engines = ["simulate", "--connect", &address, "--replay-port", "0", "--engines", "3", "--model-name", "m"];
    let output = run(&[&engines[..], &["--requests", "60", "--register", &serve.url, "--verify"]].concat());
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}{}", text(&output.stderr));
    assert!(shown.contains("predictions: 60 equal, 0 different"), "{shown}");

    // Without --register they register themselves by their topics.
    let mut engines = flash_indexer(&[&engines[..], &["--requests", "6", "--stay"]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program runs");
    wait_for("three pods", PATIENCE, || {
        let output = run(&["query", "--url", &serve.url, "--model", "m", "--tokens", "1,2,3"]);
        (text(&output.stdout).lines().filter(|line| line.contains("exact")).count() == 3).then_some(())
    });
    engines.kill().expect("it is still there");
    engines.wait().expect("it ends");
    // A killed service leaves its socket.
    let _ = std::fs::remove_file(path);
}

#[test]
fn explain_prints_a_table_or_json() {
    let serve = Serve::start(&["--workers", "a=tcp://127.0.0.1:9", "--block-size", "4", "--model-name", "m"]);
    let explain =
        |more: &[&str]| run(&[&["explain", "--url", &serve.url, "--model", "m", "--tokens", "1,2,3,4"], more].concat());
    let table = text(&explain(&[]).stdout);
    assert!(table.starts_with("4 tokens, 1 block;") && table.contains("no message was received"), "{table}");
    let table = text(&explain(&["--instance", "b"]).stdout);
    assert!(table.contains("GET /workers"), "{table}");
    let json: serde_json::Value = serde_json::from_str(&text(&explain(&["--json"]).stdout)).expect("JSON");
    assert_eq!(json["ranks"][0]["ends"][0]["reason"], json!("cold"));
}

#[test]
fn explain_lists_the_missing_blocks_of_a_cache_group() {
    let (serve, _engine) = hybrid_service(&[3]);
    let output = run(&["explain", "--url", &serve.url, "--model", "m", "--tokens", "1,0,2,0,3,0,7"]);
    let table = text(&output.stdout);
    assert!(table.contains("cache group 0, which needs the last 2, lacks 1: 1"), "{table}");
    let missing = table.lines().find(|line| line.contains("missing in cache group 0")).expect("a row");
    assert!(missing.contains("0x0000000000000002"), "the engine's hash of the block: {table}");
}

#[test]
fn compat_metrics_are_exported_only_on_request() {
    let get = |url: &str, path: &str| {
        let mut response = ureq::get(format!("{url}{path}")).call().expect("an answer");
        response.body_mut().read_to_string().expect("text")
    };
    let mut options = vec!["--compat-metrics", "--frequency-window-s", "60"];
    options.extend(["--workers", "a=tcp://127.0.0.1:9", "--block-size", "4"]);
    let serve = Serve::start(&options);
    assert!(get(&serve.url, "/metrics").contains("\ndynamo_kvindexer_workers 1\n"));
    assert!(!get(&Serve::start(&[]).url, "/metrics").contains("dynamo_kvindexer_"));
}

#[test]
fn stopped_engines_are_unregistered() {
    let serve = Serve::start(&[]);
    let workers = || -> Vec<serde_json::Value> {
        let mut response = ureq::get(format!("{}/workers", serve.url)).call().expect("an answer");
        response.body_mut().read_json().expect("JSON")
    };
    let mut engines = flash_indexer(&["simulate", "--engines", "2", "--requests", "100000", "--speed", "1"])
        .args(["--port", "0", "--replay-port", "0", "--register", &serve.url])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program runs");
    wait_for("two engines", PATIENCE, || (workers().len() == 2).then_some(()));
    let pid = engines.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs").success());
    wait_for("the end of the engines", PATIENCE, || engines.try_wait().expect("a child can be waited for"));
    assert!(workers().is_empty());
}

#[test]
fn tokens_are_read_from_a_file_in_several_formats() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tokens");
    let path = file.to_str().expect("a path of text");
    let serve = Serve::start(&["--workers", "a=tcp://127.0.0.1:9", "--block-size", "16", "--model-name", "m"]);
    for content in ["1,2,3", "1 2 3\n", "[1, 2, 3]\n", "1\n2\n3\n"] {
        std::fs::write(&file, content).expect("a file");
        let output = run(&["query", "--url", &serve.url, "--model", "m", "--tokens-file", path]);
        assert!(text(&output.stdout).starts_with("matched tokens of 3\n"), "{}", text(&output.stderr));
    }
    for (content, part) in [("1,x", "\"x\""), ("", "no token"), ("-1", "\"-1\"")] {
        std::fs::write(&file, content).expect("a file");
        let output = run(&["query", "--url", &serve.url, "--model", "m", "--tokens-file", path]);
        assert!(!output.status.success() && text(&output.stderr).contains(part), "{}", text(&output.stderr));
    }
}

#[test]
fn errors_of_the_command_line_name_their_fix() {
    let cases: [(&[&str], &str); 15] = [
        (&["serve", "--workers", "1=tcp://127.0.0.1:9"], "--block-size"),
        (&["serve", "--port", "0", "--block-size", "16", "--workers", "nonsense"], "instance_id[:dp_rank]=zmq_address"),
        (&["serve", "--port", "0", "--block-size", "16", "--workers", "1:x=tcp://127.0.0.1:9"], "not a rank"),
        (&["serve", "--port", "0", "--block-size", "16", "--workers", "1=127.0.0.1:9"], "tcp://"),
        (&["serve", "--port", "0", "--block-size", "0", "--workers", "1=tcp://127.0.0.1:9"], "--block-size"),
        (&["simulate", "--recording", "/nonexistent"], "/nonexistent"),
        (&["simulate", "--verify"], "--register"),
        (&["simulate", "--speed=-1"], "--speed"),
        (&["query", "--tokens", "1", "--url", "http://127.0.0.1:9"], "flash-indexer serve"),
        (&["query", "--tokens", "1", "--url", "localhost"], "http://127.0.0.1:8090"),
        (&["query", "--tokens", "1", "--url", "ftp://127.0.0.1:9"], "such as http://127.0.0.1:8090"),
        (&["diff", "localhost:8090", "http://127.0.0.1:9"], "such as http://127.0.0.1:8090"),
        (&["serve", "--port", "0", "--model-name", ""], "--model-name"),
        (&["serve", "--port", "0", "--connections-max", "0"], "give a whole number of at least 1"),
        (&["serve", "--port", "0", "--body-bytes-max", "0"], "give a whole number of at least 1"),
    ];
    for (arguments, part) in cases {
        let output = run(arguments);
        let error = text(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(error.contains(part), "{arguments:?}: {error}");
    }
    let output = flash_indexer(&["serve", "--port", "0"]).env("FLASH_INDEXER_LOG", "info=debug=x").output();
    let output = output.expect("the program runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("FLASH_INDEXER_LOG=info=debug=x"), "{}", text(&output.stderr));
}

#[test]
fn an_unknown_model_is_an_error_with_the_models_of_the_service() {
    let serve = Serve::start(&["--workers", "1=tcp://127.0.0.1:9", "--block-size", "16", "--model-name", "m"]);
    for command in ["query", "explain"] {
        let error = text(&run(&[command, &serve.url, "--tokens", "1"]).stderr);
        assert!(error.contains("no instance of model \"default\"") && error.contains("\"m\" of tenant"), "{error}");
        assert!(error.contains("choose one with --model"), "{error}");
    }
    let found = text(&run(&["doctor", &serve.url, "--model", "another"]).stdout);
    assert!(found.contains("its models: \"m\" of tenant"), "{found}");
    let error = text(&run(&["query", &serve.url]).stderr);
    assert!(error.contains("--tokens <TOKENS>|--tokens-file <FILE>"), "{error}");
}

#[test]
fn the_url_of_the_service_is_given_once_and_precedes_the_environment() {
    let serve = Serve::start(&[]);
    for command in [&["query", "--tokens", "1"] as &[_], &["explain", "--tokens", "1"], &["dump"], &["doctor"]] {
        let output = run(&[command, &[&serve.url, "--url", "http://127.0.0.1:9"]].concat());
        assert_eq!(output.status.code(), Some(2), "{command:?}");
        assert!(text(&output.stderr).contains("once: URL or --url URL"), "{command:?}: {}", text(&output.stderr));
    }
    for url in [&[&*serve.url] as &[_], &["--url", &serve.url]] {
        let output = flash_indexer(&[&["dump"], url].concat()).env("FLASH_INDEXER_URL", "http://127.0.0.1:9").output();
        let output = output.expect("the program runs");
        assert!(output.status.success(), "{url:?}: {}", text(&output.stderr));
    }
}

#[test]
fn a_reader_that_closes_the_pipe_is_no_error() {
    let serve = Serve::start(&[]);
    let without_reader = |arguments: &[&str]| {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        flash_indexer(arguments).stdout(writer).output().expect("the program runs")
    };
    let healthy: [&[&str]; 5] = [
        &["completions", "bash"],
        &["config", "print"],
        &["dump", &serve.url],
        &["diff", &serve.url, &serve.url],
        &["config", "check"],
    ];
    for arguments in healthy {
        let output = without_reader(arguments);
        assert_eq!((output.status.code(), &*text(&output.stderr)), (Some(0), ""), "{arguments:?}");
    }
    let full = std::fs::File::create("/dev/full").expect("a device");
    let output = flash_indexer(&["config", "print"]).stdout(full).output().expect("the program runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("failed to write to standard output"), "{}", text(&output.stderr));
}

#[test]
fn commands_reach_a_service_inside_tls() {
    let (authority, other) = (Authority::new(), Authority::new());
    let path = |path: &Path| path.to_str().expect("text").to_owned();
    let [server, client] = ["server", "client"].map(|name| {
        let IssuedFiles { certificate, key } = authority.issue(name);
        [path(&certificate), path(&key)]
    });
    let (ca, other) = (path(&authority.file()), path(&other.file()));
    let tls = ["--tls-cert", &server[0], "--tls-key", &server[1], "--tls-client-ca", &ca];
    let serve = Serve::start(&tls);
    assert!(serve.url.starts_with("https://127.0.0.1:"), "{}", serve.url);
    let query = |options: &[&str]| {
        let output = run(&[&["query", "--url", &serve.url, "--tokens", "1"], options].concat());
        assert!(!output.status.success());
        text(&output.stderr)
    };
    let answered = query(&["--tls-ca", &ca, "--tls-cert", &client[0], "--tls-key", &client[1]]);
    assert!(answered.contains("no instance of model \"default\" is registered"), "{answered}");
    for options in [&[][..], &["--tls-ca", &other]] {
        let refused = query(options);
        assert!(refused.contains("give the authority of the server's certificate"), "{refused}");
    }
    let plain = run(&["query", "--url", &serve.url.replace("https", "http"), "--tokens", "1"]);
    assert!(text(&plain.stderr).contains("give an https:// URL"), "{}", text(&plain.stderr));
    let refused = query(&["--tls-ca", &ca]);
    assert!(!refused.contains("no instance of model"), "{refused}");
    let mixed = query(&["--tls-ca", &ca, "--tls-cert", &client[0], "--tls-key", &server[1]]);
    assert!(mixed.contains("give the private key of the first certificate in"), "{mixed}");
}

#[test]
fn a_password_in_an_endpoint_is_not_printed() {
    for (option, value) in [
        ("--workers", "1=tcp://user:secret@127.0.0.1:1"),
        ("--workers", "1=tcp://127.0.0.1:1|replay=tcp://user:secret@127.0.0.1:1"),
        ("--load", "http://user:secret@127.0.0.1:1"),
    ] {
        let output = run(&["serve", "--port", "0", "--block-size", "4", option, value]);
        let error = text(&output.stderr);
        assert!(!output.status.success() && error.contains("…@127.0.0.1:1"), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
}

#[test]
fn a_limit_on_file_sizes_fails_snapshots_and_not_the_service() {
    let folder = tempfile::tempdir().expect("a directory");
    let serve = flash_indexer(&["serve", "--port", "0", "--state-interval-s", "1", "--state-dir"]);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 0; exec \"$0\" \"$@\""]).arg(serve.get_program()).args(serve.get_args());
    let serve = Serve::started_by({
        command.arg(folder.path());
        command
    });
    let failed = || serve.metric("flash_indexer_snapshots_total{outcome=\"failed\"}") > 0.0;
    wait_for("a snapshot that fails", PATIENCE, || failed().then_some(()));
}

#[test]
fn invalid_limits_and_networks_are_refused_at_the_start() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("limits.toml");
    std::fs::write(&path, "[default]\nrank = 1\n").expect("a file");
    for (option, value, part) in
        [("--limits", path.to_str().expect("text"), "line 2"), ("--engine-networks", "10.0.0.0/64", "is not a network")]
    {
        let output = run(&["serve", "--port", "0", option, value]);
        let error = text(&output.stderr);
        assert!(!output.status.success() && error.contains(part), "{error}");
    }
}

#[test]
fn an_address_that_other_hosts_reach_needs_credentials() {
    let output = run(&["serve", "--port", "0", "--host", "0.0.0.0"]);
    let error = text(&output.stderr);
    assert!(
        !output.status.success() && error.contains("--token-file, --jwt-keys, --tls-client-ca, or --insecure"),
        "{error}"
    );
}

#[test]
fn jwts_need_a_key_set_an_issuer_and_an_audience() {
    let folder = tempfile::tempdir().expect("a directory");
    let keys = folder.path().join("jwks.json");
    let keys = keys.to_str().expect("text");
    let all = ["--jwt-keys", keys, "--jwt-issuer", "https://issuer.example", "--jwt-audience", "flash-indexer"];
    let refused = |options: &[&str], part: &str| {
        let output = run(&[&["serve", "--port", "0"], options].concat());
        let error = text(&output.stderr);
        assert!(!output.status.success() && error.contains(part), "{options:?}: {error}");
    };
    refused(&all[..2], "--jwt-issuer");
    refused(&all[..4], "--jwt-audience");
    refused(&all[2..4], "--jwt-keys");
    refused(&[&all[..3], &["", "--jwt-audience", "a"]].concat(), "--jwt-issuer");
    refused(&[&all[..], &["--jwt-algorithms", "RS256,HS256"]].concat(), "algorithm \"HS256\" is not supported");
    refused(&all, "failed to load the key set of JWTs");
    std::fs::write(keys, r#"{"keys": [{"kty": "oct", "kid": "a", "k": "c2VjcmV0"}]}"#).expect("a file");
    refused(&all, "no key that verifies RS256, ES256 or EdDSA");
}

#[test]
fn a_new_token_fits_its_entry() {
    let folder = tempfile::tempdir().expect("a directory");
    let output = run(&["token", "router", "--scope", "query,admin", "--tenant", "a,b"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (secret, entry) = (text(&output.stderr), text(&output.stdout));
    assert!(!entry.contains(secret.trim()), "{entry}");
    let path = folder.path().join("tokens.toml");
    std::fs::write(&path, entry).expect("a file");
    let file = flash_indexer_access::TokenFile::load(&path).expect("a token file");
    let grant = file.grant(secret.trim()).expect("the token");
    assert!(grant.permits_tenant("b") && !grant.permits_tenant("c"));
    let serve = Serve::start(&["--token-file", path.to_str().expect("text")]);
    let refused = text(&run(&["query", "--url", &serve.url, "--tokens", "1"]).stderr);
    assert!(refused.contains("takes the token from FLASH_INDEXER_TOKEN"), "{refused}");
    let unfit = run(&["token", "router\n", "--scope", "query"]);
    assert!(text(&unfit.stderr).contains("control character"), "{}", text(&unfit.stderr));
}

#[test]
fn the_help_of_commands_that_send_a_token_names_its_variable() {
    for command in ["query", "explain", "doctor", "dump", "diff", "simulate"] {
        let help = text(&run(&[command, "--help"]).stdout);
        assert!(help.contains("Examples:") || help.contains("Example:"), "{help}");
        assert!(help.contains("FLASH_INDEXER_TOKEN  "), "{help}");
    }
    assert!(!text(&run(&["serve", "--help"]).stdout).contains("FLASH_INDEXER_TOKEN  "));
}

#[test]
fn an_error_is_printed_once() {
    let cases: [(&[&str], &str); 5] = [
        (&["serve", "--port", "0", "--block-size", "16", "--workers", "1=127.0.0.1:9"], "invalid endpoint"),
        (&["serve", "--port", "0", "--listen-events", "nonsense"], "failed to bind \"nonsense\" for engines"),
        (
            &["serve", "--port", "0", "--listen-events", "tcp://*:0"],
            "give --curve-clients, or --insecure if the network",
        ),
        (&["serve", "--port", "0", "--insecure", "--host", "203.0.113.1"], "annot assign requested address"),
        (&["replay", "/nonexistent"], "No such file"),
    ];
    for (arguments, part) in cases {
        let error = text(&run(arguments).stderr);
        assert_eq!(error.matches(part).count(), 1, "{arguments:?}: {error}");
    }
}
