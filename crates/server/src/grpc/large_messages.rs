//! Decoding and answering of large messages on the threads for large requests.
//!
//! A message is decoded by the poll that receives its last bytes. The request body keeps these bytes back if the message is
//! large. The call, or the response stream, that polled the body then continues on a thread for large requests.

use std::cell::Cell;
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Bytes;
use http_body::{Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Body as HttpBody, BoxFuture, Service, http};
use tonic::server::NamedService;
use tracing::debug;

use crate::body_budget::{BodyBytes, BodyLimits};
use crate::large_requests::{LARGE_BYTES, LargeRequestError, LargeRequests};
use flash_indexer_connections::ConnectionHandle;

thread_local! {
    /// Whether a request body keeps the end of a large message back since this thread began the current poll.
    static KEEPS_BACK: Cell<bool> = const { Cell::new(false) };
}

/// Service whose large messages are decoded and answered on the threads for large requests.
#[derive(Debug, Clone)]
pub(super) struct LargeMessages<S> {
    pub(super) service: S,
    pub(super) bodies: BodyLimits,
}

impl<S: NamedService> NamedService for LargeMessages<S> {
    const NAME: &'static str = S::NAME;
}

type InnerCall = BoxFuture<http::Response<Body>, Infallible>;

impl<S> Service<http::Request<Body>> for LargeMessages<S>
where
    S: Service<http::Request<RequestBody>, Response = http::Response<Body>, Error = Infallible, Future = InnerCall>,
{
    type Response = http::Response<ResponseBody>;
    type Error = Infallible;
    type Future = Call;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Call {
        let client = request.extensions().get::<ConnectionHandle>().map(ConnectionHandle::client);
        let reserved = self.bodies.budget.body(client);
        let threads = Threads { large_requests: Arc::clone(&self.bodies.large_requests), client: reserved.client() };
        let call = self.service.call(request.map(|body| RequestBody::new(body, reserved)));
        Call { work: Work::Here(call), threads }
    }
}

/// Threads for large requests, on behalf of a client.
#[derive(Debug, Clone)]
struct Threads {
    large_requests: Arc<LargeRequests>,
    client: IpAddr,
}

impl Threads {
    async fn run<T: Send + 'static>(
        self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, LargeRequestError> {
        self.large_requests.run(self.client, work).await
    }
}

/// Work that continues on a thread for large requests once it has received a large message.
enum Work<T, U> {
    /// On the thread that serves all requests.
    Here(T),
    Moved(Pin<Box<dyn Future<Output = U> + Send>>),
    Ended,
}

/// Polls work. `None` if it has received a large message, and has to continue elsewhere.
fn poll_here<T>(poll: impl FnOnce() -> Poll<T>) -> Option<Poll<T>> {
    KEEPS_BACK.set(false);
    let polled = poll();
    (polled.is_ready() || !KEEPS_BACK.take()).then_some(polled)
}

/// A call that is being answered.
pub(super) struct Call {
    work: Work<InnerCall, Result<Result<http::Response<Body>, Infallible>, LargeRequestError>>,
    threads: Threads,
}

impl Future for Call {
    type Output = Result<http::Response<ResponseBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Work::Here(call) = &mut self.work {
            if let Some(polled) = poll_here(|| call.as_mut().poll(context)) {
                let Ok(response) = ready!(polled);
                return Poll::Ready(Ok(self.respond(response)));
            }
            let Work::Here(call) = std::mem::replace(&mut self.work, Work::Ended) else { unreachable!("it is here") };
            self.work = Work::Moved(Box::pin(self.threads.clone().run(call)));
        }
        let Work::Moved(call) = &mut self.work else { unreachable!("it is polled after its end") };
        let response = match ready!(call.as_mut().poll(context)) {
            Ok(Ok(response)) => response,
            Err(error) => status(&error).into_http(),
        };
        Poll::Ready(Ok(self.respond(response)))
    }
}

impl Call {
    fn respond(&self, response: http::Response<Body>) -> http::Response<ResponseBody> {
        response.map(|body| ResponseBody { work: Work::Here(body), threads: self.threads.clone() })
    }
}

