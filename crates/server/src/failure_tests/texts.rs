//! Clients with long texts, while the tokenizer does not answer.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

use flash_indexer_prompt::tokenize::PoolOptions;

use super::large_requests::service_with;
use super::*;
use crate::{TokenizationOptions, TokenizerServiceOptions};

const TEXT_BYTES: usize = 100 << 10;
const QUEUED_MAX: usize = 10 * TEXT_BYTES + TEXT_BYTES / 2;

/// A service with one thread for texts, and a tokenizer service that answers nothing until it is dropped.
fn silent_tokenizer() -> (Service, TcpListener) {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = silent.local_addr().expect("an address");
    let tokenizer = TokenizerServiceOptions {
        address: format!("tcp://{address}").parse().expect("an address"),
        deadline: 2 * PATIENCE,
    };
    let pool = PoolOptions { workers: 1, queued_bytes_max: QUEUED_MAX, ..PoolOptions::default() };
    let tokenization = TokenizationOptions { service: Some(tokenizer), pool, ..TokenizationOptions::default() };
    let indexer = IndexerOptions { tokenization, ..IndexerOptions::default() };
    (service_with(ServerOptions { indexer, ..ServerOptions::default() }), silent)
}

impl Service {
    fn text_bytes(&self) -> usize {
        self.server().bodies.texts.bytes()
    }

    /// A connection that has sent a text to be tokenized.
    fn send_text(&self, client: &str, bytes: usize) -> TcpStream {
        let body = json!({ "model_name": "m", "prompt": "x".repeat(bytes) }).to_string();
        let mut stream = self.connect_from(client);
        let head = format!("POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).expect("sent");
        stream.write_all(body.as_bytes()).expect("sent");
        stream
    }

    fn tokenized(&self, outcome: &str) -> String {
        let metrics = self.get("/metrics").1;
        let series = format!("flash_indexer_tokenizations_total{{kind=\"text\",outcome=\"{outcome}\"}} ");
        metrics.lines().find_map(|line| line.strip_prefix(&series)).expect("a series").to_owned()
    }
}

#[test]
fn a_client_with_long_texts_leaves_room_in_the_queue_for_the_texts_of_others() {
    let (service, _silent) = silent_tokenizer();
    let mut streams = Vec::new();
    for count in 1..=5 {
        streams.push(service.send_text("127.0.0.2", TEXT_BYTES));
        wait_for("a text in the queue", PATIENCE, || (service.text_bytes() == count * TEXT_BYTES).then_some(()));
    }
    let refused = service.send_text("127.0.0.2", TEXT_BYTES);
    let lines: Vec<_> = BufReader::new(refused).lines().map_while(Result::ok).take_while(|it| !it.is_empty()).collect();
    assert_eq!(lines[0], "HTTP/1.1 503 Service Unavailable");
    assert!(lines.iter().any(|line| line == "retry-after: 1"), "{lines:?}");
    assert_eq!(service.tokenized("queue_full"), "1");
    for count in 6..=7 {
        streams.push(service.send_text("127.0.0.3", TEXT_BYTES));
        wait_for("another client's text", PATIENCE, || (service.text_bytes() == count * TEXT_BYTES).then_some(()));
    }
    assert_eq!(service.tokenized("queue_full"), "1");
}

#[test]
fn long_texts_wait_for_a_place_and_short_ones_do_not() {
    let (service, _silent) = silent_tokenizer();
    const BYTES: usize = 10 << 10;
    let long: Vec<_> = (0..9).map(|_| service.send_text("127.0.0.2", BYTES)).collect();
    wait_for("the last one to wait", PATIENCE, || (service.server().bodies.texts.long() == (8, 1)).then_some(()));
    let _short = service.send_text("127.0.0.2", 10);
    wait_for("the short text", PATIENCE, || (service.text_bytes() == 9 * BYTES + 10).then_some(()));
    drop(long);
    // The tokenizer works on the first one.
    wait_for("the others to leave", PATIENCE, || (service.server().bodies.texts.long() == (1, 0)).then_some(()));
}

#[test]
fn a_text_counts_until_the_tokenizer_has_left_it_even_if_its_client_disconnects() {
    let (service, silent) = silent_tokenizer();
    let stream = service.send_text("127.0.0.2", TEXT_BYTES);
    wait_for("the text to be tokenized", PATIENCE, || {
        let is_taken = service.get("/metrics").1.contains("\nflash_indexer_tokenization_queued_prompts 0\n");
        (service.text_bytes() == TEXT_BYTES && is_taken).then_some(())
    });
    // A second one is queued only after a worker has taken the first.
    let second = service.send_text("127.0.0.2", TEXT_BYTES);
    wait_for("the second text", PATIENCE, || {
        let is_queued = service.get("/metrics").1.contains("\nflash_indexer_tokenization_queued_prompts 1\n");
        (service.text_bytes() == 2 * TEXT_BYTES && is_queued).then_some(())
    });
    drop((stream, second));
    wait_for("both to be withdrawn", PATIENCE, || (service.tokenized("withdrawn") == "2").then_some(()));
    wait_for("the queued one to be released", PATIENCE, || (service.text_bytes() == TEXT_BYTES).then_some(()));
    drop(silent);
    wait_for("the other one to be released", PATIENCE, || (service.text_bytes() == 0).then_some(()));
}
