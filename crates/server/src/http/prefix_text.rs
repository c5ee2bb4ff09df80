//! `POST /text_by_hash`: the text of a prefix, from the last prompts.

use std::sync::Arc;

use axum::Json;
use flash_indexer_api::{PrefixText, PrefixTextQuery};

use super::blocking;
use super::error::ApiError;
use super::extract::{Body, Caller};
use super::fields::CheckedScope;
use crate::engines::chat_engine;

/// Requests wait for each other: a text takes some milliseconds, or as long as its tokenizer takes to load.
pub(super) async fn text(
    Caller { api, grant, .. }: Caller,
    Body(query): Body<PrefixTextQuery>,
) -> Result<Json<PrefixText>, ApiError> {
    let key = query.scope.key(&grant)?;
    let turn = Arc::clone(&api.prefix_texts).acquire_owned().await;
    let text = blocking(move || {
        let _turn = turn;
        let engine = chat_engine(api.indexer.engine_of(&key));
        api.indexer.prefix_text(&key, &query.block_hashes, query.from_block, engine)
    });
    let text = text.await??;
    let (before_cut, text_cut) = (text.is_before_cut, text.is_text_cut);
    Ok(Json(PrefixText { before: text.before, before_cut, text: text.text, text_cut }))
}
