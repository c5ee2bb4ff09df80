//! `dump` and `diff`.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::{Serve, flash_indexer, hybrid_service, listening_to, run, text};
use serde_json::{Value, json};

/// Engines that have served all requests and keep running, killed on drop.
struct Engines(Child);

impl Engines {
    fn registered(serve: &Serve) -> Self {
        let mut command = flash_indexer(&["simulate", "--engines", "2", "--requests", "40", "--stay"]);
        command.args(["--port", "0", "--replay-port", "0", "--register", &serve.url, "--model-name", "m"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the program runs");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines().map_while(Result::ok);
        let engines = Self(child);
        assert!(lines.any(|line| line.starts_with("staying up")), "they end early");
        engines
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

#[test]
fn a_dump_is_saved_and_compared() {
    let folder = tempfile::tempdir().expect("a folder");
    let serve = Serve::start(&[]);
    let engines = Engines::registered(&serve);
    let (packed, plain) = (folder.path().join("fleet.zst"), folder.path().join("fleet.ndjson"));
    for file in [&packed, &plain] {
        let output = run(&["dump", &serve.url, "-o", path(file)]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("2 ranks"), "{}", text(&output.stderr));
    }
    let sizes = [&packed, &plain].map(|file| file.metadata().expect("a file").len());
    assert!(sizes[0] < sizes[1], "it is compressed: {sizes:?}");
    let to_stdout = run(&["dump", &serve.url, "--model-name", "m"]);
    assert_eq!(run(&["dump", &serve.url, "--model", "m"]).stdout, to_stdout.stdout);
    let typo = folder.path().join("typo.zst");
    let output = run(&["dump", &serve.url, "--model", "typo", "-o", path(&typo)]);
    assert_eq!((output.status.code(), typo.exists()), (Some(1), false));
    let error = text(&output.stderr);
    assert!(
        error.contains("no instance of model \"typo\"") && error.contains("its models: \"m\" of tenant"),
        "{error}"
    );
    assert_eq!(text(&to_stdout.stdout), std::fs::read_to_string(&plain).expect("text"));
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo runs").success());
    let copy = folder.path().join("copy");
    let mut reader = Command::new("cat");
    let mut reader = reader.arg(&fifo).stdout(File::create(&copy).expect("a file")).spawn().expect("cat runs");
    let output = run(&["dump", &serve.url, "--model", "m", "-o", path(&fifo)]);
    let is_written = output.status.success() && fifo.metadata().is_ok_and(|existing| existing.file_type().is_fifo());
    if !is_written {
        // It would wait for a writer.
        let _ = reader.kill();
    }
    assert!(is_written, "a FIFO is written, not replaced: {}", text(&output.stderr));
    assert!(reader.wait().expect("it runs").success());
    assert_eq!(std::fs::read_to_string(&copy).expect("text"), text(&to_stdout.stdout));

    for (a, b) in [(path(&packed), path(&plain)), (path(&packed), &serve.url), (&serve.url, &serve.url)] {
        let output = run(&["diff", a, b]);
        assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
        assert!(text(&output.stdout).contains("\n0 of 2 ranks differ\n"), "{}", text(&output.stdout));
    }
    let empty = Serve::start(&[]);
    let output = run(&["diff", path(&packed), &empty.url]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("m:default instance 1 rank 0: only in A"), "{}", text(&output.stdout));
    let output = run(&["diff", path(&packed), &empty.url, "--model-name", "another"]);
    assert_eq!(output.status.code(), Some(2), "neither has a rank of that model");
    let error = text(&output.stderr);
    assert!(error.contains("their models: \"m\" of tenant \"default\". Check --model"), "{error}");
    let output = run(&["diff", &serve.url, &empty.url, "--model-name", "another"]);
    let error = text(&output.stderr);
    assert!(error.contains("their models: \"m\" of tenant \"default\". Check --model"), "{error}");

    // One block less, together with its digest and counts.
    let text_of_plain = std::fs::read_to_string(&plain).expect("text");
    let object = object_without_a_block(&text_of_plain);
    let changed = folder.path().join("changed.json");
    std::fs::write(&changed, object).expect("a file");
    let output = run(&["diff", path(&plain), path(&changed)]);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{shown}{}", text(&output.stderr));
    assert!(shown.contains("1 block only in A: device "), "{shown}");
    assert!(shown.contains("\n1 of 2 ranks differ\n"), "{shown}");
    drop(engines);
}

/// The dump in the form of other indexers, without the last block of its longest event.
fn object_without_a_block(lines: &str) -> String {
    let lines = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let mut events: Vec<_> = lines.filter(|line| line.get("event").is_some()).collect();
    let blocks = |event: &mut serde_json::Value| {
        event["event"]["data"]["stored"]["blocks"].as_array_mut().expect("blocks").pop().is_some()
    };
    let last = events.last_mut().expect("an event");
    assert!(blocks(last));
    serde_json::json!({ "m:default": { "block_size": 16, "events": events } }).to_string()
}

#[test]
fn incomplete_dumps_are_neither_saved_nor_compared() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = folder.path().join("whole.zst");
    let serve = Serve::start(&["--workers", "1=tcp://127.0.0.1:9", "--block-size", "16"]);
    assert!(run(&["dump", &serve.url, "-o", path(&whole)]).status.success());
    let part = folder.path().join("part.zst");
    let bytes = std::fs::read(&whole).expect("a file");
    std::fs::write(&part, &bytes[..bytes.len() - 1]).expect("a file");
    for (source, what) in [(path(&part), "cut off"), ("/nonexistent", "/nonexistent"), ("http://127.0.0.1:9", "serve")]
    {
        let output = run(&["diff", path(&whole), source]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(what), "{}", text(&output.stderr));
    }

    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let dies = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let _ = stream.read(&mut [0; 4096]).expect("a request");
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n\r\n";
        stream.write_all(format!("{head}{{\"dump\":{{\"version\":1}}}}\n").as_bytes()).expect("sent");
    });
    let output = run(&["dump", &url, "-o", path(&folder.path().join("never.ndjson"))]);
    dies.join().expect("it ends");
    assert!(!output.status.success() && text(&output.stderr).contains("cut off"), "{}", text(&output.stderr));
    let mut names: Vec<_> =
        std::fs::read_dir(folder.path()).expect("a folder").flatten().map(|e| e.file_name()).collect();
    names.sort();
    assert_eq!(names, ["part.zst", "whole.zst"], "no partial dump is left");
}

#[test]
fn diff_lists_differences_of_one_cache_group() {
    let folder = tempfile::tempdir().expect("a folder");
    let dump = |window: &str| {
        let event = |data: &str| format!(r#"{{"worker_id":1,"event":{{"event_id":0,"data":{{"stored":{data}}}}}}}"#);
        let full = event(r#"{"parent_hash":null,"blocks":[{"block_hash":11,"tokens_hash":22}]}"#);
        let group = format!(r#""group":{{"group":4,"needs":{{"last_blocks":2}},"blocks":{window}}}"#);
        let names = event(&format!(r#"{{"parent_hash":null,"blocks":[],{group}}}"#));
        format!(r#"{{"m:default":{{"block_size":16,"events":[{full},{names}]}}}}"#)
    };
    let [a, b] = [("a", "[11,12]"), ("b", "[12,13]")].map(|(name, window)| {
        let file = folder.path().join(name);
        std::fs::write(&file, dump(window)).expect("a file");
        file
    });
    let same = run(&["diff", path(&a), path(&a)]);
    assert_eq!(same.status.code(), Some(0), "{}{}", text(&same.stdout), text(&same.stderr));
    let output = run(&["diff", path(&a), path(&b)]);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{shown}{}", text(&output.stderr));
    assert!(shown.contains("1 block of cache group 4 only in A: device 11\n"), "{shown}");
    assert!(shown.contains("1 block of cache group 4 only in B: device 13\n"), "{shown}");
}

#[test]
fn diff_compares_hybrid_services_by_cache_group() {
    let (a, engine) = hybrid_service(&[2, 3]);
    let b = listening_to(&engine);
    let (c, _another_engine) = hybrid_service(&[3]);
    let same = run(&["diff", &a.url, &b.url]);
    assert_eq!(same.status.code(), Some(0), "{}{}", text(&same.stdout), text(&same.stderr));
    assert!(text(&same.stdout).contains("\n0 of 1 ranks differ\n"), "{}", text(&same.stdout));
    let other = run(&["diff", &a.url, &c.url]);
    let shown = text(&other.stdout);
    assert_eq!(other.status.code(), Some(1), "{shown}{}", text(&other.stderr));
    assert!(shown.contains("1 block of cache group 0 only in A: device 2\n"), "{shown}");
    assert!(!shown.contains("only in B"), "{shown}");
    let query = json!({ "model_name": "m", "token_ids": [1, 0, 2, 0, 3, 0, 7] });
    let score = |serve: &Serve| -> Value { serve.post("/query", &query).1["scores"]["1"]["0"].clone() };
    assert_eq!([&a, &b, &c].map(score), [json!(6), json!(6), json!(0)], "the differing blocks change answers");
}
