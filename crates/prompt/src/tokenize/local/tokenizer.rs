//! A tokenizer in this process, read from files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokenizers::Tokenizer;

use super::files::{FilesVersion, ModelFiles, read_if_present};
use super::scores::read_as_python;
use super::tokens::add_configured_tokens;
use crate::tokenize::error::TokenizeError;
use crate::tokenize::pieces::{Cutting, PieceCache, PieceTokenizer, TextTokenization};
use crate::tokenize::prompt::{Prompt, PromptOptions};
use crate::tokenize::source::{LoadError, ModelTokenizer, Tokenization};
use chat_template::{ChatError, ChatRequest, ChatTemplates};

/// A model's tokenizer and chat templates.
pub(in crate::tokenize) struct FileTokenizer {
    path: PathBuf,
    files: ModelFiles,
    version: FilesVersion,
    tokenizer: Arc<PieceTokenizer>,
    /// An error fails chats only.
    templates: Result<ChatTemplates, ChatError>,
}

impl FileTokenizer {
    /// Reads the model at a path (see [`ModelFiles::locate`]).
    pub(in crate::tokenize) fn read(path: &Path) -> Result<Self, LoadError> {
        let files = ModelFiles::locate(path).map_err(LoadError::Failed)?;
        // Taken before the files are read, so that a concurrent change is noticed later.
        let version = files.version();
        let tokenizer = Arc::new(PieceTokenizer::new(read_tokenizer(&files).map_err(LoadError::Failed)?));
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
    fn tokenize(
        &self,
        prompt: Prompt,
        options: PromptOptions,
        pieces: &Arc<PieceCache>,
    ) -> Result<Tokenization, TokenizeError> {
        let adds_special_tokens = options.special_tokens.are_added_to(&prompt);
        let kept = options.keep_last_of(&prompt)?;
        let text = match prompt {
            Prompt::Text(text) => text,
            Prompt::Chat(request) => self.render(&request)?,
        };
        let (tokenizer, pieces) = (Arc::clone(&self.tokenizer), Arc::clone(pieces));
        let text = TextTokenization::new(tokenizer, pieces, text, adds_special_tokens, kept);
        Ok(Tokenization::Sliced(Box::new(text)))
    }

    fn cutting(&self) -> Option<(Cutting, Option<&str>)> {
        Some(self.tokenizer.cutting())
    }

    fn is_current(&self) -> bool {
        ModelFiles::locate(&self.path).is_ok_and(|files| files == self.files && files.version() == self.version)
    }
}

fn read_tokenizer(files: &ModelFiles) -> Result<Tokenizer, String> {
    let path = files.tokenizer.display();
    let bytes = read_if_present(&files.tokenizer)?.ok_or_else(|| format!("{path} has been removed"))?;
    let mut tokenizer = Tokenizer::from_bytes(&bytes).map_err(|error| format!("{path}: {error}"))?;
    read_as_python(&mut tokenizer, &bytes).map_err(|error| format!("{path}: {error}"))?;
    add_configured_tokens(&mut tokenizer, &files.directory)?;
    // Some files have truncation and padding settings from training. Engines ignore them.
    tokenizer.with_truncation(None).map_err(|error| format!("{path}: {error}"))?;
    tokenizer.with_padding(None);
    Ok(tokenizer)
}
