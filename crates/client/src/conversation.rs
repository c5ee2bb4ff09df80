//! Turns of a session.

use flash_indexer_api::{ModelScope, QueryResponse, TokenQuery};
use flash_indexer_types::hashes::AnyHash;

use crate::{Client, ClientError};

/// A session: each prompt repeats the one before it, and only its new tokens are sent.
///
/// Answers are those of [`Client::query`] for the whole prompt. It keeps four bytes for each token that a cursor covers. A cursor that is
/// unknown to the service costs a second request with the whole prompt.
#[derive(Debug)]
pub struct Conversation {
    client: Client,
    scope: ModelScope,
    cursor: Option<u64>,
    covered: Vec<u32>,
}

impl Client {
    /// A session whose turns repeat the prompts before them.
    #[must_use]
    pub fn conversation(&self, scope: ModelScope) -> Conversation {
        Conversation { client: self.clone(), scope, cursor: None, covered: Vec::new() }
    }
}

impl Conversation {
    /// Tokens that the next prompt need not send if it begins with them.
    #[must_use]
    pub fn covered_tokens(&self) -> usize {
        self.covered.len()
    }

    /// The matches of a turn's whole prompt.
    ///
    /// # Errors
    ///
    /// Those of [`Client::query`], except for an unknown cursor.
    pub async fn query(&mut self, tokens: &[u32]) -> Result<QueryResponse, ClientError> {
        if !tokens.starts_with(&self.covered) {
            self.forget();
        }
        let mut answer = self.ask(tokens).await;
        if answer.as_ref().is_err_and(ClientError::is_unknown_cursor) {
            self.forget();
            answer = self.ask(tokens).await;
        }
        let answer = answer?;
        let cursor = answer.cursor.as_ref().and_then(|cursor| cursor.parse().ok());
        let covered = answer.cursor_tokens.and_then(|count| tokens.get(..usize::try_from(count).ok()?));
        if let (Some(cursor), Some(covered)) = (cursor, covered) {
            (self.cursor, self.covered) = (Some(cursor), covered.to_vec());
        }
        Ok(answer)
    }

    async fn ask(&self, tokens: &[u32]) -> Result<QueryResponse, ClientError> {
        let new = tokens.get(self.covered.len()..).unwrap_or_default().to_vec();
        let after = self.cursor.map(AnyHash);
        self.client
            .query(&TokenQuery { token_ids: new, scope: self.scope.clone(), after, ..TokenQuery::default() })
            .await
    }

    fn forget(&mut self) {
        self.cursor = None;
        self.covered.clear();
    }
}
