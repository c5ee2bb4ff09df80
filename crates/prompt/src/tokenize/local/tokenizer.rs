//! A tokenizer in this process, read from files.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tokenizers::Tokenizer;

use super::components::check_components;
use super::files::read_if_present;
use super::model_files::{FilesVersion, ModelFiles};
use super::rebuilt::{EngineTokenizer, add_configured_tokens, adjusted, default_tokens, is_same, rebuilt};
use super::scores::read_as_python;
use super::tekken;
use crate::tokenize::error::{LoadError, TokenizeError};
use crate::tokenize::pieces::{Cutting, PieceCache, PieceTokenizer, TextTokenization};
use crate::tokenize::prompt::{Prompt, PromptOptions, Transformers};
use crate::tokenize::sliced::SlicedTokenization;
use crate::tokenize::source::{ModelTokenizer, Tokenization};
use crate::tokenize::truncation::Truncation;
use chat_template::{ChatError, ChatTemplates, Effort};
use flash_indexer_engine_chats::mistral_files::TEKKEN_FILE;
use flash_indexer_engine_chats::{Chat, ChatEngine, CodedPrompts, MediaCut, Rendering, TruncationSide};
use flash_indexer_traces::{Stage, stage};

/// A model's tokenizer and chat templates.
pub(in crate::tokenize) struct FileTokenizer {
    path: PathBuf,
    files: ModelFiles,
    version: FilesVersion,
    tokenizer: Arc<PieceTokenizer>,
    /// The tokenizers of vLLM and SGLang with `transformers` 5, where they differ from the file's.
    rebuilt: [Option<Arc<PieceTokenizer>>; 3],
    /// The class of an engine on `transformers` 5, if its pipeline is not supported here.
    unknown_class: Option<String>,
    /// Mistral's own tokenizer, which vLLM prefers to the other one.
    tekken: Option<Arc<PieceTokenizer>>,
    /// An error fails chats only.
    templates: Result<ChatTemplates, ChatError>,
    /// The model's family, for engines that make its prompts by code.
    coded_prompts: CodedPrompts,
}

impl FileTokenizer {
    /// Reads the model of a name at a path (see [`ModelFiles::locate`]).
    pub(in crate::tokenize) fn read(model: &str, path: &Path) -> Result<Self, LoadError> {
        Self::read_with_clock(model, path, SystemTime::now)
    }

    /// Like [`read`](Self::read), with a clock for `strftime_now`.
    pub(super) fn read_with_clock(model: &str, path: &Path, clock: fn() -> SystemTime) -> Result<Self, LoadError> {
        let files = ModelFiles::locate(path).map_err(LoadError::Failed)?;
        // Taken before the files are read, so a concurrent change is detected later.
        let version = files.version();
        let read = |file: &Path| read_tokenizer(file, (model, &files.directory)).map_err(LoadError::Failed);
        let ReadTokenizer { tokenizer, rebuilt, unknown_class } = read(&files.tokenizer)?;
        let [of_vllm, of_sglang, of_version_4] = rebuilt;
        let is_shared = of_vllm.as_ref().zip(of_sglang.as_ref()).is_some_and(|(left, right)| is_same(left, right));
        let shared = |tokenizer| Arc::new(PieceTokenizer::new(tokenizer));
        let tokenizer = shared(tokenizer);
        let of_vllm = of_vllm.map(shared);
        let of_sglang = if is_shared { of_vllm.clone() } else { of_sglang.map(shared) };
        let of_version_4 = of_version_4.map(shared);
        let templates = ChatTemplates::read_with_clock(&files.directory, clock);
        let mut templates = templates.map(|read| read.unwrap_or_else(ChatTemplates::none));
        if let Ok(templates) = &mut templates {
            templates.add_special_tokens(default_tokens(&files.directory).map_err(LoadError::Failed)?);
        }
        let has_template = templates.as_ref().is_ok_and(ChatTemplates::has_template);
        let coded_prompts = CodedPrompts::read(&files.directory, has_template);
        let tekken = match files.directory.join(TEKKEN_FILE) {
            _ if !coded_prompts.has_tekken_of(ChatEngine::Vllm) => None,
            file if file == files.tokenizer => Some(Arc::clone(&tokenizer)),
            file => Some(shared(read(&file)?.tokenizer)),
        };
        Ok(Self {
            path: path.to_owned(),
            files,
            version,
            tokenizer,
            rebuilt: [of_vllm, of_sglang, of_version_4],
            unknown_class,
            tekken,
            templates,
            coded_prompts,
        })
    }

