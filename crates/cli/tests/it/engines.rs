//! Recorded streams, played through real sockets into the service: every prediction equals the engine's report.

use crate::support::{Serve, print_uncaptured, run, text};
use flash_indexer_test_support::testdata;

#[test]
fn every_recorded_request_is_predicted() {
    let data = testdata();
    let serve = Serve::start(&[]);
    let folder = std::fs::read_dir(data.join("engines")).expect("the folder of streams");
    let mut streams: Vec<_> = folder.map(|entry| entry.expect("an entry").path()).collect();
    streams.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    streams.sort();
    assert!(streams.len() >= 6, "the recorded streams are there");
    for stream in streams {
        let path = stream.to_str().expect("a path of text");
        let name = stream.file_stem().expect("a name").to_string_lossy();
        let arguments = ["simulate", "--recording", path, "--port", "0", "--replay-port", "0", "--model-name", &name];
        let output = run(&[&arguments[..], &["--register", &serve.url, "--verify"]].concat());
        let report = text(&output.stdout);
        print_uncaptured(&report);
        assert!(output.status.success(), "{report}{}", text(&output.stderr));
        let figures = report.lines().find(|line| line.starts_with("requests checked ")).expect("a report");
        assert!(figures.contains("unexplained 0"), "{figures}");
        assert!(figures.contains("explained 0,"), "{figures}");
        if name == "vllm-0.32.0-gemma3-hybrid" {
            assert!(
                report.contains("trust of the service: exact"),
                "received from its first message on, and all of it applied: {report}"
            );
        }
    }
}
