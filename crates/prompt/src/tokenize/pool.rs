//! The pool: threads that render and tokenize.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use parking_lot::Mutex;

use super::counters::{Counters, PoolStatistics};
use super::error::TokenizeError;
use super::job::{Job, panic_message};
use super::models::{Models, ModelsOptions};
use super::prompt::{Prompt, PromptOptions, Tokenized};
use super::queue::{Queue, Ticket};
use super::source::TokenizerSource;

/// A thread is replaced by a new one when so many tokenizers that it may have used were dropped: the `tokenizers`
/// crate caches words by tokenizer in each thread, and forgets them only when the thread ends.
const DROPPED_TOKENIZERS_PER_THREAD: u64 = 8;

/// Sizes and times of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolOptions {
    /// Threads, at least one.
    pub workers: usize,
    /// Prompts that may wait, at least one.
    pub queued_prompts_max: usize,
    /// Bytes of prompts that may wait. A single prompt may have more.
    pub queued_bytes_max: usize,
    /// Tokenizers that are kept loaded, at least one.
    pub loaded_models_max: usize,
    /// How long a model that no place has is not looked for again.
    pub missing_for: Duration,
    /// How often a loaded tokenizer's files are looked at for changes, at most.
    pub checked_every: Duration,
}

impl Default for PoolOptions {
    /// One worker for each processor, 1,024 prompts of 256 MiB that wait, 16 tokenizers, missing for 5 s, checked every
    /// second.
    fn default() -> Self {
        Self {
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            queued_prompts_max: 1024,
            queued_bytes_max: 256 << 20,
            loaded_models_max: 16,
            missing_for: Duration::from_secs(5),
            checked_every: Duration::from_secs(1),
        }
    }
}

/// Longest wait for prompts that workers have begun when the pool stops.
const STOP_DEADLINE: Duration = Duration::from_secs(3);
const STOP_CHECK: Duration = Duration::from_millis(2);

/// Renders chats and tokenizes prompts on threads of its own.
///
/// Prompts wait in one bounded queue and are begun in the order in which they came. Nothing waits for room: a full
/// queue is an error. A worker that fetches a tokenizer, or asks a service, is not free for others meanwhile.
/// A tokenizer that panics fails its prompt and nothing else.
pub struct TokenizerPool {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Queue,
    models: Models,
    counters: Arc<Counters>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl TokenizerPool {
    /// Starts the workers. `sources` are asked in this order.
    ///
    /// # Errors
    ///
    /// When a thread cannot be started.
    pub fn start(sources: Vec<Box<dyn TokenizerSource>>, options: &PoolOptions) -> std::io::Result<Self> {
        let counters = Arc::new(Counters::default());
        let models_options = ModelsOptions {
            loaded_max: options.loaded_models_max,
            missing_for: options.missing_for,
            checked_every: options.checked_every,
        };
        let shared = Arc::new(Shared {
            queue: Queue::new(options.queued_prompts_max, options.queued_bytes_max),
            models: Models::new(sources, models_options, Arc::clone(&counters)),
            counters,
            threads: Mutex::default(),
        });
        let pool = Self { shared };
        for number in 0..options.workers.max(1) {
            start_worker(&pool.shared, number)?;
        }
        Ok(pool)
    }

    /// Tokenizes as engines do, and waits for it.
    ///
    /// # Errors
    ///
    /// When the queue is full or the pool stopped, when there is no tokenizer for the model, and when the prompt cannot
    /// be rendered or tokenized.
    pub fn tokenize(&self, model: &str, prompt: Prompt) -> Result<Tokenized, TokenizeError> {
        self.tokenize_with(model, prompt, PromptOptions::default())
    }

    /// Like [`tokenize`](Self::tokenize), with options.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn tokenize_with(
        &self,
        model: &str,
        prompt: Prompt,
        options: PromptOptions,
    ) -> Result<Tokenized, TokenizeError> {
        let (sender, result) = bounded(1);
        self.submit_with(model, prompt, options, move |tokenized| {
            // Whoever asked waits for it.
            let _ = sender.send(tokenized);
        })?;
        result.recv().unwrap_or(Err(TokenizeError::Stopped))
    }

