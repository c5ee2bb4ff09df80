//! `POST /explain`: reasons why each rank's match ends at its position.

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use flash_indexer_access::Grant;
use flash_indexer_api::{ExplainParameters, ExplainRequest, Hashes};
use flash_indexer_registry::{ExplainQuestion, Prompt};
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_traces::{Stage, stage};
use flash_indexer_types::UncheckedInstanceId;
use flash_indexer_types::hashes::HashForm;

use super::error::ApiError;
use super::explanation;
use super::extract::{Caller, Parameters};
use super::fields::CheckedScope;
use super::prompt::{ParsedRequest, PromptBody};
use super::{Api, blocking};
use crate::access::tokens_of_blocks;

pub(super) async fn explain(
    Caller { api, grant, .. }: Caller,
    Parameters(ExplainParameters { hashes }): Parameters<ExplainParameters>,
    body: PromptBody,
) -> Result<Response, ApiError> {
    body.answer(async move |ParsedRequest { request, .. }| answer(&api, &grant, request, hashes).await).await
}

async fn answer(
    api: &Api,
    grant: &Arc<Grant>,
    request: ExplainRequest,
    hashes: HashForm,
) -> Result<Response, ApiError> {
    let question = question(request, grant)?;
    let tokens = match &question.prompt {
        Prompt::Tokens { tokens, .. } => tokens.len(),
        Prompt::Hashes(hashes) => tokens_of_blocks(&api.indexer, &question.key, hashes.len()),
    };
    api.access.admit_query(&question.key, tokens)?;
    let busy = "failed to explain: too many explanations are running; retry later";
    let permit = api.permit(&api.explanations, Limit::Explanations, busy)?;
    let indexer = Arc::clone(&api.indexer);
    let response = blocking(move || {
        let explanation = indexer.explain(&question);
        drop(permit);
        let _answer = stage(Stage::Answer);
        // A long list is written here as well.
        explanation.map(|explanation| Json(explanation::response(question, explanation, hashes)).into_response())
    });
    Ok(response.await??)
}

fn question(request: ExplainRequest, grant: &Arc<Grant>) -> Result<ExplainQuestion, ApiError> {
    if request.after.is_some() {
        return Err(ApiError::whole_prompt_needed());
    }
    let ExplainRequest { lora_name, cache_salt, .. } = request;
    let prompt = match (request.token_ids, request.block_hashes) {
        (Some(tokens), None) => Prompt::Tokens { tokens, lora_name, cache_salt },
        (None, Some(_)) if lora_name.is_some() || cache_salt.is_some() => {
            return Err(ApiError::bad_request(
                "block_hashes have adapter and salt in them already: leave lora_name and cache_salt out",
            ));
        }
        (None, Some(Hashes(hashes))) => Prompt::Hashes(hashes),
        (Some(_), Some(_)) => {
            return Err(ApiError::bad_request("token_ids and block_hashes are two forms of one prompt: give one"));
        }
        (None, None) => return Err(ApiError::missing_field("`token_ids`, or `block_hashes`")),
    };
    let instance = request.instance_id.map(UncheckedInstanceId::checked).transpose()?;
    Ok(ExplainQuestion { key: request.scope.key(grant)?, prompt, instance })
}

#[cfg(test)]
mod tests {
    use flash_indexer_prompt::tokenize::PoolOptions;
    use flash_indexer_registry::{Indexer, IndexerOptions};
    use flash_indexer_telemetry::metrics::TextFormat;

    use super::super::EXPLANATIONS_MAX;
    use super::*;
    use crate::access::AccessControl;
    use crate::body_limits::BodyLimits;
    use flash_indexer_peers::RecoveryStatus;

    #[tokio::test]
    async fn an_explanation_beyond_the_limit_is_refused_and_counted() {
        let indexer = Arc::new(Indexer::start(IndexerOptions::default()).expect("threads"));
        let (peers, recovery) = (Arc::default(), RecoveryStatus::finished());
        let access = Arc::new(AccessControl::new(None, None));
        let limits = BodyLimits::new((0, None), &PoolOptions::default(), indexer.metrics()).expect("threads");
        let api = Arc::new(Api::new((Arc::clone(&indexer), access, limits), Default::default(), peers, recovery));
        let explain_once = || {
            let request = serde_json::from_str(r#"{"token_ids": [], "model_name": "m"}"#).expect("a request");
            let (api, grant) = (Arc::clone(&api), Arc::new(Grant::unrestricted()));
            async move { answer(&api, &grant, request, HashForm::Number).await }
        };
        let all = Arc::clone(&api.explanations).acquire_many_owned(EXPLANATIONS_MAX as u32).await;
        let refused = explain_once().await.err().map(|error| format!("{error:?}")).expect("the limit is reached");
        assert!(refused.contains("503") && refused.contains("retry later"), "{refused}");
        let counted = indexer.metrics_text(TextFormat::Classic);
        assert!(counted.contains("flash_indexer_bounds_reached_total{bound=\"explanations\"} 1\n"), "{counted}");
        drop(all);
        let answered = explain_once().await.err().map(|error| format!("{error:?}")).expect("no engine is registered");
        assert!(answered.contains("404"), "{answered}");
    }
}
