//! A tokenizer in this process, read from files.

use std::path::{Path, PathBuf};

use tokenizers::Tokenizer;

use super::files::{FilesVersion, ModelFiles, read_if_present};
use super::tokens::add_configured_tokens;
use crate::tokenize::error::TokenizeError;
use crate::tokenize::last_ids::last_ids;
use crate::tokenize::prompt::{Prompt, PromptOptions};
use crate::tokenize::source::{LoadError, ModelTokenizer};
use chat_template::{ChatError, ChatRequest, ChatTemplates};

/// A model's tokenizer and chat templates.
pub(in crate::tokenize) struct FileTokenizer {
    path: PathBuf,
    files: ModelFiles,
    version: FilesVersion,
    tokenizer: Tokenizer,
    /// An error fails chats only.
    templates: Result<ChatTemplates, ChatError>,
}

impl FileTokenizer {
    /// Reads the model at a path (see [`ModelFiles::locate`]).
    pub(in crate::tokenize) fn read(path: &Path) -> Result<Self, LoadError> {
        let files = ModelFiles::locate(path).map_err(LoadError::Failed)?;
        // Taken before the files are read, so that a concurrent change is noticed later.
        let version = files.version();
        let tokenizer = read_tokenizer(&files).map_err(LoadError::Failed)?;
        let templates = ChatTemplates::read(&files.directory).map(|read| read.unwrap_or_else(ChatTemplates::none));
        Ok(Self { path: path.to_owned(), files, version, tokenizer, templates })
    }

    fn render(&self, request: &ChatRequest) -> Result<String, TokenizeError> {
        match &self.templates {
            Ok(templates) => Ok(templates.render(request)?),
            Err(error) => Err(TokenizeError::BrokenChatTemplates(error.to_string())),
        }
    }
}

impl ModelTokenizer for FileTokenizer {
    fn tokenize(&self, prompt: &Prompt, options: PromptOptions) -> Result<Vec<u32>, TokenizeError> {
        let with_special_tokens = options.special_tokens.are_added_to(prompt);
        let kept = options.keep_last_of(prompt)?;
        let encode = |text: &str| self.tokenizer.encode_fast(text, with_special_tokens);
        let encoding = match prompt {
            Prompt::Text(text) => encode(text),
            Prompt::Chat(request) => encode(&self.render(request)?),
        };
        let encoding = encoding.map_err(|error| TokenizeError::Tokenizer(error.to_string()))?;
        Ok(match kept {
            Some(kept) => last_ids(encoding.get_ids(), |at| encoding.get_special_tokens_mask()[at] != 0, kept),
            None => encoding.get_ids().to_vec(),
        })
    }

    fn is_current(&self) -> bool {
        ModelFiles::locate(&self.path).is_ok_and(|files| files == self.files && files.version() == self.version)
    }
}

fn read_tokenizer(files: &ModelFiles) -> Result<Tokenizer, String> {
    let path = files.tokenizer.display();
    let bytes = read_if_present(&files.tokenizer)?.ok_or_else(|| format!("{path} has been removed"))?;
    let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(|error| format!("{path}: {error}"))?;
    add_configured_tokens(&mut tokenizer, &files.directory)?;
    // Some files have truncation and padding settings from training. Engines ignore them.
    tokenizer.with_truncation(None).map_err(|error| format!("{path}: {error}"))?;
    tokenizer.with_padding(None);
    Ok(tokenizer)
}
