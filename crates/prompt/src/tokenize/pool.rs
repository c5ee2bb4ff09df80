//! The thread pool that renders and tokenizes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use chat_template::Effort;
use crossbeam_channel::bounded;
use flash_indexer_engine_chats::ChatEngine;
use flash_indexer_traces::{KeyValue, Stage, attribute, current, stage};
use parking_lot::Mutex;

use super::counters::{Counters, PoolStatistics};
use super::error::TokenizeError;
use super::job::{Job, JobState, Lane, panic_message};
use super::models::Models;
use super::options::PoolOptions;
use super::pieces::PieceCache;
use super::prompt::{Prompt, PromptOptions, Tokenized};
use super::queue::{Queue, QueuedJob, Ticket};
use super::source::{Tokenization, TokenizerSource};

/// Number of dropped tokenizers after which a worker thread is replaced. The `tokenizers` crate caches words by tokenizer in
/// each thread, and frees them only when the thread ends.
const DROPPED_TOKENIZERS_PER_THREAD: u64 = 8;

/// Maximum wait for running jobs when the pool stops.
const STOP_DEADLINE: Duration = Duration::from_secs(3);
const STOP_CHECK: Duration = Duration::from_millis(2);

/// Renders chats and tokenizes prompts on its own threads.
///
/// Prompts wait in a bounded queue. Submission never blocks: a full queue is an error. Workers tokenize long prompts in slices, in
/// turn, and serve short prompts between two slices. A worker that loads a tokenizer or calls a service is busy meanwhile. One
/// further worker tokenizes long pieces of texts that cannot be cut, one at a time. Additional threads, half as many as workers,
/// render chats that take long. A tokenizer that panics fails only its prompt.
pub struct TokenizerPool {
    shared: Arc<PoolState>,
}

struct PoolState {
    queue: Queue,
    models: Models,
    pieces: Arc<PieceCache>,
    counters: Arc<Counters>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl TokenizerPool {
    /// Starts the workers. Tokenizers are loaded from the first of `sources` that has them.
    ///
    /// # Errors
    ///
    /// If a thread cannot be started.
    pub fn start(sources: Vec<Box<dyn TokenizerSource>>, options: &PoolOptions) -> std::io::Result<Self> {
        let counters = Arc::new(Counters::default());
        let shared = Arc::new(PoolState {
            queue: Queue::new(options.queued_prompts_max, options.queued_bytes_max),
            models: Models::new(sources, options.clone(), Arc::clone(&counters)),
            pieces: Arc::new(PieceCache::new(options.cached_bytes_max)),
            counters,
            threads: Mutex::default(),
        });
        let pool = Self { shared };
        for number in 0..options.workers.max(1) {
            start_worker(&pool.shared, Lane::Slices, number)?;
        }
        start_worker(&pool.shared, Lane::UncutPieces, 0)?;
        for number in 0..options.workers.div_ceil(2).max(1) {
            start_worker(&pool.shared, Lane::Renderings, number)?;
        }
        Ok(pool)
    }

    /// Tokenizes as engines do, and blocks until the result is there.
    ///
    /// # Errors
    ///
    /// If the queue is full, the pool has stopped, no source has the model, or the prompt cannot be rendered or tokenized.
    pub fn tokenize(&self, model: &str, prompt: Prompt) -> Result<Tokenized, TokenizeError> {
        self.tokenize_with(model, prompt, PromptOptions::default())
    }

    /// Like [`tokenize`](Self::tokenize), with options.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn tokenize_with(
        &self,
        model: &str,
        prompt: Prompt,
        options: PromptOptions,
    ) -> Result<Tokenized, TokenizeError> {
        let (sender, result) = bounded(1);
        self.submit(model, prompt, options, move |tokenized| {
            // The receiver below outlives this callback.
            let _ = sender.send(tokenized);
        })?;
        result.recv().unwrap_or(Err(TokenizeError::Stopped))
    }

