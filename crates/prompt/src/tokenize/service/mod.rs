//! A tokenizer service: tokenizers in another process.

mod address;
mod chat;
mod connection;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub use address::{AddressError, ServiceAddress};
use chat_template::{ChatError, Effort};
use connection::{Client, Connection};
use flash_indexer_proto::tokenization::{InitializeTokenizerRequest, RenderChatCompletionRequest, TokenizeRequest};
use flash_indexer_traces::{Stage, stage};

use super::error::{LoadError, ServiceError, TokenizeError};
use super::pieces::PieceCache;
use super::prompt::{Prompt, PromptOptions};
use super::source::{ModelTokenizer, Tokenization, TokenizerSource};

/// Minimum time between two initializations of one model. A refused model is initialized again before the call fails,
/// because a restarted service has lost it.
const INITIALIZATION_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// A tokenizer service: gRPC `tokenization.TokenizationService`, without TLS, over a Unix socket or TCP.
///
/// The first call connects. While the service is unreachable, calls fail at once, and new attempts back off from 50 ms to
/// 5 s.
pub struct TokenizerService {
    connection: Arc<Connection>,
}

impl TokenizerService {
    /// `deadline` is the timeout for the initialization of a model, and for each prompt.
    ///
    /// # Errors
    ///
    /// If the address is invalid, or the thread of the connection cannot be started.
    pub fn new(address: &ServiceAddress, deadline: Duration) -> std::io::Result<Self> {
        Ok(Self { connection: Arc::new(Connection::new(address, deadline)?) })
    }
}

impl TokenizerSource for TokenizerService {
    fn name(&self) -> String {
        format!("tokenizer service {}", self.connection.address)
    }

    fn load(&self, model: &str) -> Result<Arc<dyn ModelTokenizer>, LoadError> {
        let tokenizer = ServiceTokenizer {
            connection: Arc::clone(&self.connection),
            model: model.to_owned(),
            initialized_at: Mutex::new(Instant::now()),
        };
        match tokenizer.initialize(self.connection.deadline()) {
            Ok(()) => Ok(Arc::new(tokenizer)),
            // The service does not distinguish an unknown model from a failure to load it.
            Err(ServiceError::Refused { why, .. }) => Err(LoadError::Absent(why)),
            Err(error) => Err(LoadError::Failed(error.to_string())),
        }
    }
}

/// The tokenizer of one model in a service.
struct ServiceTokenizer {
    connection: Arc<Connection>,
    model: String,
    initialized_at: Mutex<Instant>,
}

impl ServiceTokenizer {
    fn initialize(&self, deadline: Instant) -> Result<(), ServiceError> {
        let message = InitializeTokenizerRequest {
            model_name: self.model.clone(),
            enable_thinking: false,
            add_generation_prompt: true,
        };
        let call = |mut client: Client, message| async move { client.initialize_tokenizer(message).await };
        match self.connection.call(deadline, message, call) {
            Ok(answer) => self.check(answer.success, answer.error_message),
            // A service without this method initializes models on demand.
            Err(ServiceError::Unsupported { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn tokenize_text(
        &self,
        deadline: Instant,
        text: &str,
        adds_special_tokens: bool,
    ) -> Result<Vec<u32>, ServiceError> {
        let message = TokenizeRequest {
            input: text.to_owned(),
            model_name: self.model.clone(),
            add_special_tokens: adds_special_tokens,
        };
        self.with_retry(deadline, || {
            let call = |mut client: Client, message| async move { client.tokenize(message).await };
            let answer = self.connection.call(deadline, message.clone(), call)?;
            self.check(answer.success, answer.error_message)?;
            Ok(answer.input_ids)
        })
    }

    fn tokenize_chat(&self, deadline: Instant, message: RenderChatCompletionRequest) -> Result<Vec<u32>, ServiceError> {
        self.with_retry(deadline, || {
            let call = |mut client: Client, message| async move { client.render_chat_completion(message).await };
            let answer = self.connection.call(deadline, message.clone(), call)?;
            self.check(answer.success, answer.error_message)?;
            Ok(answer.token_ids)
        })
    }

    fn check(&self, has_succeeded: bool, why: String) -> Result<(), ServiceError> {
        if has_succeeded {
            Ok(())
        } else {
            Err(ServiceError::Refused { address: self.connection.address.clone(), why })
        }
    }

    /// Repeats a refused call once, after a new initialization, because the service may have lost the model.
    fn with_retry<T>(&self, deadline: Instant, work: impl Fn() -> Result<T, ServiceError>) -> Result<T, ServiceError> {
        let result = work();
        if matches!(result, Err(ServiceError::Refused { .. })) && self.may_initialize() {
            self.initialize(deadline)?;
            return work();
        }
        result
    }

    fn may_initialize(&self) -> bool {
        let mut initialized_at = self.initialized_at.lock();
        let may = initialized_at.elapsed() >= INITIALIZATION_INTERVAL_MIN;
        if may {
            *initialized_at = Instant::now();
        }
        may
    }
}

impl ModelTokenizer for ServiceTokenizer {
    fn tokenize(
        &self,
        prompt: Prompt,
        options: PromptOptions,
        _: &Arc<PieceCache>,
        _: Effort,
    ) -> Result<Tokenization, TokenizeError> {
        let _call = stage(Stage::TokenizerService).attach();
        self.ids(&prompt, options).map(Tokenization::Done)
    }
}

impl ServiceTokenizer {
    fn ids(&self, prompt: &Prompt, options: PromptOptions) -> Result<Vec<u32>, TokenizeError> {
        let deadline = self.connection.deadline();
        let adds_special_tokens = options.special_tokens.are_added_to(prompt);
        let kept = options.kept_of(prompt)?;
        let ids = match prompt {
            Prompt::Text(text) => self.tokenize_text(deadline, text, adds_special_tokens)?,
            Prompt::Chat(_) if adds_special_tokens => return Err(chats_have_no_more_special_tokens()),
            // The service changes the request as its engine does.
            Prompt::Chat(chat) => self.tokenize_chat(deadline, chat::to_message(&self.model, &chat.request)?)?,
        };
        let Some(kept) = kept.filter(|kept| kept.count < ids.len()) else { return Ok(ids) };
        let content = match prompt {
            Prompt::Text(text) if adds_special_tokens && kept.side.is_none() => {
                self.tokenize_text(deadline, text, false)?
            }
            _ => return Ok(kept.of(&ids, |_| false)),
        };
        // The ids without special tokens show which ids the tokenizer added.
        let begin = ids.windows(content.len().max(1)).position(|part| part == content).unwrap_or(0);
        Ok(kept.of(&ids, |at| !(begin..begin + content.len()).contains(&at)))
    }
}

fn chats_have_no_more_special_tokens() -> TokenizeError {
    let why = "a tokenizer service does not add special tokens to a rendered chat; use the default of the engines";
    ChatError::Request(why.to_owned()).into()
}
