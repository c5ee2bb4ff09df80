//! A tokenizer in this process, read from files.

use std::path::{Path, PathBuf};

use tokenizers::{Encoding, Tokenizer};

use super::files::{FilesVersion, ModelFiles, read_if_present};
use super::tokens::add_configured_tokens;
use crate::normalize::{Chat, CodedPrompts, Rendering};
use crate::tokenize::error::TokenizeError;
use crate::tokenize::last_ids::last_ids;
use crate::tokenize::prompt::{Prompt, PromptOptions};
use crate::tokenize::source::{LoadError, ModelTokenizer};
use chat_template::{ChatError, ChatTemplates};

/// A model's tokenizer and chat templates.
pub(in crate::tokenize) struct FileTokenizer {
    path: PathBuf,
    files: ModelFiles,
    version: FilesVersion,
    tokenizer: Tokenizer,
    /// An error fails chats only.
    templates: Result<ChatTemplates, ChatError>,
    /// The model's family, for engines that make its prompts by code.
    coded_prompts: CodedPrompts,
}

impl FileTokenizer {
    /// Reads the model at a path (see [`ModelFiles::locate`]).
    pub(in crate::tokenize) fn read(path: &Path) -> Result<Self, LoadError> {
        let files = ModelFiles::locate(path).map_err(LoadError::Failed)?;
        // Taken before the files are read, so that a concurrent change is noticed later.
        let version = files.version();
        let tokenizer = read_tokenizer(&files).map_err(LoadError::Failed)?;
        let templates = ChatTemplates::read(&files.directory).map(|read| read.unwrap_or_else(ChatTemplates::none));
        let has_template = templates.as_ref().is_ok_and(ChatTemplates::has_template);
        let coded_prompts = CodedPrompts::read(&files.directory, has_template);
        Ok(Self { path: path.to_owned(), files, version, tokenizer, templates, coded_prompts })
    }

    fn render(&self, chat: &Chat) -> Result<Rendering, TokenizeError> {
        if let Some(family) = chat.engine.and_then(|engine| self.coded_prompts.of(engine)) {
            return Err(TokenizeError::Unsupported(format!(
                "the engine makes prompts of the model's family, {family}, by code and not by a chat template; send token_ids"
            )));
        }
        match &self.templates {
            Ok(templates) => Ok(chat.render(templates)?),
            Err(error) => Err(TokenizeError::BrokenChatTemplates(error.to_string())),
        }
    }
}

impl FileTokenizer {
    fn encode(&self, text: &str, with_special_tokens: bool) -> Result<Encoding, TokenizeError> {
        let encoding = self.tokenizer.encode_fast(text, with_special_tokens);
        encoding.map_err(|error| TokenizeError::Tokenizer(error.to_string()))
    }

    /// The ids of a text that continues a prompt: with special tokens, except for one that begins a sequence.
    fn continuation(&self, text: &str) -> Result<Vec<u32>, TokenizeError> {
        let encoding = self.encode(text, true)?;
        let begin = self.templates.as_ref().ok().and_then(|templates| templates.special_token("bos_token"));
        let begin = begin.and_then(|token| self.tokenizer.token_to_id(token));
        let ids = encoding.get_ids();
        Ok(ids[usize::from(begin.is_some() && ids.first().copied() == begin)..].to_vec())
    }
}

impl ModelTokenizer for FileTokenizer {
    fn tokenize(&self, prompt: &Prompt, options: PromptOptions) -> Result<Vec<u32>, TokenizeError> {
        let with_special_tokens = options.special_tokens.are_added_to(prompt);
        let kept = options.keep_last_of(prompt)?;
        let (encoding, continuation) = match prompt {
            Prompt::Text(text) => (self.encode(text, with_special_tokens)?, None),
            Prompt::Chat(chat) => {
                let Rendering { text, prepared } = self.render(chat)?;
                (self.encode(&text, with_special_tokens || prepared.adds_special_tokens)?, prepared.continuation)
            }
        };
        let mut ids = match kept {
            Some(kept) => last_ids(encoding.get_ids(), |at| encoding.get_special_tokens_mask()[at] != 0, kept),
            None => encoding.get_ids().to_vec(),
        };
        if let Some(text) = continuation {
            ids.extend(self.continuation(&text)?);
        }
        Ok(ids)
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
