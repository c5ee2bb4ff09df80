//! The queue of jobs, limited by number and bytes.

use std::collections::{HashMap, VecDeque};
use std::iter::once;

use parking_lot::{Condvar, Mutex};

use super::error::TokenizeError;
use super::job::{Job, Lane};

/// Maximum size of a short prompt, in bytes. Short prompts do not wait for long ones.
pub const SHORT_BYTES_MAX: usize = 8 << 10;
/// Short prompts that are served between two slices of long ones.
const SHORT_PER_SLICE: u32 = 8;

/// Identifies a submitted prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// Two queues: of short prompts, and of long ones, which take turns slice by slice. Up to [`SHORT_PER_SLICE`] short prompts are served
/// before each slice of a long one. Prompts whose next slice is a long piece that cannot be cut, and chats that take long to render, wait
/// in separate queues for the workers of their [lanes](Lane).
pub(super) struct Queue {
    state: Mutex<State>,
    /// Notified, by lane, when a job is queued.
    filled: [Condvar; Lane::COUNT],
    jobs_max: usize,
    bytes_max: usize,
}

/// A job in the queue, or taken from it.
pub(super) struct QueuedJob {
    pub(super) ticket: Ticket,
    pub(super) job: Job,
    pub(super) bytes: usize,
}

#[derive(Default)]
struct State {
    short: VecDeque<QueuedJob>,
    /// The other jobs by lane: long prompts, not begun or between two slices; prompts before a long piece that cannot be cut; chats
    /// that take long to render.
    lanes: [VecDeque<QueuedJob>; Lane::COUNT],
    /// Jobs that a worker has taken, and whether each was withdrawn since.
    taken: HashMap<Ticket, bool>,
    bytes: usize,
    tickets: u64,
    /// Short prompts that were served since the last slice of a long one.
    served: u32,
    is_closed: bool,
}

impl Queue {
    pub(super) fn new(jobs_max: usize, bytes_max: usize) -> Self {
        Self { state: Mutex::default(), filled: Default::default(), jobs_max: jobs_max.max(1), bytes_max }
    }

    /// Appends a job of `bytes`. An empty queue accepts a job larger than the limit.
    pub(super) fn push(&self, job: Job, bytes: usize) -> Result<Ticket, TokenizeError> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(TokenizeError::Stopped);
        }
        let waiting = state.waiting();
        if waiting >= self.jobs_max || (waiting > 0 && state.bytes.saturating_add(bytes) > self.bytes_max) {
            return Err(TokenizeError::QueueFull { prompts: waiting, bytes: state.bytes });
        }
        state.tickets += 1;
        let ticket = Ticket(state.tickets);
        let queued = QueuedJob { ticket, job, bytes };
        state.bytes += bytes;
        let is_short = bytes <= SHORT_BYTES_MAX;
        let jobs = if is_short { &mut state.short } else { &mut state.lanes[Lane::Slices as usize] };
        jobs.push_back(queued);
        drop(state);
        self.filled[Lane::Slices as usize].notify_one();
        Ok(ticket)
    }

    /// Appends a job that was taken and is not finished, for the worker of a lane. Fails with the job if it was withdrawn or the
    /// queue is closed.
    pub(super) fn put_back(&self, queued: QueuedJob, lane: Lane) -> Result<(), Box<(Job, TokenizeError)>> {
        let mut state = self.state.lock();
        let is_withdrawn = state.taken.remove(&queued.ticket).unwrap_or_default();
        if is_withdrawn || state.is_closed {
            let why = if is_withdrawn { TokenizeError::Withdrawn } else { TokenizeError::Stopped };
            return Err(Box::new((queued.job, why)));
        }
        state.bytes += queued.bytes;
        state.lanes[lane as usize].push_back(queued);
        drop(state);
        self.filled[lane as usize].notify_one();
        Ok(())
    }

    /// Forgets a job that was taken.
    pub(super) fn finish(&self, ticket: Ticket) {
        self.state.lock().taken.remove(&ticket);
    }

    /// Removes a job that is queued. A job that a worker has taken is not put back. Cost: at most the length of the queue.
    pub(super) fn withdraw(&self, ticket: Ticket) -> Option<Job> {
        let mut state = self.state.lock();
        if let Some(is_withdrawn) = state.taken.get_mut(&ticket) {
            *is_withdrawn = true;
            return None;
        }
        let State { short, lanes, .. } = &mut *state;
        let queued = once(short).chain(lanes).find_map(|jobs| {
            let at = jobs.iter().position(|queued| queued.ticket == ticket)?;
            jobs.remove(at)
        })?;
        state.bytes -= queued.bytes;
        Some(queued.job)
    }

    /// Waits for a job of a lane. `None` once the queue is closed.
    pub(super) fn pop(&self, lane: Lane) -> Option<QueuedJob> {
        let mut state = self.state.lock();
        loop {
            if let Some(queued) = state.next(lane) {
                state.bytes -= queued.bytes;
                state.taken.insert(queued.ticket, false);
                return Some(queued);
            }
            if state.is_closed {
                return None;
            }
            self.filled[lane as usize].wait(&mut state);
        }
    }

    /// Closes the queue and returns the queued jobs.
    pub(super) fn close(&self) -> Vec<Job> {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.bytes = 0;
        let (short, lanes) = (std::mem::take(&mut state.short), std::mem::take(&mut state.lanes));
        drop(state);
        self.filled.iter().for_each(|filled| _ = filled.notify_all());
        once(short).chain(lanes).flatten().map(|queued| queued.job).collect()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Number of queued jobs, and their bytes.
    pub(super) fn size(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.waiting(), state.bytes)
    }
}

impl State {
    fn waiting(&self) -> usize {
        self.short.len() + self.lanes.iter().map(VecDeque::len).sum::<usize>()
    }

    fn next(&mut self, lane: Lane) -> Option<QueuedJob> {
        let jobs = &mut self.lanes[lane as usize];
        if lane != Lane::Slices {
            return jobs.pop_front();
        }
        let is_turn_of_long = self.short.is_empty() || self.served >= SHORT_PER_SLICE;
        if is_turn_of_long && let Some(queued) = jobs.pop_front() {
            self.served = 0;
            return Some(queued);
        }
        self.served = self.served.saturating_add(1);
        self.short.pop_front()
    }
}
