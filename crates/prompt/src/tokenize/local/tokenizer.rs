//! A tokenizer that was read from files.

use std::path::{Path, PathBuf};

use tokenizers::{Encoding, Tokenizer};

use super::files::{FilesVersion, ModelFiles, read_if_present};
use super::tokens::add_configured_tokens;
use crate::chat::{ChatError, ChatRequest, ChatTemplates};
use crate::tokenize::error::TokenizeError;
use crate::tokenize::prompt::{Prompt, PromptOptions};
use crate::tokenize::source::{LoadError, ModelTokenizer};

/// A model's tokenizer and chat templates.
pub(in crate::tokenize) struct FileTokenizer {
    path: PathBuf,
    files: ModelFiles,
    version: FilesVersion,
    tokenizer: Tokenizer,
    templates: Option<ChatTemplates>,
}

impl FileTokenizer {
    /// Reads what a path stands for (see [`ModelFiles::locate`]).
    pub(in crate::tokenize) fn read(path: &Path) -> Result<Self, LoadError> {
        let files = ModelFiles::locate(path).map_err(LoadError::Failed)?;
        // Before they are read: what is changed meanwhile is then seen as a change.
        let version = files.version();
        let tokenizer = read_tokenizer(&files).map_err(LoadError::Failed)?;
        let templates = read_templates(&files).map_err(|error| LoadError::Failed(error.to_string()))?;
        Ok(Self { path: path.to_owned(), files, version, tokenizer, templates })
    }

    fn render(&self, request: &ChatRequest) -> Result<String, TokenizeError> {
        let Some(templates) = &self.templates else {
            return Err(TokenizeError::NoChatTemplate { place: self.files.directory.display().to_string() });
        };
        Ok(templates.render(request)?)
    }
}

impl ModelTokenizer for FileTokenizer {
    fn tokenize(&self, prompt: &Prompt, options: PromptOptions) -> Result<Vec<u32>, TokenizeError> {
        let with_special_tokens = options.special_tokens.are_added_to(prompt);
        let encode = |text: &str| self.tokenizer.encode_fast(text, with_special_tokens);
        let encoding = match prompt {
            Prompt::Text(text) => encode(text),
            Prompt::Chat(request) => encode(&self.render(request)?),
        };
        let encoding = encoding.map_err(|error| TokenizeError::Tokenizer(error.to_string()))?;
        Ok(match options.keep_last.or(prompt.keep_last()) {
            Some(kept) => last_ids(&encoding, kept),
            None => encoding.get_ids().to_vec(),
        })
    }

    fn is_current(&self) -> bool {
        ModelFiles::locate(&self.path).is_ok_and(|files| files == self.files && files.version() == self.version)
    }
}

/// At most `kept` ids: those that the tokenizer has added, and of the others the last.
///
/// This is truncation from the left as engines have the library do it. It is not the last `kept` of all when there is a token
/// that begins a sequence.
fn last_ids(encoding: &Encoding, kept: usize) -> Vec<u32> {
    let ids = encoding.get_ids();
    let surplus = ids.len().saturating_sub(kept);
    let is_added = encoding.get_special_tokens_mask();
    let content = is_added.iter().filter(|added| **added == 0).count();
    if surplus > content {
        return ids[surplus..].to_vec();
    }
    let mut left_out = 0;
    let is_kept = |&(_, added): &(&u32, &u32)| {
        let is_surplus = *added == 0 && left_out < surplus;
        left_out += usize::from(is_surplus);
        !is_surplus
    };
    ids.iter().zip(is_added).filter(is_kept).map(|(id, _)| *id).collect()
}

fn read_tokenizer(files: &ModelFiles) -> Result<Tokenizer, String> {
    let path = files.tokenizer.display();
    let bytes = read_if_present(&files.tokenizer)?.ok_or_else(|| format!("{path} is not there any more"))?;
    let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(|error| format!("{path}: {error}"))?;
    add_configured_tokens(&mut tokenizer, &files.directory)?;
    // Some files say how their makers once cut and filled up batches. Engines do neither.
    tokenizer.with_truncation(None).map_err(|error| format!("{path}: {error}"))?;
    tokenizer.with_padding(None);
    Ok(tokenizer)
}

fn read_templates(files: &ModelFiles) -> Result<Option<ChatTemplates>, ChatError> {
    ChatTemplates::read(&files.directory)
}
