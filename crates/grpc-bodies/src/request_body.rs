//! Body of a gRPC request: its bytes in the budget of all bodies, its deadline, and the boundaries of its messages.
//!
//! tonic gathers the bytes of a message in a buffer, decodes the message, and keeps the buffer for the next one. A body hands out the end
//! of a long message separately. The reader of a stream can then replace its buffer after that message.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime};

use axum::body::Bytes;
use flash_indexer_admission::{BodyBytes, ContentEncoding, LargeRequests};
use flash_indexer_telemetry::metrics::Metrics;
use flash_indexer_traces::{Stage, StageSpan, stage, stage_begin};
use http_body::Frame;
use parking_lot::Mutex;
use tokio::time::{Sleep, sleep};
use tonic::body::Body;
use tonic::codegen::Body as HttpBody;
use tonic::{Code, Status};

use crate::messages::{MessageReader, Part};
use crate::status::{code_label, exhausted};
use crate::thread_moves::move_to_large_thread;

/// Kind of a method, by its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MethodKind {
    /// One message, which ends with the request.
    Unary,
    /// A stream, which may be idle between two messages.
    Streaming,
}

/// Method of a request.
#[derive(Debug, Clone, Copy)]
pub struct Method {
    /// Name for metrics.
    pub name: &'static str,
    /// Whether its requests are streams.
    pub kind: MethodKind,
}

type FrameResult = Option<Result<Frame<Bytes>, Status>>;

/// Body of a request. It keeps the end of a large message back from the threads that serve all requests.
///
/// The received bytes of a stream's unfinished messages count in the budget of all bodies. A finished message is decoded,
/// and in a stream answered, before the body is polled again. A unary request counts until its body is dropped.
#[derive(Debug)]
pub struct RequestBody {
    body: Body,
    method: Method,
    deadline: Duration,
    encoding: ContentEncoding,
    metrics: Arc<Metrics>,
    messages: MessageReader,
    /// Received bytes that were not returned yet.
    received: Bytes,
    kept_back: Option<Bytes>,
    /// Bytes of the messages that are not decoded yet.
    reserved: BodyBytes,
    /// Wait for the rest of a message, since the body was first polled without it.
    waiting: Option<MessageDeadline>,
    has_ended_long_message: bool,
    /// Decoding of the message that has ended, until the body is polled again.
    parse: Option<StageSpan>,
    /// Start of the decoding of a stream's message. Its request is known only after the decoding.
    parse_begin: Option<SystemTime>,
}

#[derive(Debug)]
struct MessageDeadline {
    since: Instant,
    end: Pin<Box<Sleep>>,
}

impl RequestBody {
    /// The body of a request to a method, whose messages may have an encoding. A message may take until `deadline` to
    /// arrive.
    pub fn new(
        body: Body,
        (method, encoding): (Method, ContentEncoding),
        reserved: BodyBytes,
        deadline: Duration,
    ) -> Self {
        Self {
            body,
            method,
            deadline,
            encoding,
            metrics: Arc::clone(reserved.metrics()),
            messages: MessageReader::default(),
            received: Bytes::new(),
            kept_back: None,
            reserved,
            waiting: None,
            has_ended_long_message: false,
            parse: None,
            parse_begin: None,
        }
    }

    /// Releases the bytes of messages that were decoded since the last poll.
    fn release_decoded(&mut self) {
        if self.method.kind == MethodKind::Streaming {
            self.reserved.shrink(self.messages.unfinished_bytes() + self.received.len());
        }
    }

    /// Begins the decoding of a message that has ended.
    fn begin_parse(&mut self) {
        match self.method.kind {
            MethodKind::Unary => self.parse = Some(stage(Stage::Parse)),
            MethodKind::Streaming => self.parse_begin = stage_begin(),
        }
    }

