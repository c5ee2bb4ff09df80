//! A publisher's sockets behave like an engine's.

use std::time::Duration;

use flash_indexer_sim::{Publisher, PublisherOptions, ReplayFraming};

const PATIENCE: Duration = Duration::from_secs(30);

fn receive(socket: &zmq::Socket) -> Vec<Vec<u8>> {
    socket.set_rcvtimeo(PATIENCE.as_millis() as i32).expect("a time-out");
    socket.recv_multipart(0).expect("a message in time")
}

fn number(value: u64) -> Vec<u8> {
    value.to_be_bytes().to_vec()
}

#[test]
fn batches_are_published_live_and_replayed_from_the_buffer() {
    for framing in [ReplayFraming::WithTopic, ReplayFraming::WithoutTopic] {
        let options = PublisherOptions { buffer_batches: 3, framing, ..PublisherOptions::on_loopback() };
        let publisher = Publisher::bind(options).expect("free ports");
        let context = zmq::Context::new();
        let subscriber = context.socket(zmq::SUB).expect("a socket");
        subscriber.set_subscribe(b"").expect("a subscription");
        subscriber.connect(publisher.endpoint()).expect("a connection");
        assert!(publisher.wait_for_subscriber(PATIENCE).expect("a socket"));
        for sequence in 0..5 {
            publisher.publish(sequence, &[sequence as u8]).expect("published");
        }
        for sequence in 0..5 {
            assert_eq!(receive(&subscriber), [b"kv-events".to_vec(), number(sequence), vec![sequence as u8]]);
        }

        let dealer = context.socket(zmq::DEALER).expect("a socket");
        dealer.connect(publisher.replay_endpoint()).expect("a connection");
        // The publisher ignores a request without the empty frame, and answers the next one.
        dealer.send_multipart([number(0)], 0).expect("sent");
        dealer.send_multipart([vec![], number(1)], 0).expect("sent");
        for sequence in 2..5 {
            let (topic, payload) = (b"kv-events".to_vec(), vec![sequence as u8]);
            let expected = match framing {
                ReplayFraming::WithTopic => vec![vec![], topic, number(sequence), payload],
                ReplayFraming::WithoutTopic => vec![vec![], number(sequence), payload],
            };
            assert_eq!(receive(&dealer), expected);
        }
        let end = receive(&dealer);
        assert_eq!(end[end.len() - 2..], [vec![0xff; 8], vec![]]);
    }
}

#[test]
fn an_address_in_use_is_named_in_the_error() {
    let first = Publisher::bind(PublisherOptions::on_loopback()).expect("free ports");
    let options = PublisherOptions { endpoint: first.endpoint().to_owned(), ..PublisherOptions::on_loopback() };
    let error = Publisher::bind(options).expect_err("the port is taken").to_string();
    assert!(error.contains(first.endpoint()), "{error}");
}
