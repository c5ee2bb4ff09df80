//! The log of `serve`, as log collectors read it.

use crate::support::{flash_indexer, text};
use serde_json::Value;

/// Lines that a short run of `serve` with a missing tokenizer directory logs.
fn log_lines(arguments: &[&str], format: Option<&str>) -> Vec<String> {
    let run = ["serve", "--demo", "--demo-seconds", "1", "--port", "0", "--tokenizer-dir", "/nonexistent/models"];
    let mut command = flash_indexer(&[&run[..], arguments].concat());
    command.envs(format.map(|format| ("FLASH_INDEXER_LOG_FORMAT", format)));
    let output = command.output().expect("the program runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stderr).lines().map(str::to_owned).collect()
}

#[test]
fn json_log_lines_are_objects_with_level_message_and_fields() {
    for lines in [log_lines(&["--log-format", "json"], None), log_lines(&[], Some("json"))] {
        let parse =
            |line: &String| serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let events: Vec<Value> = lines.iter().map(parse).collect();
        for event in &events {
            assert!(event["timestamp"].is_string() && event["level"].is_string(), "{event}");
            assert!(event["fields"]["message"].is_string(), "{event}");
        }
        let warning = events.iter().find(|event| event["level"] == "WARN").expect("the directory is missing");
        assert_eq!(warning["fields"]["directory"], "/nonexistent/models", "{warning}");
        let is_address = |event: &Value| event["fields"]["message"].as_str().is_some_and(|m| m.contains("http://"));
        assert!(events.iter().any(is_address), "{events:?}");
    }
}

#[test]
fn log_lines_are_text_by_default() {
    let lines = log_lines(&[], None);
    assert!(lines.iter().all(|line| serde_json::from_str::<Value>(line).is_err()), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("INFO") && line.contains("listening on http://")), "{lines:?}");
}
