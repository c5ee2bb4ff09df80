//! Bodies of answers, whose bytes count in a budget until they are sent.
//!
//! A frame of a body owns its part of the budget. The part is released with the frame's bytes, which the connection drops when
//! they are written or when it closes.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use flash_indexer_connections::{ConnectionHandle, UnreadGuard};
use http_body::{Frame, SizeHint};

use crate::body_budget::{BodyBudget, BodyBudgetReached, BodyBytes};

/// Bytes of an HTTP answer that are not counted. A connection has one such answer at a time.
const UNCOUNTED_BYTES: usize = 8 << 10;

/// Bytes of an answer in the budget, and the connection that sends it.
#[derive(Debug)]
pub struct AnswerBytes {
    reserved: BodyBytes,
    /// None in tests without a socket.
    connection: Option<ConnectionHandle>,
}

impl AnswerBytes {
    /// An answer, on this connection, that has no bytes yet.
    pub fn new(budget: &Arc<BodyBudget>, connection: Option<ConnectionHandle>) -> Self {
        let client = connection.as_ref().map(ConnectionHandle::client);
        Self { reserved: budget.body(client), connection }
    }

    /// Adds bytes. A refusal is counted.
    pub fn add(&mut self, bytes: usize) -> Result<(), BodyBudgetReached> {
        self.reserved.add(bytes)
    }

    /// The same bytes, which now own their part of the answer's budget.
    pub fn send(&mut self, bytes: Bytes) -> Bytes {
        let reserved = self.reserved.split(bytes.len());
        let unread = self.connection.as_ref().map(ConnectionHandle::unread);
        Bytes::from_owner(SentBytes { bytes, _reserved: reserved, _unread: unread })
    }
}

/// Bytes of a frame, after the frame leaves its body and until they are written.
struct SentBytes {
    bytes: Bytes,
    _reserved: BodyBytes,
    _unread: Option<UnreadGuard>,
}

impl AsRef<[u8]> for SentBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Counts the body of an HTTP response if it is large and has a known length. Otherwise it is a stream, whose bytes are limited by its
/// producer.
///
/// # Errors
///
/// If the budget has no room for it.
pub fn count_answer(
    response: Response,
    budget: &Arc<BodyBudget>,
    connection: Option<ConnectionHandle>,
) -> Result<Response, BodyBudgetReached> {
    let bytes = response.body().size_hint().exact().map_or(0, |bytes| bytes as usize);
    if bytes <= UNCOUNTED_BYTES {
        return Ok(response);
    }
    let mut answer = AnswerBytes::new(budget, connection);
    answer.add(bytes)?;
    Ok(response.map(|body| Body::new(CountedBody { body, answer })))
}

/// Body of an HTTP response with a known length.
struct CountedBody {
    body: Body,
    answer: AnswerBytes,
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Self { body, answer } = &mut *self;
        Pin::new(body).poll_frame(context).map_ok(|frame| frame.map_data(|bytes| answer.send(bytes)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use axum::serve::Listener;
    use flash_indexer_connections::{BoundedListener, Protocol};
    use flash_indexer_telemetry::metrics::{MetricNames, Metrics};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::body_budget::Bodies;

    #[test]
    fn each_part_of_an_answer_waits_for_its_client_until_it_is_dropped() {
        let metrics = Arc::new(Metrics::new(MetricNames::Own));
        let budget = BodyBudget::new(Bodies::Answers, Some(100), 1, &metrics);
        tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("an address");
            let mut listener = BoundedListener::new(listener, Protocol::Http, None, 1, Arc::clone(&metrics));
            let (_client, (connection, _)) = tokio::join!(TcpStream::connect(address), listener.accept());
            let handle = connection.handle();
            let mut answer = AnswerBytes::new(&budget, Some(handle.clone()));
            answer.add(20).expect("there is room");
            let parts = [&b"first part"[..], b"other part"].map(|part| answer.send(Bytes::from_static(part)));
            assert_eq!((handle.unread_count(), budget.bytes()), (2, 20));
            let [first, other] = parts;
            drop(first);
            assert_eq!((handle.unread_count(), budget.bytes()), (1, 10));
            drop(other);
            assert_eq!((handle.unread_count(), budget.bytes()), (0, 0));
        });
    }
}