    /// Mistral's own tokenizer, if it is the engine's.
    fn tekken_of(&self, engine: Option<ChatEngine>) -> Option<&Arc<PieceTokenizer>> {
        self.tekken.as_ref().filter(|_| engine.is_some_and(|engine| self.coded_prompts.has_tekken_of(engine)))
    }

    /// The tokenizer of an engine, or the file's.
    fn tokenizer_of(&self, engine: Option<ChatEngine>, transformers: Transformers) -> &Arc<PieceTokenizer> {
        let [of_vllm, of_sglang, of_version_4] = &self.rebuilt;
        let rebuilt = match (engine, transformers) {
            (Some(ChatEngine::Vllm), Transformers::Five) => of_vllm,
            (Some(ChatEngine::Sglang), Transformers::Five) => of_sglang,
            (Some(ChatEngine::TensorRtLlm), _) | (Some(_), Transformers::Four) => of_version_4,
            (None, _) => &None,
        };
        rebuilt.as_ref().unwrap_or(&self.tokenizer)
    }

    fn render(&self, chat: &Chat, effort: Effort) -> Result<Rendering, TokenizeError> {
        if let Some(family) = chat.engine.and_then(|engine| self.coded_prompts.of(engine)) {
            return Ok(chat.render_by_code(family, &|token| self.tokenizer.token_id(token).is_some())?);
        }
        match &self.templates {
            Ok(templates) => Ok(chat.render_within(templates, effort)?),
            Err(error) => Err(TokenizeError::BrokenChatTemplates(error.to_string())),
        }
    }
}

/// Whether the work on a chat before its template runs may take more than a few milliseconds: it changes each message, and compiles a
/// template from the request.
fn takes_long_to_prepare(chat: &Chat) -> bool {
    let template = chat.request.chat_template.as_ref().map_or(0, String::len);
    chat.bytes() > BRIEF_CHAT_BYTES_MAX
        || chat.request.messages.len() > BRIEF_MESSAGES_MAX
        || template > BRIEF_TEMPLATE_BYTES_MAX
}

const BRIEF_CHAT_BYTES_MAX: usize = 1 << 20;
const BRIEF_MESSAGES_MAX: usize = 1_000;
const BRIEF_TEMPLATE_BYTES_MAX: usize = 16 << 10;

/// Tokenization of a rendered chat that the engine tokenizes in parts.
struct CutTokenization {
    parts: VecDeque<TextTokenization>,
    /// The ids of the parts so far.
    ids: Vec<u32>,
}

impl SlicedTokenization for CutTokenization {
    fn step(&mut self) -> Result<Option<Vec<u32>>, TokenizeError> {
        let Some(part) = self.parts.front_mut() else { return Ok(Some(std::mem::take(&mut self.ids))) };
        if let Some(ids) = part.step()? {
            self.ids.extend(ids);
            self.parts.pop_front();
        }
        Ok(None)
    }

    fn is_before_uncut_piece(&self) -> bool {
        self.parts.front().is_some_and(TextTokenization::is_before_uncut_piece)
    }
}

/// Tokenization of a rendered chat, and of a text that continues it.
struct ContinuedTokenization {
    rendered: TextTokenization,
    /// The ids of the rendered chat, once they are known.
    ids: Option<Vec<u32>>,
    /// Tokenized with special tokens, except for one that begins a sequence.
    continuation: TextTokenization,
    /// The token that begins a sequence.
    begin: Option<u32>,
}