    /// Waits for the rest of a message, up to its deadline.
    fn poll_deadline(&mut self, context: &mut Context<'_>) -> Poll<FrameResult> {
        if self.method.kind == MethodKind::Streaming && self.messages.unfinished_bytes() == 0 {
            return Poll::Pending;
        }
        let Self { waiting, deadline, .. } = self;
        let waiting =
            waiting.get_or_insert_with(|| MessageDeadline { since: Instant::now(), end: Box::pin(sleep(*deadline)) });
        ready!(waiting.end.as_mut().poll(context));
        self.metrics.rpc_answered(self.method.name, code_label(Code::DeadlineExceeded), waiting.since.elapsed());
        let message = format!("failed to receive a message: it did not arrive within {deadline:?}; send it again");
        Poll::Ready(Some(Err(Status::deadline_exceeded(message))))
    }

    /// Returns a part of the received bytes, or keeps it back.
    fn hand_out(&mut self) -> Poll<FrameResult> {
        let part = self.messages.next_part(&mut self.received);
        let Part { bytes, has_ended_message, ends_long, ends_large, compressed } = part;
        if has_ended_message {
            self.waiting = None;
        }
        let is_large = || compressed.is_none_or(|message| !self.encoding.is_small(&message));
        if ends_large && !LargeRequests::is_current_thread() && is_large() {
            self.kept_back = Some(bytes);
            move_to_large_thread();
            return Poll::Pending;
        }
        if has_ended_message {
            self.begin_parse();
        }
        self.has_ended_long_message |= ends_long;
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<FrameResult> {
        self.parse = None;
        if let Some(end) = self.kept_back.take() {
            self.has_ended_long_message = true;
            self.begin_parse();
            return Poll::Ready(Some(Ok(Frame::data(end))));
        }
        self.release_decoded();
        if self.received.is_empty() {
            let frame = match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(end) => return Poll::Ready(end),
                Poll::Pending => return self.poll_deadline(context),
            };
            match frame.into_data() {
                Ok(data) => match self.reserved.add(data.len()) {
                    Ok(()) => self.received = data,
                    Err(reached) => return Poll::Ready(Some(Err(exhausted(&reached)))),
                },
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        self.hand_out()
    }

    fn is_end_stream(&self) -> bool {
        self.kept_back.is_none() && self.received.is_empty() && self.body.is_end_stream()
    }
}

/// Body that its reader and the handler of its request share. Only the reader polls it.
#[derive(Debug, Clone)]
pub struct SharedBody(Arc<Mutex<RequestBody>>);

impl SharedBody {
    /// Shares a body.
    pub fn new(body: RequestBody) -> Self {
        Self(Arc::new(Mutex::new(body)))
    }

    /// Whether a long message ended since the last call. If so, all received bytes are decoded once that message is.
    pub fn take_ended_long_message(&self) -> bool {
        std::mem::take(&mut self.0.lock().has_ended_long_message)
    }

    /// Time at which the end of a message was handed out since the last call, if requests are traced.
    pub fn take_parse_begin(&self) -> Option<SystemTime> {
        self.0.lock().parse_begin.take()
    }
}

impl HttpBody for SharedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<FrameResult> {
        Pin::new(&mut *self.0.lock()).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    use flash_indexer_admission::{Bodies, BodyBudget};
    use flash_indexer_telemetry::metrics::{IngestQueueState, MetricNames, State, TextFormat};
    use tokio::runtime::{Builder, Runtime};
    use tokio::sync::mpsc;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);
    const NEVER: Duration = Duration::from_secs(1 << 30);
    const AT_ONCE: Duration = Duration::from_millis(1);
    const UNARY: Method = Method { name: "Query", kind: MethodKind::Unary };
    const STREAM: Method = Method { name: "QueryStream", kind: MethodKind::Streaming };

    /// Body of the frames that a test sends.
    struct Frames(mpsc::UnboundedReceiver<Bytes>);

    impl HttpBody for Frames {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.0.poll_recv(context).map(|frame| frame.map(|data| Ok(Frame::data(data))))
        }
    }

    struct Tested {
        runtime: Runtime,
        metrics: Arc<Metrics>,
        budget: Arc<BodyBudget>,
        sender: mpsc::UnboundedSender<Bytes>,
        body: RequestBody,
    }

