//! A production trace, played through simulated engines into the service: every hit is predicted.

use crate::support::{Serve, print_uncaptured, run, text};
use flash_indexer_test_support::testdata;

#[test]
fn every_hit_of_the_production_trace_is_predicted() {
    let data = testdata();
    let trace = data.join("mooncake/conversation_trace.jsonl");
    let serve = Serve::start(&[]);
    let arguments =
        ["simulate", "--trace", trace.to_str().expect("a path of text"), "--port", "0", "--replay-port", "0"];
    let output = run(&[&arguments[..], &["--register", &serve.url, "--verify"]].concat());
    let report = text(&output.stdout);
    print_uncaptured(&report);
    assert!(output.status.success(), "{report}{}", text(&output.stderr));
    assert!(report.contains("predictions: 12031 equal, 0 different"), "{report}");
}

#[test]
fn synthetic_conversations_are_predicted_in_both_encodings() {
    let serve = Serve::start(&["--threads", "2"]);
    for encoding in ["map", "array"] {
        let arguments =
            ["simulate", "--requests", "300", "--blocks", "600", "--block-size", "16", "--encoding", encoding];
        let more =
            ["--port", "0", "--replay-port", "0", "--register", &serve.url, "--verify", "--model-name", encoding];
        let output = run(&[&arguments[..], &more].concat());
        let report = text(&output.stdout);
        assert!(output.status.success(), "{report}{}", text(&output.stderr));
        assert!(report.contains("predictions: 300 equal, 0 different"), "{report}");
        assert!(!report.contains("hit rate 0.00%"), "{report}");
    }
}
