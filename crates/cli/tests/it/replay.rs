//! `replay` and `bench`: a trace, played into an index without a service.

use std::fmt::Write;
use std::path::Path;

use crate::support::{print_uncaptured, run, text};
use flash_indexer_bench::Measure;
use flash_indexer_test_support::testdata;

/// A trace of conversations that grow turn by turn over a shared start.
fn write_trace(to: &Path, turns: u64) {
    let mut open: Vec<Vec<u64>> = (0..6).map(|chat| vec![0, 1 + chat]).collect();
    let mut trace = String::new();
    for turn in 0..turns {
        let chat = (turn * 5 % 6) as usize;
        open[chat].push(100 + turn);
        let hash_ids = &open[chat];
        let length = hash_ids.len() * 512;
        writeln!(
            trace,
            r#"{{"timestamp": {}, "input_length": {length}, "output_length": 1, "hash_ids": {hash_ids:?}}}"#,
            turn * 10
        )
        .expect("a string takes text");
        if hash_ids.len() > 9 {
            open[chat].truncate(2);
        }
    }
    std::fs::write(to, trace).expect("a file");
}

fn with_trace(check: impl FnOnce(&str, &Path)) {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("trace.jsonl");
    write_trace(&trace, 120);
    check(trace.to_str().expect("a path of text"), folder.path());
}

#[test]
fn every_prediction_of_a_replay_equals_the_cache() {
    with_trace(|trace, _| {
        for more in [&[][..], &["--holes", "5", "--private-hash-seeds"], &["--prefix-affinity", "--block-size", "32"]] {
            let usual = ["replay", trace, "--verify", "--workers", "3", "--blocks", "200"];
            let output = run(&[&usual[..], more].concat());
            let report = text(&output.stdout);
            assert!(output.status.success(), "{report}{}", text(&output.stderr));
            assert!(report.contains("predictions: 120 equal, 0 different"), "{report}");
            assert!(!report.contains("hit rate 0.00%") && report.contains("ns per stored block"), "{report}");
        }
    });
}

/// The whole numbers of a line.
fn figures(line: &str) -> Vec<usize> {
    line.split(' ').filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn a_replay_with_a_memory_limit_never_predicts_too_much() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("trace.jsonl");
    write_trace(&trace, 2_000);
    let usual = ["replay", trace.to_str().expect("text"), "--verify", "--workers", "3", "--blocks", "40000"];
    let output = run(&[&usual[..], &["--block-size", "16", "--memory-max", "1MiB"]].concat());
    let report = text(&output.stdout);
    assert!(output.status.success(), "{report}{}", text(&output.stderr));
    let line = |start: &str| report.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{report}"));
    assert!(line("predictions: ").ends_with(" 0 too high"), "{report}");
    let beside = line("compared with an unlimited index: ");
    assert!(beside.ends_with(" 0 too high; above the limit after 0 requests"), "{report}");
    let [most, highest, _] = figures(line("memory: "))[..] else { panic!("{report}") };
    assert!(most == 1 << 20 && highest <= most && highest > most / 2, "{report}");
    assert!(figures(line("evicted: "))[0] > 10_000, "{report}");
    assert!(line("hit rate predicted by the index").ends_with(" points lost)"), "{report}");

    for (size, why) in [("1000", "1 MiB"), ("much", "512MiB")] {
        let output = run(&[&usual[..], &["--memory-max", size]].concat());
        assert!(!output.status.success() && text(&output.stderr).contains(why), "{}", text(&output.stderr));
    }
    let output = run(&[&usual[..], &["--memory-max", "1GiB", "--index", "radix-tree"]].concat());
    assert!(text(&output.stderr).contains("choose run"), "{}", text(&output.stderr));
}

#[test]
fn a_tenth_of_the_memory_suffices_for_the_production_trace() {
    let data = testdata();
    let trace = data.join("mooncake/conversation_trace.jsonl");
    let replay = |memory_max: &str| {
        let usual = ["replay", trace.to_str().expect("a path of text"), "--verify", "--memory-max"];
        let output = run(&[&usual[..], &[memory_max]].concat());
        let report = text(&output.stdout);
        assert!(output.status.success(), "{report}{}", text(&output.stderr));
        let line = report.lines().find(|line| line.starts_with("memory: ")).expect("a line about memory");
        let [bytes_max, highest, _] = figures(line)[..] else { panic!("{line}") };
        (bytes_max, highest, report)
    };
    let (_, needed, whole) = replay("64GiB");
    assert!(
        whole.contains("predictions: 12031 equal, 0 different") && whole.contains("(100.00%), 0 too high"),
        "{whole}"
    );
    let (bytes_max, highest, report) = replay(&(needed / 10).to_string());
    print_uncaptured(&report);
    assert!(highest <= bytes_max && highest > bytes_max / 2, "{report}");
    assert!(report.contains("0 too high; above the limit after 0 requests"), "{report}");
}

#[test]
fn bench_prints_a_table_of_each_measure_and_writes_json() {
    with_trace(|trace, folder| {
        let json = folder.join("results.json");
        let usual = ["bench", trace, "--requests", "60", "--json", json.to_str().expect("text"), "--repeats"];
        // Old designs take long for some measures, so two rounds are of fast ones.
        let output = run(&[&usual[..], &["2", "--measures", "ingest,query,memory"]].concat());
        let report = text(&output.stdout);
        assert!(output.status.success(), "{report}{}", text(&output.stderr));
        assert!(report.contains("Figures are medians; rounds: 2.") && !report.contains("answers differ"), "{report}");
        let output = run(&[&usual[..], &["1"]].concat());
        let report = text(&output.stdout);
        assert!(output.status.success(), "{report}{}", text(&output.stderr));
        assert!(!report.contains("answers differ"), "{report}");
        let results: serde_json::Value = serde_json::from_slice(&std::fs::read(json).expect("results")).expect("JSON");
        let measures = results["measures"].as_array().expect("measures");
        assert_eq!(measures.len(), Measure::ALL.len());
        for measure in measures {
            let name = measure["measure"].as_str().expect("a name");
            assert!(report.contains(&format!("\n{name}: ")), "{name} is printed");
            for row in measure["rows"].as_array().expect("rows") {
                assert!(row["values"].as_array().is_some_and(|values| !values.is_empty()), "{name}");
                assert!(report.contains(row["contender"].as_str().expect("a name")), "{name}");
            }
        }
    });
}

#[test]
fn errors_of_replay_and_bench_name_their_fix() {
    let cases: [(&[&str], &str); 6] = [
        (&["replay", "/nonexistent"], "/nonexistent"),
        (&["replay", "t", "--index", "nonsense"], "radix-tree"),
        (&["replay", "t", "--block-size", "100"], "512"),
        (&["replay", "t", "--holes", "120"], "0 to 99"),
        (&["bench", "t", "--measures", "nonsense"], "query-under-writer"),
        (&["serve", "--index", "run"], "unexpected argument '--index'"),
    ];
    for (arguments, part) in cases {
        let output = run(arguments);
        let error = text(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(error.contains(part), "{arguments:?}: {error}");
    }
    let elsewhere = tempfile::tempdir().expect("a folder");
    let output = crate::support::flash_indexer(&["bench"]).current_dir(elsewhere.path()).output().expect("it runs");
    assert!(text(&output.stderr).contains("name a trace file"), "{}", text(&output.stderr));
}