fn status(error: &LargeRequestError) -> Status {
    match error {
        LargeRequestError::Full => exhausted(error),
        LargeRequestError::Ended(error) if error.is_panic() => {
            Status::internal("the request panicked; report this bug with the log")
        }
        LargeRequestError::Ended(_) => Status::unavailable("the service is stopping; ask another replica"),
    }
}

/// Frame that ends a stream with this status. An error of the body would reset the stream, and the status would be lost.
fn last_frame(status: &Status) -> Frame<Bytes> {
    let mut trailers = http::HeaderMap::new();
    if let Err(unfit) = status.add_header(&mut trailers) {
        debug!(%unfit, "failed to encode a status");
    }
    Frame::trailers(trailers)
}

/// Status of a limit that was reached, and counted there.
fn exhausted(error: &impl std::error::Error) -> Status {
    let mut status = Status::resource_exhausted(error.to_string());
    status.metadata_mut().insert("retry-after", 1.into());
    status
}

type FrameResult = Option<Result<Frame<Bytes>, Status>>;

/// Body of a response. If it is a stream, it receives further messages.
pub(super) struct ResponseBody {
    work: Work<Body, Result<(Body, FrameResult), LargeRequestError>>,
    threads: Threads,
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<FrameResult> {
        if let Work::Here(body) = &mut self.work {
            if let Some(polled) = poll_here(|| Pin::new(body).poll_frame(context)) {
                return polled;
            }
            let Work::Here(mut body) = std::mem::replace(&mut self.work, Work::Ended) else {
                unreachable!("it is here")
            };
            // A stream waits for its turn: it reads no further message meanwhile.
            self.work = Work::Moved(Box::pin(self.threads.clone().run(async move {
                let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
                (body, frame)
            })));
        }
        let Work::Moved(next) = &mut self.work else { return Poll::Ready(None) };
        let next = ready!(next.as_mut().poll(context));
        self.work = Work::Ended;
        let (body, frame) = match next {
            Ok(next) => next,
            Err(error) => return Poll::Ready(Some(Ok(last_frame(&status(&error))))),
        };
        self.work = Work::Here(body);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.work {
            Work::Here(body) => body.is_end_stream(),
            Work::Moved(_) => false,
            Work::Ended => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.work {
            Work::Here(body) => body.size_hint(),
            Work::Moved(_) | Work::Ended => SizeHint::default(),
        }
    }
}

/// Body of a request. It keeps the end of a large message back from the threads that serve all requests.
pub(super) struct RequestBody {
    body: Body,
    messages: MessageReader,
    /// Received bytes that were not returned yet.
    received: Bytes,
    kept_back: Option<Bytes>,
    /// Bytes of the messages that are not decoded yet.
    reserved: BodyBytes,
}

impl RequestBody {
    fn new(body: Body, reserved: BodyBytes) -> Self {
        Self { body, messages: MessageReader::default(), received: Bytes::new(), kept_back: None, reserved }
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<FrameResult> {
        if let Some(end) = self.kept_back.take() {
            return Poll::Ready(Some(Ok(Frame::data(end))));
        }
        // Finished messages are decoded, and in a stream answered, before the body is polled again.
        let undecoded = self.messages.unfinished_bytes() + self.received.len();
        self.reserved.shrink(undecoded);
        if self.received.is_empty() {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                end => return Poll::Ready(end),
            };
            match frame.into_data() {
                Ok(data) => match self.reserved.add(data.len()) {
                    Ok(()) => self.received = data,
                    Err(reached) => return Poll::Ready(Some(Err(exhausted(&reached)))),
                },
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        let Self { messages, received, .. } = &mut *self;
        let (bytes, ends_large) = messages.next_part(received);
        if ends_large && !LargeRequests::is_current_thread() {
            self.kept_back = Some(bytes);
            KEEPS_BACK.set(true);
            return Poll::Pending;
        }
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.kept_back.is_none() && self.received.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// Bytes before a message: whether it is compressed, and its length.
const HEADER_BYTES: usize = 5;

/// Reader of the boundaries of messages.
#[derive(Debug)]
enum MessageReader {
    Header { bytes: [u8; HEADER_BYTES], filled: usize },
    Message { length: usize, bytes_left: usize, is_large: bool },
}

impl Default for MessageReader {
    fn default() -> Self {
        Self::Header { bytes: [0; HEADER_BYTES], filled: 0 }
    }
}

impl MessageReader {
    /// Bytes of the current message that were taken, with its header.
    fn unfinished_bytes(&self) -> usize {
        match self {
            Self::Header { filled, .. } => *filled,
            Self::Message { length, bytes_left, .. } => HEADER_BYTES + length - bytes_left,
        }
    }

    /// Takes bytes up to the end of a large message, or up to where a large message follows others. Returns them, and
    /// whether a large message ends with them.
    ///
    /// A compressed message counts as large: its size is not known.
    fn next_part(&mut self, received: &mut Bytes) -> (Bytes, bool) {
        let (mut end, mut has_ended_message) = (0, false);
        loop {
            match self {
                Self::Header { bytes, filled } => {
                    let taken = (HEADER_BYTES - *filled).min(received.len() - end);
                    bytes[*filled..*filled + taken].copy_from_slice(&received[end..end + taken]);
                    *filled += taken;
                    end += taken;
                    if *filled < HEADER_BYTES {
                        return (received.split_to(end), false);
                    }
                    let [compressed, length @ ..] = *bytes;
                    let length = u32::from_be_bytes(length) as usize;
                    let is_large = length > LARGE_BYTES || (compressed != 0 && length > 0);
                    *self = Self::Message { length, bytes_left: length, is_large };
                    if is_large && has_ended_message {
                        return (received.split_to(end), false);
                    }
                }
                Self::Message { bytes_left, is_large, .. } => {
                    let taken = (*bytes_left).min(received.len() - end);
                    *bytes_left -= taken;
                    end += taken;
                    if *bytes_left > 0 {
                        return (received.split_to(end), false);
                    }
                    let is_large = *is_large;
                    *self = Self::default();
                    has_ended_message = true;
                    if is_large {
                        return (received.split_to(end), true);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A message of a stream: whether it is compressed, and its length.
    fn message() -> impl Strategy<Value = (bool, usize)> {
        let length = prop_oneof![4 => 0..20_usize, 1 => Just(LARGE_BYTES), 1 => Just(LARGE_BYTES + 1)];
        (prop::bool::weighted(0.2), length)
    }

    proptest! {
        #[test]
        fn a_large_message_ends_alone_at_the_end_of_a_part(
            messages in prop::collection::vec(message(), 0..6),
            chunk_bytes in prop_oneof![1..40_usize, Just(1 << 14), Just(usize::MAX)],
        ) {
            let mut stream = Vec::new();
            let mut ends = Vec::new();
            for &(is_compressed, length) in &messages {
                stream.push(u8::from(is_compressed));
                stream.extend((length as u32).to_be_bytes());
                stream.extend(std::iter::repeat_n(7, length));
                ends.push((stream.len(), length > LARGE_BYTES || (is_compressed && length > 0)));
            }
            let (mut reader, mut position) = (MessageReader::default(), 0);
            for chunk in stream.chunks(chunk_bytes.min(stream.len().max(1))) {
                let mut received = Bytes::copy_from_slice(chunk);
                while !received.is_empty() {
                    let (part, ends_large) = reader.next_part(&mut received);
                    let end = position + part.len();
                    prop_assert_eq!(&part[..], &stream[position..end]);
                    let ended: Vec<bool> =
                        ends.iter().filter(|(at, _)| (position + 1..=end).contains(at)).map(|(_, large)| *large).collect();
                    prop_assert_eq!(ends_large, ended.contains(&true));
                    prop_assert!(!ends_large || ended.len() == 1 && ends.contains(&(end, true)));
                    position = end;
                }
            }
            prop_assert_eq!(position, stream.len());
        }
    }
}
