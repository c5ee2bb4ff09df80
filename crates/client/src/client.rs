//! The calls.

use std::time::Duration;

use flash_indexer_api::{
    DoneRequest, ExplainRequest, Explanation, HashQuery, ModelScope, Pick, PodScores, Prediction, QueryResponse,
    Readiness, RegisterRequest, Success, TokenQuery, TokenizedPrompt, UnregisterRequest, Unregistration, Worker,
};
use flash_indexer_types::InstanceId;
use serde_json::{Value, json};

use crate::send::{Call, Sender};
use crate::{ClientError, Prompt, PromptOptions};

const DEFAULT_DEADLINE: Duration = Duration::from_secs(2);

/// A service. Clones share its connections.
#[derive(Debug, Clone)]
pub struct Client(Sender);

/// Every call fails with [`ClientError`]: the service cannot be reached or refuses the request, or the deadline passes.
#[allow(clippy::missing_errors_doc, reason = "the errors of all calls are the same")]
impl Client {
    /// A client of the service at a URL, such as `http://127.0.0.1:8090`. It connects with the first call.
    pub fn new(url: &str) -> Result<Self, ClientError> {
        let http = reqwest::Client::new();
        let sender = Sender { http, url: url.to_owned(), token: None, deadline: DEFAULT_DEADLINE };
        sender.base_url()?;
        Ok(Self(sender))
    }

    /// This client with a bearer token.
    #[must_use]
    pub fn with_token(self, token: &str) -> Self {
        Self(Sender { token: Some(token.to_owned()), ..self.0 })
    }

    /// This client with another deadline for each call.
    #[must_use]
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Self(Sender { deadline, ..self.0 })
    }

    /// This client with an HTTP client that has, for example, TLS and certificates.
    #[must_use]
    pub fn with_http_client(self, http: reqwest::Client) -> Self {
        Self(Sender { http, ..self.0 })
    }

    /// Registers a rank.
    pub async fn register(&self, rank: &RegisterRequest) -> Result<(), ClientError> {
        self.0.send(Call::json("/register", rank)?).await.map(|_: Success| ())
    }

    /// Unregisters an instance, or one of its ranks.
    pub async fn unregister(&self, instance: &UnregisterRequest) -> Result<Unregistration, ClientError> {
        self.0.send(Call::json("/unregister", instance)?.not_repeatable()).await
    }

    /// All registered instances with their listeners.
    pub async fn workers(&self) -> Result<Vec<Worker>, ClientError> {
        self.0.send(Call::get("/workers")).await
    }

    /// The prefix of a prompt's tokens that each instance holds. An outdated `after` is an error for which
    /// [`ClientError::is_unknown_cursor`] is true.
    pub async fn query(&self, query: &TokenQuery) -> Result<QueryResponse, ClientError> {
        let TokenQuery { token_ids, scope, lora_name, cache_salt, top_k, min_score, after } = query;
        let parameters = [
            ("lora_name", lora_name.clone()),
            ("cache_salt", cache_salt.clone()),
            ("top_k", top_k.map(|count| count.to_string())),
            ("min_score", min_score.map(|tokens| tokens.to_string())),
            ("after", after.map(|cursor| cursor.0.to_string())),
        ];
        let body = token_ids.iter().flat_map(|token| token.to_le_bytes()).collect();
        self.0.send(Call::binary("/query", body, with_scope(scope, parameters))).await
    }

    /// [`Self::query`] by [`crate::local_hashes`], so the tokens stay with the caller.
    pub async fn query_by_hash(&self, query: &HashQuery) -> Result<QueryResponse, ClientError> {
        let HashQuery { block_hashes, scope, top_k, min_score, after } = query;
        let parameters = [
            ("top_k", top_k.map(|count| count.to_string())),
            ("min_score", min_score.map(|tokens| tokens.to_string())),
            ("after", after.map(|cursor| cursor.0.to_string())),
        ];
        let body = block_hashes.iter().flat_map(|hash| hash.0.to_le_bytes()).collect();
        self.0.send(Call::binary("/query_by_hash", body, with_scope(scope, parameters))).await
    }

    /// Scores of the instances that hold a part of a prompt.
    pub async fn score(&self, prompt: Prompt<'_>, options: &PromptOptions) -> Result<PodScores, ClientError> {
        let path = if prompt.is_chat() { "/score_chat_completions" } else { "/score_completions" };
        let mut body = prompt.body(options)?;
        body.insert("detail".to_owned(), Value::Bool(true));
        self.0.send(Call::json(path, &body)?).await
    }

    /// Reports the instance to which a prompt was sent. Later scores count it.
    pub async fn predict(
        &self,
        instance: &InstanceId,
        prompt: Prompt<'_>,
        options: &PromptOptions,
    ) -> Result<Prediction, ClientError> {
        let mut body = prompt.body(options)?;
        body.insert("pod".to_owned(), json!(instance));
        self.0.send(Call::json("/predict", &body)?.not_repeatable()).await
    }

    /// Picks an instance for a prompt.
    pub async fn pick(&self, prompt: Prompt<'_>, options: &PromptOptions) -> Result<Pick, ClientError> {
        self.0.send(Call::json("/pick", &prompt.body(options)?)?.not_repeatable()).await
    }

    /// Reports the end of a request that [`Self::pick`] or [`Self::predict`] named, or of its prefill.
    pub async fn done(&self, request: &DoneRequest) -> Result<(), ClientError> {
        self.0.send(Call::json("/done", request)?).await.map(|_: Success| ())
    }

    /// Where each rank's match of a prompt ends, and why.
    pub async fn explain(&self, request: &ExplainRequest) -> Result<Explanation, ClientError> {
        self.0.send(Call::json("/explain", request)?).await
    }

    /// The tokens for which the scores of a prompt are computed.
    pub async fn tokenize(&self, prompt: Prompt<'_>) -> Result<TokenizedPrompt, ClientError> {
        self.0.send(Call::json("/tokenize", &prompt.body(&PromptOptions::default())?)?).await
    }

    /// The state of a ready service. A service that is not ready responds with status 503 and the reason.
    pub async fn ready(&self) -> Result<Readiness, ClientError> {
        self.0.send(Call::get("/ready")).await
    }
}

/// The parameters of a query string that are given.
fn with_scope<const N: usize>(
    scope: &ModelScope,
    parameters: [(&'static str, Option<String>); N],
) -> Vec<(&'static str, String)> {
    let ModelScope { model_name, modelname, model, tenant_id, routing_group } = scope.clone();
    let names = [
        ("model_name", model_name),
        ("modelname", modelname),
        ("model", model),
        ("tenant_id", tenant_id),
        ("routing_group", routing_group),
    ];
    names.into_iter().chain(parameters).filter_map(|(name, value)| Some((name, value?))).collect()
}
