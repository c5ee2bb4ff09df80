//! Decoding and answering of large messages on the threads for large requests.
//!
//! A message is decoded by the poll that receives its last bytes. The request body keeps these bytes back if the message is
//! large. The call, or the response stream, that polled the body then continues on a thread for large requests.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use axum::body::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::body::Body;
use tonic::codegen::{Body as HttpBody, BoxFuture, Service, http};
use tonic::server::NamedService;
use tonic::{Code, Status};
use tracing::debug;

use super::status::{CallDeadline, single_authorization};
use crate::body_limits::BodyLimits;
use crate::traced::{RequestTracer, finish_rpc, trace_parent};
use flash_indexer_admission::{
    AnswerBytes, BodyBytes, ContentEncoding, LargeRequestError, LargeRequests, READ_DEADLINE,
};
use flash_indexer_connections::ConnectionHandle;
use flash_indexer_grpc_bodies::{Method, MethodKind, RequestBody, SharedBody, code_label, exhausted, poll_here};
use flash_indexer_telemetry::metrics::Metrics;
use flash_indexer_traces::RequestSpan;

/// Service whose large messages are decoded and answered on the threads for large requests.
#[derive(Debug, Clone)]
pub(super) struct LargeMessages<S> {
    pub(super) service: S,
    pub(super) bodies: BodyLimits,
    /// Tracer of unary calls. Requests of a stream are traced one by one.
    pub(super) tracer: Option<RequestTracer>,
}

impl<S: NamedService> NamedService for LargeMessages<S> {
    const NAME: &'static str = S::NAME;
}

type InnerCall = BoxFuture<http::Response<Body>, Infallible>;

impl<S> Service<http::Request<Body>> for LargeMessages<S>
where
    S: Service<http::Request<SharedBody>, Response = http::Response<Body>, Error = Infallible, Future = InnerCall>,
{
    type Response = http::Response<ResponseBody>;
    type Error = Infallible;
    type Future = Call;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Call {
        let connection = request.extensions().get::<ConnectionHandle>().cloned();
        let client = connection.as_ref().map(ConnectionHandle::client);
        let reserved = self.bodies.budget.body(client);
        let mut head = self.bodies.budget.body(client);
        let counted = head.add(head_bytes(&request));
        let threads = Threads { large_requests: Arc::clone(&self.bodies.large_requests), client: reserved.client() };
        let method = method_of(request.uri().path());
        let is_unary = method.kind == MethodKind::Unary;
        let deadline = CallDeadline::of(request.headers()).filter(|_| is_unary);
        let read_deadline = deadline.as_ref().map_or(READ_DEADLINE, |deadline| deadline.left().min(READ_DEADLINE));
        let encoding = request.headers().get("grpc-encoding").map(|encoding| encoding.as_bytes());
        let encoding = ContentEncoding::of_messages(encoding);
        let metrics = Arc::clone(reserved.metrics());
        let body = RequestBody::new(std::mem::take(request.body_mut()), (method, encoding), reserved, read_deadline);
        let body = SharedBody::new(body);
        if !is_unary {
            request.extensions_mut().insert(body.clone());
        }
        if let Some(deadline) = &deadline {
            request.extensions_mut().insert(deadline.clone());
        }
        let answer = AnswerBytes::new(&self.bodies.answers, connection);
        let traced = self.span(method, &request);
        let counted = counted.map_err(|reached| exhausted(&reached));
        let work = match counted.and_then(|()| single_authorization(request.headers())) {
            Ok(()) => {
                let call = self.service.call(request.map(|_| body));
                let call: InnerCall = match &traced {
                    None => call,
                    Some(traced) => Box::pin(traced.within(call)),
                };
                Work::Here(call)
            }
            Err(refused) => Work::Here(Box::pin(std::future::ready(Ok(refused.into_http()))) as InnerCall),
        };
        let late = deadline.map(|deadline| DeadlineWait {
            method: method.name,
            since: Instant::now(),
            metrics,
            deadline,
            end: None,
        });
        Call { work, threads, counted: Some((answer, head)), late, traced }
    }
}