    /// The text of an engine's tokens in two parts, with special tokens. The second part begins with the token `at`. A character whose
    /// bytes are in both parts is in the second. Runs on the calling thread, and may block it for long to load the tokenizer.
    ///
    /// # Errors
    ///
    /// If no source has the model, or its source does not decode tokens.
    pub fn decode(
        &self,
        model: &str,
        engine: Option<ChatEngine>,
        (tokens, at): (&[u32], usize),
    ) -> Result<(String, String), TokenizeError> {
        let tokenizer = self.shared.models.get(model)?.tokenizer;
        let mut whole = tokenizer.decode(tokens, engine)?;
        let before = tokenizer.decode(&tokens[..at.min(tokens.len())], engine)?;
        // Decoders look at neighbouring tokens, so the text of a part is not always a part of the text.
        let common = whole.chars().zip(before.chars()).take_while(|(of_whole, of_before)| of_whole == of_before);
        let bytes = common.map(|(character, _)| character.len_utf8()).sum();
        let second = whole.split_off(bytes);
        Ok((whole, second))
    }

    /// Queues a prompt to be tokenized, and returns at once. `on_done` is called exactly once: by a worker, or
    /// by the thread that stops the pool or withdraws the prompt. It must not block.
    ///
    /// # Errors
    ///
    /// If the queue is full or the pool has stopped. `on_done` is not called then.
    pub fn submit(
        &self,
        model: &str,
        prompt: Prompt,
        options: PromptOptions,
        on_done: impl FnOnce(Result<Tokenized, TokenizeError>) + Send + 'static,
    ) -> Result<Ticket, TokenizeError> {
        let bytes = prompt.bytes();
        let state = JobState::Submitted { model: model.to_owned(), prompt, options, effort: Effort::Brief };
        let (submitted, worked) = (Instant::now(), Duration::ZERO);
        let job = Job { state, on_done: Box::new(on_done), submitted, worked, request: current() };
        let pushed = self.shared.queue.push(job, bytes);
        pushed.inspect_err(|error| self.shared.counters.lock().count_failure(error.reason()))
    }

    /// Withdraws a prompt: it fails with [`TokenizeError::Withdrawn`], at once if it is queued, else after the slice that a
    /// worker is processing. No effect if that slice is the last one.
    pub fn withdraw(&self, ticket: Ticket) {
        if let Some(job) = self.shared.queue.withdraw(ticket) {
            Job::finish(job.on_done, Err(TokenizeError::Withdrawn), &self.shared.counters);
        }
    }

    /// Counters and current sizes.
    #[must_use]
    pub fn statistics(&self) -> PoolStatistics {
        let (queued, queued_bytes) = self.shared.queue.size();
        PoolStatistics {
            queued,
            queued_bytes,
            loaded: self.shared.models.loaded(),
            limits_reached: self.shared.models.limits_reached(),
            pieces: self.shared.pieces.statistics(),
            ..self.shared.counters.lock().clone()
        }
    }

    /// Stops the pool: rejects new prompts, fails the queued ones, and waits up to three seconds for the running ones. A worker
    /// that is still busy then is abandoned. Dropping the pool does the same.
    pub fn stop(&self) {
        let deadline = Instant::now() + STOP_DEADLINE;
        for job in self.shared.queue.close() {
            Job::finish(job.on_done, Err(TokenizeError::Stopped), &self.shared.counters);
        }
        // A worker that starts its replacement stores the new handle before it ends.
        while let Some(thread) = self.shared.take_thread() {
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(STOP_CHECK);
            }
            if thread.is_finished() {
                // Workers catch panics themselves.
                let _ = thread.join();
            }
        }
    }
}

impl Drop for TokenizerPool {
    fn drop(&mut self) {
        self.stop();
    }
}

impl PoolState {
    /// Takes a thread to wait for. Never the current thread, which is a worker if a callback drops the pool.
    fn take_thread(&self) -> Option<JoinHandle<()>> {
        let mut threads = self.threads.lock();
        threads.retain(|thread| thread.thread().id() != std::thread::current().id());
        threads.pop()
    }

