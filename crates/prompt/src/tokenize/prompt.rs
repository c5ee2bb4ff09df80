//! What is tokenized, how, and what comes of it.

use std::sync::Arc;
use std::time::Duration;

use chat_template::{ChatError, ChatRequest};

/// What is to be tokenized.
#[derive(Debug, Clone)]
pub enum Prompt {
    /// A text as it is.
    Text(String),
    /// A chat, rendered with the template of its model first.
    Chat(Box<ChatRequest>),
}

impl Prompt {
    /// What it takes in memory, about.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Chat(request) => {
                let lists = [Some(&request.messages), request.tools.as_ref(), request.documents.as_ref()];
                let values = lists.into_iter().flatten().flatten().chain(&request.chat_template_kwargs);
                let template = request.chat_template.as_ref().map_or(0, String::len);
                template + values.map(|value| value.to_text().len()).sum::<usize>()
            }
        }
    }
}

/// How a prompt is tokenized where that is not as engines do it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PromptOptions {
    /// Whether the tokenizer adds what it adds to a sequence.
    pub special_tokens: SpecialTokens,
    /// At most so many tokens are kept, from the end. Tokens that the tokenizer adds are kept and count. `None`: what a
    /// chat request says itself, and all of a text.
    pub keep_last: Option<usize>,
}

impl PromptOptions {
    /// How many tokens of this prompt are kept, if not all. A chat request may say so as well; -1 is as many as the model
    /// takes, which is all of a prompt that the model takes.
    pub(super) fn keep_last_of(self, prompt: &Prompt) -> Result<Option<usize>, ChatError> {
        let asked = match prompt {
            Prompt::Chat(request) => request.truncate_prompt_tokens.filter(|asked| *asked != -1),
            Prompt::Text(_) => None,
        };
        let wrong =
            |asked| ChatError::Request(format!("truncate_prompt_tokens is {asked}: send a number from 0 on, or -1"));
        let asked = asked.map(|asked| usize::try_from(asked).map_err(|_| wrong(asked))).transpose()?;
        Ok(self.keep_last.or(asked))
    }
}

/// Whether a tokenizer adds its special tokens, such as the one that begins a sequence.
///
/// Tokens that are written out in a text are recognised in any case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SpecialTokens {
    /// As engines do: to a text, and not to a chat, whose template has written them.
    #[default]
    AsEngines,
    /// They are added.
    Added,
    /// They are not added.
    Omitted,
}

impl SpecialTokens {
    /// Whether they are added to `prompt`.
    #[must_use]
    pub fn are_added_to(self, prompt: &Prompt) -> bool {
        match self {
            Self::AsEngines => matches!(prompt, Prompt::Text(_)),
            Self::Added => true,
            Self::Omitted => false,
        }
    }
}

/// The tokens of a prompt, and how they came about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokenized {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Where the tokenizer came from, as [`TokenizerSource::place`](super::TokenizerSource::place) tells it.
    pub place: Arc<str>,
    /// Time in the queue.
    pub waited: Duration,
    /// Time of the work: fetching the tokenizer when it was not there yet, rendering, tokenizing.
    pub worked: Duration,
}
