//! `indexer.v1.IndexerService`: scores of instances.

use std::borrow::Cow;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::time::SystemTime;

use flash_indexer_connections::ConnectionHandle;
use flash_indexer_engine_chats::Chat;
use flash_indexer_prompt::tokenize::{Prompt, PromptOptions, Tokenized};
use flash_indexer_registry::ScoreOptions;
use flash_indexer_traces::{Stage, stage};
use flash_indexer_types::InstanceId;
use flash_indexer_types::names::shorten;
use tonic::{Request, Response, Status};

use super::GrpcState;
use super::lists::read_tokens;
use super::proto::indexer_service_server::IndexerService;
use super::proto::{GetPodScoresRequest, GetPodScoresResponse, PartialPrompt, PodScore};
use super::router_service::{model_key, token_prompt};
use super::status::{RpcError, authorization, within_deadline};
use crate::engines::{chat_engine, media_reason};

pub(super) struct Scores(pub(super) GrpcState);

#[tonic::async_trait]
impl IndexerService for Scores {
    async fn get_pod_scores(
        &self,
        request: Request<GetPodScoresRequest>,
    ) -> Result<Response<GetPodScoresResponse>, Status> {
        let in_flight = self.0.in_flight("GetPodScores");
        let (metadata, extensions, request) = request.into_parts();
        let client = extensions.get::<ConnectionHandle>().map(ConnectionHandle::client);
        let scores = self.scores(request, client, authorization(&metadata));
        in_flight.finish(within_deadline(&extensions, scores).await)
    }
}

impl Scores {
    async fn scores(
        &self,
        request: GetPodScoresRequest,
        client: Option<IpAddr>,
        authorization: Option<&[u8]>,
    ) -> Result<GetPodScoresResponse, RpcError> {
        let indexer = &self.0.indexer;
        let grant = self.0.admit(authorization)?;
        let key = model_key(&request.model_name, &request.tenant_id, &grant)?;
        let given_tokens = read_tokens(&request.token_ids, &request.token_bytes)?;
        let forms = [!given_tokens.is_empty(), request.prompt.is_some(), !request.chat_json.is_empty()];
        if forms.iter().filter(|given| **given).count() > 1 {
            let message = "token_ids (or token_bytes), prompt and chat_json are alternatives: give one of them";
            return Err(Status::invalid_argument(message).into());
        }
        self.0.access.admit_query(&key, given_tokens.len())?;
        let engine = chat_engine(indexer.engine_of(&key));
        let tokenize = async |prompt| {
            let options = PromptOptions { engine: Some(engine), ..PromptOptions::default() };
            let tokenized = self.0.texts.tokenize((indexer, &key.model_name), client, prompt, options).await;
            let Tokenized { ids, media, .. } = tokenized.map_err(RpcError::from)?;
            self.0.access.charge(&key, ids.len());
            Ok::<_, RpcError>((Cow::Owned(ids), media))
        };
        let (tokens, media) = match request.prompt {
            Some(text) => tokenize(Prompt::Text(text)).await?,
            None if !request.chat_json.is_empty() => {
                let chat = Chat::from_body(request.chat_json.as_bytes(), engine, SystemTime::now())
                    .map_err(|error| Status::invalid_argument(shorten(format!("chat_json is not a chat: {error}"))))?;
                tokenize(Prompt::Chat(Box::new(chat))).await?
            }
            None => (given_tokens, None),
        };
        let prompt = token_prompt(&tokens, &request.lora_name, &request.cache_salt);
        let instances = request.pod_identifiers.iter().map(|pod| InstanceId::parse(pod)).collect::<Result<_, _>>()?;
        let options = ScoreOptions { instances, top_k: NonZeroUsize::new(request.top_k as usize) };
        let scores = indexer.score(&key, prompt, &options).await?;
        let _answer = stage(Stage::Answer);
        let pods = scores.instances.into_iter().map(|pod| PodScore {
            pod: pod.instance.to_string(),
            score: pod.score,
            held_blocks: pod.held_blocks,
            predicted_blocks: pod.predicted_blocks,
            trust: pod.trust.as_str().to_owned(),
            partial: pod.partial,
            shared_caches: pod.shared.into_iter().map(|(cache, blocks)| (cache.to_string(), blocks)).collect(),
        });
        let store = scores.store.as_str().unwrap_or_default().to_owned();
        let prompt_blocks = scores.blocks as u32;
        let partial = media.map(|kind| PartialPrompt {
            from_block: prompt_blocks,
            from_token: tokens.len() as u32,
            reason: media_reason(kind),
        });
        Ok(GetPodScoresResponse { scores: pods.collect(), prompt_blocks, store, partial })
    }
}
