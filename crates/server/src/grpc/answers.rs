//! Answers to a stream of queries.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use tonic::{Response, Status, Streaming};

use super::proto::{Error, QueryRequest, QueryResponse};
use super::{Shared, until_true};

/// Answers to a stream of requests: each is computed when the one before it was taken, so a client that does not read is
/// not read from either.
pub(super) struct Answers {
    requests: Streaming<QueryRequest>,
    shared: Shared,
    /// An answer that waits for the store.
    waiting: Option<Pin<Box<dyn Future<Output = QueryResponse> + Send>>>,
    stopped: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_over: bool,
}

impl Answers {
    pub(super) fn to(requests: Streaming<QueryRequest>, shared: &Shared) -> Self {
        let stopped = Box::pin(until_true(shared.stopping.clone()));
        Self { requests, shared: shared.clone(), waiting: None, stopped, is_over: false }
    }

    fn poll_waiting(&mut self, context: &mut Context<'_>) -> Poll<Option<QueryResponse>> {
        let Some(waiting) = &mut self.waiting else { return Poll::Ready(None) };
        let answer = ready!(waiting.as_mut().poll(context));
        self.waiting = None;
        Poll::Ready(Some(answer))
    }
}

impl Stream for Answers {
    type Item = Result<QueryResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if self.stopped.as_mut().poll(context).is_ready() {
            self.is_over = true;
            return Poll::Ready(Some(Err(Status::unavailable("the service is stopping: ask another replica"))));
        }
        if let Some(answer) = ready!(self.poll_waiting(context)) {
            return Poll::Ready(Some(Ok(answer)));
        }
        let request = match ready!(Pin::new(&mut self.requests).poll_next(context)) {
            Some(Ok(request)) => request,
            over => {
                self.is_over = true;
                return Poll::Ready(over.map(|failed| failed.map(|_| QueryResponse::default())));
            }
        };
        let answering = self.shared.answering("QueryStream");
        if !self.shared.indexer.is_shared() {
            let answer = self.shared.query_here(&request);
            return Poll::Ready(Some(Ok(in_stream(&request, answering.with(answer)))));
        }
        let shared = self.shared.clone();
        self.waiting = Some(Box::pin(async move {
            let answer = shared.query(&request).await;
            in_stream(&request, answering.with(answer))
        }));
        self.poll_waiting(context).map(|answer| answer.map(Ok))
    }
}

/// A failure is an answer as well in a stream.
fn in_stream(request: &QueryRequest, answer: Result<Response<QueryResponse>, Status>) -> QueryResponse {
    answer.map(Response::into_inner).unwrap_or_else(|status| QueryResponse {
        request_id: request.request_id,
        error: Some(Error { code: status.code().into(), message: status.message().to_owned() }),
        ..QueryResponse::default()
    })
}
