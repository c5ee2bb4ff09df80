//! `indexer.v1.IndexerService`: scores of instances.

use std::num::NonZeroUsize;

use chat_template::ChatRequest;
use flash_indexer_prompt::tokenize::{Prompt, PromptOptions};
use tonic::{Request, Response, Status};

use super::Shared;
use super::proto::indexer_service_server::IndexerService;
use super::proto::{GetPodScoresRequest, GetPodScoresResponse, PodScore};
use super::router_service::{given, model_key};
use super::status::{RpcError, within_deadline};
use flash_indexer_registry::TokenPrompt;
use flash_indexer_registry::{PodFilter, ScoreOptions};
use flash_indexer_types::names::shorten;

pub(super) struct Scores(pub(super) Shared);

#[tonic::async_trait]
impl IndexerService for Scores {
    async fn get_pod_scores(
        &self,
        request: Request<GetPodScoresRequest>,
    ) -> Result<Response<GetPodScoresResponse>, Status> {
        let in_flight = self.0.in_flight("GetPodScores");
        let (metadata, _, request) = request.into_parts();
        in_flight.finish(within_deadline(&metadata, self.scores(request)).await)
    }
}

impl Scores {
    async fn scores(&self, request: GetPodScoresRequest) -> Result<GetPodScoresResponse, RpcError> {
        let indexer = &self.0.indexer;
        let key = model_key(&request.model_name, &request.tenant_id)?;
        let forms = [!request.token_ids.is_empty(), request.prompt.is_some(), !request.chat_json.is_empty()];
        if forms.iter().filter(|given| **given).count() > 1 {
            let message = "token_ids, prompt and chat_json are alternatives: give one of them";
            return Err(Status::invalid_argument(message).into());
        }
        let tokenize = async |prompt| {
            indexer.tokens(&key.model_name, prompt, PromptOptions::default()).await.map_err(RpcError::from)
        };
        let tokens = match request.prompt {
            Some(text) => tokenize(Prompt::Text(text)).await?,
            None if !request.chat_json.is_empty() => {
                let chat: ChatRequest = serde_json::from_str(&request.chat_json)
                    .map_err(|error| Status::invalid_argument(shorten(format!("chat_json is not a chat: {error}"))))?;
                tokenize(Prompt::Chat(Box::new(chat))).await?
            }
            None => request.token_ids,
        };
        let prompt = TokenPrompt {
            tokens: &tokens,
            lora_name: given(&request.lora_name),
            cache_salt: given(&request.cache_salt),
        };
        let options = ScoreOptions {
            pods: PodFilter::of(request.pod_identifiers),
            top_k: NonZeroUsize::new(request.top_k as usize),
        };
        let scores = indexer.score(&key, prompt, &options).await?;
        let pods = scores.pods.into_iter().map(|pod| PodScore {
            pod: pod.pod.to_string(),
            score: pod.score,
            held_blocks: pod.held_blocks,
            predicted_blocks: pod.predicted_blocks,
            trust: pod.trust.as_str().to_owned(),
            partial: pod.partial,
        });
        let store = scores.store.as_str().unwrap_or_default().to_owned();
        Ok(GetPodScoresResponse { scores: pods.collect(), prompt_blocks: scores.blocks as u32, store })
    }
}