    /// Queues a prompt that is tokenized as engines do, and returns at once. `on_done` is called exactly once, by a
    /// worker, or by the thread that stops the pool or withdraws the prompt; it should not take long.
    ///
    /// # Errors
    ///
    /// When the queue is full or the pool stopped; `on_done` is not called then.
    pub fn submit(
        &self,
        model: &str,
        prompt: Prompt,
        on_done: impl FnOnce(Result<Tokenized, TokenizeError>) + Send + 'static,
    ) -> Result<Ticket, TokenizeError> {
        self.submit_with(model, prompt, PromptOptions::default(), on_done)
    }

    /// Like [`submit`](Self::submit), with options.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn submit_with(
        &self,
        model: &str,
        prompt: Prompt,
        options: PromptOptions,
        on_done: impl FnOnce(Result<Tokenized, TokenizeError>) + Send + 'static,
    ) -> Result<Ticket, TokenizeError> {
        let bytes = prompt.bytes();
        let job =
            Job { model: model.to_owned(), prompt, options, on_done: Box::new(on_done), submitted: Instant::now() };
        self.shared.queue.push(job, bytes).inspect_err(|error| self.shared.counters.failed(error.reason()))
    }

    /// Nobody wants this prompt's tokens any more: fails it, unless a worker has begun it.
    pub fn withdraw(&self, ticket: Ticket) {
        if let Some(job) = self.shared.queue.withdraw(ticket) {
            Job::finish(job.on_done, Err(TokenizeError::Withdrawn), &self.shared.counters);
        }
    }

    /// What has been done so far.
    #[must_use]
    pub fn statistics(&self) -> PoolStatistics {
        let (queued, queued_bytes) = self.shared.queue.size();
        PoolStatistics {
            queued,
            queued_bytes,
            loaded: self.shared.models.loaded(),
            bounds_reached: self.shared.models.bounds_reached(),
            ..self.shared.counters.read()
        }
    }

    /// Takes no more prompts, fails those that wait, and returns when those that were begun are done, or after
    /// three seconds: a worker that is still busy then is abandoned. Dropping the pool does the same.
    pub fn stop(&self) {
        let deadline = Instant::now() + STOP_DEADLINE;
        for job in self.shared.queue.close() {
            Job::finish(job.on_done, Err(TokenizeError::Stopped), &self.shared.counters);
        }
        // A worker that is being replaced has left the handle of the new one before it ends.
        while let Some(thread) = self.shared.take_thread() {
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(STOP_CHECK);
            }
            if thread.is_finished() {
                // What panics in a worker has been caught there.
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

impl Shared {
    /// A thread to wait for; never the one that asks, which is a worker when a callback drops the pool.
    fn take_thread(&self) -> Option<JoinHandle<()>> {
        let mut threads = self.threads.lock();
        threads.retain(|thread| thread.thread().id() != std::thread::current().id());
        threads.pop()
    }

    fn work(&self, job: Job) {
        let Job { model, prompt, options, on_done, submitted } = job;
        let begun = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| {
            let loaded = self.models.get(&model)?;
            let ids = loaded.tokenizer.tokenize(&prompt, options)?;
            Ok(Tokenized { ids, place: loaded.place, waited: begun - submitted, worked: begun.elapsed() })
        }));
        let result = result.unwrap_or_else(|panic| Err(TokenizeError::Panicked(panic_message(&*panic))));
        Job::finish(on_done, result, &self.counters);
    }
}

fn start_worker(shared: &Arc<Shared>, number: usize) -> std::io::Result<()> {
    let worker = Arc::clone(shared);
    let builder = std::thread::Builder::new().name(format!("tokenizer-{number}"));
    let thread = builder.spawn(move || run_worker(&worker, number))?;
    let mut threads = shared.threads.lock();
    threads.retain(|thread| !thread.is_finished());
    threads.push(thread);
    Ok(())
}

fn run_worker(shared: &Arc<Shared>, number: usize) {
    let mut replaced_at = shared.models.dropped() + DROPPED_TOKENIZERS_PER_THREAD;
    while let Some(job) = shared.queue.pop() {
        shared.work(job);
        if shared.models.dropped() < replaced_at || shared.queue.is_closed() {
            continue;
        }
        match start_worker(shared, number) {
            Ok(()) => return,
            // No thread to be had: go on with this one, and try again later.
            Err(_) => replaced_at = shared.models.dropped() + DROPPED_TOKENIZERS_PER_THREAD,
        }
    }
}