    impl Tested {
        fn new(method: Method, deadline: Duration) -> Self {
            let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
            let metrics = Arc::new(Metrics::new(MetricNames::Own));
            let budget = BodyBudget::new(Bodies::Requests, Some(1 << 20), 1 << 10, &metrics);
            let (sender, frames) = mpsc::unbounded_channel();
            let reserved = budget.body(None);
            let body =
                RequestBody::new(Body::new(Frames(frames)), (method, ContentEncoding::Identity), reserved, deadline);
            Self { runtime, metrics, budget, sender, body }
        }

        fn send(&self, data: &[u8]) {
            self.sender.send(Bytes::copy_from_slice(data)).expect("the body is read");
        }

        /// The next bytes or the error, or that neither arrived within a time.
        fn next(&mut self, patience: Duration) -> Option<Result<Bytes, Status>> {
            let body = &mut self.body;
            let next = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
            let next = self.runtime.block_on(async { tokio::time::timeout(patience, next).await }).ok()?;
            Some(next.expect("the body has no end").map(|frame| frame.into_data().expect("no trailers")))
        }

        fn receive(&mut self, data: &[u8]) {
            self.send(data);
            assert_eq!(self.next(PATIENCE).expect("a frame").expect("bytes"), data);
        }

        fn counts_timeout(&self, method: &str) -> bool {
            let state = State {
                models: Vec::new(),
                listeners: BTreeMap::new(),
                decoders: Vec::new(),
                ingest_queue: IngestQueueState { bytes: 0, bytes_max: 0 },
                writers: Vec::new(),
                predicted_blocks: 0,
                sections: Vec::new(),
                stalled_threads: 0,
            };
            let text = self.metrics.encode(state, TextFormat::Classic);
            text.contains(&format!("{{method=\"{method}\",code=\"deadline_exceeded\"}} 1\n"))
        }
    }

    /// A message with two bytes, and the start of another one.
    const MESSAGE_AND_BEGIN: [u8; 9] = [0, 0, 0, 0, 2, 7, 7, 0, 0];

    #[test]
    fn an_unfinished_message_ends_its_stream_after_the_deadline() {
        let mut tested = Tested::new(STREAM, AT_ONCE);
        tested.receive(&MESSAGE_AND_BEGIN);
        let end = tested.next(PATIENCE).expect("an end").expect_err("a timeout");
        assert_eq!(end.code(), Code::DeadlineExceeded);
        assert!(tested.counts_timeout("QueryStream"));
        assert_eq!(tested.budget.bytes(), 2, "the start of a message");
        drop(tested.body);
        assert_eq!(tested.budget.bytes(), 0);
    }

    #[test]
    fn each_message_of_a_stream_has_a_deadline_of_its_own() {
        let mut tested = Tested::new(STREAM, NEVER);
        tested.receive(&MESSAGE_AND_BEGIN);
        assert!(tested.next(AT_ONCE).is_none());
        let first = tested.body.waiting.as_ref().expect("a deadline").end.deadline();
        tested.receive(&[0]);
        assert!(tested.next(AT_ONCE).is_none());
        assert_eq!(tested.body.waiting.as_ref().expect("a deadline").end.deadline(), first, "bytes do not extend it");
        tested.receive(&[0, 1, 9, 0]);
        assert!(tested.body.waiting.is_none());
        assert!(tested.next(AT_ONCE).is_none());
        assert!(tested.body.waiting.as_ref().expect("a deadline").end.deadline() > first);
    }

    #[test]
    fn a_stream_may_be_idle_between_messages_and_a_unary_request_may_not() {
        let mut stream = Tested::new(STREAM, Duration::ZERO);
        stream.receive(&MESSAGE_AND_BEGIN[..7]);
        assert!(stream.next(10 * AT_ONCE).is_none());
        assert_eq!(stream.budget.bytes(), 0, "its message is decoded");
        let mut unary = Tested::new(UNARY, Duration::ZERO);
        unary.receive(&MESSAGE_AND_BEGIN[..7]);
        let end = unary.next(PATIENCE).expect("an end").expect_err("a timeout");
        assert_eq!(end.code(), Code::DeadlineExceeded);
        assert!(unary.counts_timeout("Query"));
        assert_eq!(unary.budget.bytes(), 7, "its message is kept until the request ends");
    }
}