    /// Starts or continues a job, for one slice of work.
    fn work(&self, queued: QueuedJob) {
        let QueuedJob { ticket, job: Job { state, on_done, submitted, worked, request }, bytes } = queued;
        let begun = Instant::now();
        let progress = catch_unwind(AssertUnwindSafe(|| {
            let _request = request.attach();
            self.progress(state)
        }));
        let progress = progress.unwrap_or_else(|panic| Err(TokenizeError::Panicked(panic_message(&*panic))));
        let worked = worked + begun.elapsed();
        let result = match progress {
            Ok(Progress::Begun(state)) => {
                let lane = state.lane();
                let job = Job { state, on_done, submitted, worked, request };
                match self.queue.put_back(QueuedJob { ticket, job, bytes }, lane) {
                    Ok(()) => return,
                    Err(refused) => {
                        let (job, why) = *refused;
                        return Job::finish(job.on_done, Err(why), &self.counters);
                    }
                }
            }
            Ok(Progress::Done { ids, media, source }) => {
                Ok(Tokenized { ids, media, source, waited: submitted.elapsed().saturating_sub(worked), worked })
            }
            Err(error) => Err(error),
        };
        self.queue.finish(ticket);
        Job::finish(on_done, result, &self.counters);
    }

    fn progress(&self, state: JobState) -> Result<Progress, TokenizeError> {
        let (mut tokenization, source_name, mut stage) = match state {
            JobState::Submitted { model, prompt, options, effort } => {
                let loaded = self.models.get(&model)?;
                match loaded.tokenizer.tokenize(prompt, options, &self.pieces, effort)? {
                    Tokenization::TooLong(prompt) => {
                        let state = JobState::Submitted { model, prompt, options, effort: Effort::Full };
                        return Ok(Progress::Begun(state));
                    }
                    Tokenization::Done(ids) => {
                        return Ok(Progress::Done { ids, media: None, source: loaded.source_name });
                    }
                    Tokenization::Sliced(tokenization) => (tokenization, loaded.source_name, stage(Stage::Tokenize)),
                }
            }
            JobState::Begun { tokenization, source_name, stage } => (tokenization, source_name, stage),
        };
        Ok(match tokenization.step()? {
            Some(ids) => {
                stage.set(|| KeyValue::new(attribute::TOKENS, ids.len() as i64));
                Progress::Done { ids, media: tokenization.media(), source: source_name }
            }
            None => Progress::Begun(JobState::Begun { tokenization, source_name, stage }),
        })
    }
}

enum Progress {
    Begun(JobState),
    Done { ids: Vec<u32>, media: Option<&'static str>, source: Arc<str> },
}

/// Starts the worker of a lane with this number there.
fn start_worker(shared: &Arc<PoolState>, lane: Lane, number: usize) -> std::io::Result<()> {
    let worker = Arc::clone(shared);
    let name = match lane {
        Lane::Slices => format!("tokenizer-{number}"),
        Lane::UncutPieces => "tokenizer-uncut".to_owned(),
        Lane::Renderings => format!("renderer-{number}"),
    };
    let thread = std::thread::Builder::new().name(name).spawn(move || run_worker(&worker, lane, number))?;
    let mut threads = shared.threads.lock();
    threads.retain(|thread| !thread.is_finished());
    threads.push(thread);
    Ok(())
}

fn run_worker(shared: &Arc<PoolState>, lane: Lane, number: usize) {
    let mut replaced_at = shared.models.dropped() + DROPPED_TOKENIZERS_PER_THREAD;
    while let Some(queued) = shared.queue.pop(lane) {
        shared.work(queued);
        if shared.models.dropped() < replaced_at || shared.queue.is_closed() {
            continue;
        }
        match start_worker(shared, lane, number) {
            Ok(()) => return,
            // No new thread is available: keep this one and try again later.
            Err(_) => replaced_at = shared.models.dropped() + DROPPED_TOKENIZERS_PER_THREAD,
        }
    }
}