impl<S> LargeMessages<S> {
    /// The span of a unary call, if it is traced.
    fn span<B>(&self, method: Method, request: &http::Request<B>) -> Option<RequestSpan> {
        let tracer = self.tracer.as_ref().filter(|_| method.kind == MethodKind::Unary)?;
        let name = if method.name == "other" { "_OTHER" } else { request.uri().path().trim_start_matches('/') };
        tracer.rpc(&trace_parent(request.headers()), name, None)
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

/// A call that is being answered.
pub(super) struct Call {
    work: Work<InnerCall, Result<Result<http::Response<Body>, Infallible>, LargeRequestError>>,
    threads: Threads,
    /// Bytes of its answer and of its head; none after the response was made.
    counted: Option<(AnswerBytes, BodyBytes)>,
    late: Option<DeadlineWait>,
    /// Its span, which ends with the response.
    traced: Option<RequestSpan>,
}

/// The end of a call that waits for a thread until its deadline.
struct DeadlineWait {
    method: &'static str,
    since: Instant,
    metrics: Arc<Metrics>,
    deadline: CallDeadline,
    end: Option<Pin<Box<Sleep>>>,
}

impl DeadlineWait {
    /// Waits until the deadline passes before the method runs.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        let Self { method, since, metrics, deadline, end } = self;
        let end = end.get_or_insert_with(|| Box::pin(sleep(deadline.left())));
        if deadline.is_handled() {
            return Poll::Pending;
        }
        ready!(end.as_mut().poll(context));
        let status = deadline.exceeded();
        metrics.rpc_answered(method, code_label(status.code()), since.elapsed());
        Poll::Ready(status)
    }
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
        if let Some(late) = &mut self.late
            && let Poll::Ready(status) = late.poll(context)
        {
            self.work = Work::Ended;
            return Poll::Ready(Ok(self.respond(status.into_http())));
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
    fn respond(&mut self, response: http::Response<Body>) -> http::Response<ResponseBody> {
        let (answer, head) = self.counted.take().expect("a call has one response");
        let threads = self.threads.clone();
        if let Some(traced) = self.traced.take() {
            let status = Status::from_header_map(response.headers());
            finish_rpc(&traced, status.map_or(Code::Ok, |status| status.code()));
        }
        response.map(|body| ResponseBody { work: Work::Here(body), threads, answer, unsent: Bytes::new(), _head: head })
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

type FrameResult = Option<Result<Frame<Bytes>, Status>>;

/// Bytes of a call's head as HTTP/2 counts them: names and values, and 32 bytes for each.
fn head_bytes(request: &http::Request<Body>) -> usize {
    const FIELD_BYTES: usize = 32;
    let fields = request.headers().iter();
    let uri = request.uri().path().len() + FIELD_BYTES;
    fields.map(|(name, value)| name.as_str().len() + value.len() + FIELD_BYTES).sum::<usize>() + uri
}

/// Longest frame of a response, in bytes. The client reads a long answer frame by frame, which shows that it is still reading.
const ANSWER_FRAME_BYTES: usize = 64 << 10;

/// Body of a response, whose bytes count in the budget of answers until they are sent. If it is a stream, it receives further
/// messages.
pub(super) struct ResponseBody {
    work: Work<Body, Result<(Body, FrameResult), LargeRequestError>>,
    threads: Threads,
    answer: AnswerBytes,
    /// Counted bytes that were not returned yet.
    unsent: Bytes,
    /// Bytes of the call's head. They count until the call ends, which limits the number of open streams as well.
    _head: BodyBytes,
}

impl ResponseBody {
    /// Counts the data of a frame. A refusal ends the response.
    fn count(&mut self, frame: FrameResult) -> FrameResult {
        let data = match frame?.map(Frame::into_data) {
            Ok(Ok(data)) => data,
            Ok(Err(trailers)) => return Some(Ok(trailers)),
            Err(failed) => return Some(Err(failed)),
        };
        if let Err(reached) = self.answer.add(data.len()) {
            self.work = Work::Ended;
            return Some(Ok(last_frame(&exhausted(&reached))));
        }
        self.unsent = data;
        Some(Ok(self.next_part()))
    }

    fn next_part(&mut self) -> Frame<Bytes> {
        let part = self.unsent.split_to(self.unsent.len().min(ANSWER_FRAME_BYTES));
        Frame::data(self.answer.send(part))
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<FrameResult> {
        if !self.unsent.is_empty() {
            return Poll::Ready(Some(Ok(self.next_part())));
        }
        if let Work::Here(body) = &mut self.work {
            if let Some(polled) = poll_here(|| Pin::new(body).poll_frame(context)) {
                return polled.map(|frame| self.count(frame));
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
        Poll::Ready(self.count(frame))
    }

    fn is_end_stream(&self) -> bool {
        match &self.work {
            Work::Here(body) => self.unsent.is_empty() && body.is_end_stream(),
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

/// The method of a request's path.
fn method_of(path: &str) -> Method {
    let (name, kind) = match path.rsplit('/').next() {
        Some("Query") => ("Query", MethodKind::Unary),
        Some("ServerReflectionInfo") => ("other", MethodKind::Streaming),
        Some("QueryStream") => ("QueryStream", MethodKind::Streaming),
        Some("Predict") => ("Predict", MethodKind::Unary),
        Some("Pick") => ("Pick", MethodKind::Unary),
        Some("Done") => ("Done", MethodKind::Unary),
        Some("Process") => ("Process", MethodKind::Streaming),
        Some("GetPodScores") => ("GetPodScores", MethodKind::Unary),
        _ => ("other", MethodKind::Unary),
    };
    Method { name, kind }
}

#[cfg(test)]
mod tests {
    use flash_indexer_telemetry::metrics::{MetricNames, Metrics};

    use super::*;
    use flash_indexer_admission::{Bodies, BodyBudget};

    #[tokio::test]
    async fn a_long_answer_is_sent_in_bounded_frames_whose_bytes_count_until_each_is_written() {
        const FRAMES: usize = 3;
        let metrics = Arc::new(Metrics::new(MetricNames::Own));
        let budget = BodyBudget::new(Bodies::Answers, Some(1 << 20), 1 << 10, &metrics);
        let large_requests = Arc::new(LargeRequests::start(&metrics).expect("a thread"));
        let answer: Vec<u8> = (0..FRAMES * ANSWER_FRAME_BYTES + 1).map(|at| (at % 251) as u8).collect();
        let body = axum::body::Body::from(answer.clone());
        let mut body = ResponseBody {
            work: Work::Here(Body::new(body)),
            threads: Threads { large_requests, client: budget.body(None).client() },
            answer: AnswerBytes::new(&budget, None),
            unsent: Bytes::new(),
            _head: budget.body(None),
        };
        let (mut lengths, mut sent) = (Vec::new(), Vec::new());
        while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            let part = frame.expect("no error").into_data().expect("data");
            assert_eq!(budget.bytes(), answer.len() - sent.len(), "the bytes of this frame and of the unsent ones");
            lengths.push(part.len());
            sent.extend_from_slice(&part);
        }
        assert_eq!(lengths, [ANSWER_FRAME_BYTES, ANSWER_FRAME_BYTES, ANSWER_FRAME_BYTES, 1]);
        assert!(sent == answer, "the frames are the answer");
        assert_eq!(budget.bytes(), 0);
    }
}