impl SlicedTokenization for ContinuedTokenization {
    fn step(&mut self) -> Result<Option<Vec<u32>>, TokenizeError> {
        let Some(ids) = &mut self.ids else {
            self.ids = self.rendered.step()?;
            return Ok(None);
        };
        let Some(continued) = self.continuation.step()? else { return Ok(None) };
        let begins = self.begin.is_some() && continued.first().copied() == self.begin;
        ids.extend_from_slice(&continued[usize::from(begins)..]);
        Ok(Some(std::mem::take(ids)))
    }

    fn is_before_uncut_piece(&self) -> bool {
        let part = if self.ids.is_none() { &self.rendered } else { &self.continuation };
        part.is_before_uncut_piece()
    }
}

impl ModelTokenizer for FileTokenizer {
    fn tokenize(
        &self,
        prompt: Prompt,
        options: PromptOptions,
        pieces: &Arc<PieceCache>,
        effort: Effort,
    ) -> Result<Tokenization, TokenizeError> {
        if let Prompt::Chat(chat) = &prompt
            && effort == Effort::Brief
            && takes_long_to_prepare(chat)
        {
            return Ok(Tokenization::TooLong(prompt));
        }
        let adds_special_tokens = options.special_tokens.are_added_to(&prompt);
        let kept = options.kept_of(&prompt)?;
        let engine = match &prompt {
            Prompt::Text(_) => options.engine,
            Prompt::Chat(chat) => chat.engine,
        };
        let tekken = self.tekken_of(engine);
        let tokenizer = tekken.unwrap_or_else(|| self.tokenizer_of(engine, options.transformers));
        let sliced = |text, adds_special_tokens, kept| {
            TextTokenization::new(Arc::clone(tokenizer), Arc::clone(pieces), text, adds_special_tokens, kept)
        };
        let chat = match prompt {
            Prompt::Text(text) if tekken.is_some() => {
                // vLLM keeps the first tokens here.
                let first = |kept: Truncation| Truncation { side: kept.side.or(Some(TruncationSide::Right)), ..kept };
                let text = sliced(text, adds_special_tokens, kept.map(first)).with_tokens_at(&[])?;
                return Ok(Tokenization::Sliced(Box::new(text)));
            }
            Prompt::Text(text) => {
                let is_replaced = engine.is_some_and(|engine| self.coded_prompts.has_sentence_pieces_of(engine));
                if is_replaced && tokenizer.has_added_token(&text) {
                    let why = "the engine tokenizes special tokens that a text spells out as text, by a SentencePiece \
                               vocabulary; send token_ids";
                    return Err(TokenizeError::Unsupported(why.to_owned()));
                }
                return Ok(Tokenization::Sliced(Box::new(sliced(text, adds_special_tokens, kept))));
            }
            Prompt::Chat(chat) => chat,
        };
        let rendered = {
            let _render = stage(Stage::Render);
            self.render(&chat, effort)
        };
        let Rendering { mut text, prepared, media, cuts, tokens } = match rendered {
            Err(TokenizeError::Chat(error))
                if effort == Effort::Brief && matches!(error, ChatError::TooExpensive { .. }) =>
            {
                return Ok(Tokenization::TooLong(Prompt::Chat(chat)));
            }
            rendered => rendered?,
        };
        let kept = kept.filter(|_| !prepared.is_whole);
        let placed = |text: TextTokenization| match &tokens {
            Some(places) => text.with_tokens_at(places),
            None => Ok(text),
        };
        if let Some(MediaCut { kind, bytes }) = media {
            // Truncation keeps the end of the prompt, which has the media.
            let is_unknown = kept.is_some() || self.coded_prompts.puts_media_first();
            text.truncate(if is_unknown { 0 } else { bytes });
            let adds_special_tokens = !is_unknown && (adds_special_tokens || prepared.adds_special_tokens);
            let (tokenizer, pieces) = (Arc::clone(tokenizer), Arc::clone(pieces));
            let beginning = TextTokenization::of_beginning(tokenizer, pieces, text, adds_special_tokens, kind);
            return Ok(Tokenization::Sliced(Box::new(placed(beginning)?)));
        }
        if !cuts.is_empty() {
            let mut parts: VecDeque<_> = cuts.iter().rev().map(|cut| text.split_off(*cut)).collect();
            parts.push_back(text);
            let parts = parts.into_iter().rev().map(|part| sliced(part, false, None)).collect();
            return Ok(Tokenization::Sliced(Box::new(CutTokenization { parts, ids: Vec::new() })));
        }
        let rendered = placed(sliced(text, adds_special_tokens || prepared.adds_special_tokens, kept))?;
        let Some(continuation) = prepared.continuation else { return Ok(Tokenization::Sliced(Box::new(rendered))) };
        let begin = self.templates.as_ref().ok().and_then(|templates| templates.special_token("bos_token"));
        Ok(Tokenization::Sliced(Box::new(ContinuedTokenization {
            rendered,
            ids: None,
            continuation: sliced(continuation, true, None),
            begin: begin.and_then(|token| tokenizer.token_id(token)),
        })))
    }

