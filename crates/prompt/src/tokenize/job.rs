//! A job: one prompt to be tokenized.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chat_template::Effort;
use flash_indexer_traces::{CurrentRequest, StageSpan};

use super::counters::Counters;
use super::error::TokenizeError;
use super::prompt::{Prompt, PromptOptions, Tokenized};
use super::sliced::SlicedTokenization;

pub(super) type OnDone = Box<dyn FnOnce(Result<Tokenized, TokenizeError>) + Send>;

pub(super) struct Job {
    pub(super) state: JobState,
    pub(super) on_done: OnDone,
    pub(super) submitted: Instant,
    /// Time of the work so far.
    pub(super) worked: Duration,
    /// The request that waits for it.
    pub(super) request: CurrentRequest,
}

pub(super) enum JobState {
    Submitted { model: String, prompt: Prompt, options: PromptOptions, effort: Effort },
    Begun { tokenization: Box<dyn SlicedTokenization>, source_name: Arc<str>, stage: StageSpan },
}

/// Kind of the jobs that a worker takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// Jobs whose next slice takes a few milliseconds.
    Slices,
    /// Jobs whose next slice is a long piece. Only one worker takes them: other workers never wait for such a piece, and only
    /// one such piece uses memory at a time.
    UncutPieces,
    /// Chats that take more than a few milliseconds to render. A rendering cannot be divided, so dedicated workers take it.
    Renderings,
}

impl Lane {
    /// Number of lanes.
    pub(super) const COUNT: usize = 3;
}

impl JobState {
    /// The lane of the next slice.
    pub(super) fn lane(&self) -> Lane {
        match self {
            Self::Begun { tokenization, .. } if tokenization.is_before_uncut_piece() => Lane::UncutPieces,
            Self::Submitted { effort: Effort::Full, .. } => Lane::Renderings,
            _ => Lane::Slices,
        }
    }
}

impl Job {
    /// Counts the result and calls the callback with it.
    pub(super) fn finish(on_done: OnDone, result: Result<Tokenized, TokenizeError>, counters: &Counters) {
        match &result {
            Ok(_) => counters.lock().done += 1,
            Err(error) => counters.lock().count_failure(error.reason()),
        }
        if catch_unwind(AssertUnwindSafe(|| on_done(result))).is_err() {
            counters.lock().callbacks_panicked += 1;
        }
    }
}

/// The message of a panic.
pub(super) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let message = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    message.unwrap_or("no message").to_owned()
}
