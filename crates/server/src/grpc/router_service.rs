//! `flash_indexer.v1.RouterService`: queries by tokens or hashes, one by one or in a stream.

use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use flash_indexer_core::{LocalHash, Tier};
use futures_core::Stream;
use tonic::{Request, Response, Status, Streaming};

use super::proto::router_service_server::RouterService;
use super::proto::{Error, PredictRequest, PredictResponse, QueryRequest, QueryResponse, RankMatch};
use super::{Shared, until_true};
use crate::answer::{Answer, QueryOptions, RankAnswer};
use crate::indexer::TokenPrompt;
use crate::instance::{InstanceId, ModelKey};

pub(super) struct Router(pub(super) Shared);

#[tonic::async_trait]
impl RouterService for Router {
    async fn query(&self, request: Request<QueryRequest>) -> Result<Response<QueryResponse>, Status> {
        let start = Instant::now();
        self.0.answered("Query", start, self.0.query(&request.into_inner()))
    }

    type QueryStreamStream = Answers;

    async fn query_stream(&self, request: Request<Streaming<QueryRequest>>) -> Result<Response<Answers>, Status> {
        let stopped = Box::pin(until_true(self.0.stopping.clone()));
        Ok(Response::new(Answers { requests: request.into_inner(), shared: self.0.clone(), stopped, is_over: false }))
    }

    async fn predict(&self, request: Request<PredictRequest>) -> Result<Response<PredictResponse>, Status> {
        let start = Instant::now();
        self.0.answered("Predict", start, self.0.predict(&request.into_inner()))
    }
}

/// Answers to a stream of requests: each is computed when the one before it was taken, so a client that does not read is
/// not read from either.
pub(super) struct Answers {
    requests: Streaming<QueryRequest>,
    shared: Shared,
    stopped: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_over: bool,
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
        let request = match Pin::new(&mut self.requests).poll_next(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Some(Ok(request))) => request,
            Poll::Ready(over) => {
                self.is_over = true;
                return Poll::Ready(over.map(|failed| failed.map(|_| QueryResponse::default())));
            }
        };
        let start = Instant::now();
        let answer = self.shared.answered("QueryStream", start, self.shared.query(&request));
        let answer = answer.map(Response::into_inner).unwrap_or_else(|status| QueryResponse {
            request_id: request.request_id,
            error: Some(Error { code: status.code().into(), message: status.message().to_owned() }),
            ..QueryResponse::default()
        });
        Poll::Ready(Some(Ok(answer)))
    }
}

impl Shared {
    fn query(&self, request: &QueryRequest) -> Result<QueryResponse, Status> {
        let key = model_key(&request.model_name, &request.tenant_id)?;
        let options = QueryOptions {
            top_k: NonZeroUsize::new(request.top_k as usize),
            min_score: (request.min_score > 0).then_some(request.min_score),
        };
        let (lora_name, cache_salt) = (given(&request.lora_name), given(&request.cache_salt));
        let answer = if request.block_hashes.is_empty() {
            self.indexer.query_tokens(&key, &request.token_ids, lora_name, cache_salt, options)?
        } else if !request.token_ids.is_empty() {
            let message = "token_ids and block_hashes are forms of one prompt: give one of them";
            return Err(Status::invalid_argument(message));
        } else if lora_name.is_some() || cache_salt.is_some() {
            let message = "block_hashes have the adapter and the salt in them: leave out lora_name and cache_salt";
            return Err(Status::invalid_argument(message));
        } else {
            let locals: Vec<LocalHash> = request.block_hashes.iter().copied().map(LocalHash).collect();
            self.indexer.query_hashes(&key, &locals, options)?
        };
        Ok(response(answer, request))
    }

    fn predict(&self, request: &PredictRequest) -> Result<PredictResponse, Status> {
        let key = model_key(&request.model_name, &request.tenant_id)?;
        let pod = InstanceId::parse(&request.pod).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let ttl = (request.ttl_ms > 0).then(|| Duration::from_millis(request.ttl_ms.into()));
        let prompt = TokenPrompt {
            tokens: &request.token_ids,
            lora_name: given(&request.lora_name),
            cache_salt: given(&request.cache_salt),
        };
        let predicted = self.indexer.predict(&key, prompt, &pod, ttl)?;
        Ok(PredictResponse { blocks: predicted.blocks as u32 })
    }
}

fn response(answer: Answer, request: &QueryRequest) -> QueryResponse {
    let rank = |rank: RankAnswer| RankMatch {
        instance_id: rank.instance.to_string(),
        dp_rank: rank.dp_rank.0,
        gpu: rank.tokens[Tier::Device],
        cpu: rank.tokens[Tier::Host],
        disk: rank.tokens[Tier::Disk],
        longest_matched: rank.tokens[Tier::External],
        trust: rank.trust.as_str().to_owned(),
        tree_size: request.tree_sizes.then_some(rank.blocks_held as u64),
    };
    QueryResponse {
        request_id: request.request_id,
        ranks: answer.ranks.into_iter().map(rank).collect(),
        frequencies: answer.frequencies,
        error: None,
    }
}

/// Which index a request is about.
pub(super) fn model_key(model_name: &str, tenant_id: &str) -> Result<ModelKey, Status> {
    if model_name.is_empty() {
        return Err(Status::invalid_argument("model_name is missing: name the model as it was registered"));
    }
    Ok(ModelKey::new(model_name, given(tenant_id).map(str::to_owned)))
}

/// A field's text, if it has one: a text that is not there is empty.
pub(super) fn given(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}