    fn decode(&self, tokens: &[u32], engine: Option<ChatEngine>) -> Result<String, TokenizeError> {
        // The pipelines of engines differ in how they make tokens, not in the text of a token.
        self.tekken_of(engine).unwrap_or(&self.tokenizer).decode(tokens)
    }

    fn cutting(&self) -> Option<(Cutting, Option<&str>)> {
        Some(self.tokenizer_of(Some(ChatEngine::default()), Transformers::default()).cutting())
    }

    fn unknown_class(&self) -> Option<&str> {
        self.unknown_class.as_deref()
    }

    fn is_current(&self) -> bool {
        ModelFiles::locate(&self.path).is_ok_and(|files| files == self.files && files.version() == self.version)
    }
}

/// A tokenizer as its file has it, and the tokenizers that classes make for vLLM, for SGLang and with `transformers` 4, where they differ.
struct ReadTokenizer {
    tokenizer: Tokenizer,
    rebuilt: [Option<Tokenizer>; 3],
    /// The class of an engine on `transformers` 5, if its pipeline is not supported here.
    unknown_class: Option<String>,
}

fn read_tokenizer(file: &Path, (model, directory): (&str, &Path)) -> Result<ReadTokenizer, String> {
    let path = file.display();
    let bytes = read_if_present(file)?.ok_or_else(|| format!("{path} has been removed"))?;
    if file.file_name().is_some_and(|name| name == TEKKEN_FILE) {
        let tokenizer = tekken::read(&bytes).map_err(|error| format!("{path}: {error}"))?;
        return Ok(ReadTokenizer { tokenizer, rebuilt: [None, None, None], unknown_class: None });
    }
    check_components(&bytes).map_err(|why| format!("{path}: {why}"))?;
    let mut tokenizer = Tokenizer::from_bytes(&bytes).map_err(|error| format!("{path}: {error}"))?;
    read_as_python(&mut tokenizer, &bytes).map_err(|error| format!("{path}: {error}"))?;
    // Some files have truncation and padding settings from training. Engines ignore them.
    tokenizer.with_truncation(None).map_err(|error| format!("{path}: {error}"))?;
    tokenizer.with_padding(None);
    let mut unknown_class = None;
    let mut of = |engine| {
        Ok::<_, String>(match rebuilt(&tokenizer, (model, directory), engine)? {
            EngineTokenizer::File => None,
            EngineTokenizer::Rebuilt(tokenizer) => Some(*tokenizer),
            EngineTokenizer::Unknown(class) => {
                unknown_class = Some(class);
                None
            }
        })
    };
    let (of_vllm, of_sglang) = (of(ChatEngine::Vllm)?, of(ChatEngine::Sglang)?);
    let of_version_4 = Some(adjusted(&tokenizer, directory)?);
    add_configured_tokens(&mut tokenizer, directory)?;
    let rebuilt =
        [of_vllm, of_sglang, of_version_4].map(|rebuilt| rebuilt.filter(|rebuilt| !is_same(rebuilt, &tokenizer)));
    Ok(ReadTokenizer { tokenizer, rebuilt, unknown_class })
}
