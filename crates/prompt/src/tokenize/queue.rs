//! The queue of jobs, limited by number and bytes.

use std::collections::VecDeque;

use parking_lot::{Condvar, Mutex};

use super::error::TokenizeError;
use super::job::Job;

/// Identifies a submitted prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

pub(super) struct Queue {
    state: Mutex<State>,
    filled: Condvar,
    jobs_max: usize,
    bytes_max: usize,
}

#[derive(Default)]
struct State {
    /// Jobs in the order of their tickets, each with its bytes.
    jobs: VecDeque<(Ticket, Job, usize)>,
    bytes: usize,
    tickets: u64,
    is_closed: bool,
}

impl Queue {
    pub(super) fn new(jobs_max: usize, bytes_max: usize) -> Self {
        Self { state: Mutex::default(), filled: Condvar::new(), jobs_max: jobs_max.max(1), bytes_max }
    }

    /// Appends a job of `bytes`. An empty queue accepts a job larger than the limit.
    pub(super) fn push(&self, job: Job, bytes: usize) -> Result<Ticket, TokenizeError> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(TokenizeError::Stopped);
        }
        let waiting = state.jobs.len();
        if waiting >= self.jobs_max || (waiting > 0 && state.bytes.saturating_add(bytes) > self.bytes_max) {
            return Err(TokenizeError::QueueFull { prompts: waiting, bytes: state.bytes });
        }
        state.bytes += bytes;
        state.tickets += 1;
        let ticket = Ticket(state.tickets);
        state.jobs.push_back((ticket, job, bytes));
        drop(state);
        self.filled.notify_one();
        Ok(ticket)
    }

    /// Removes a job that is still queued. Cost: at most the length of the queue.
    pub(super) fn withdraw(&self, ticket: Ticket) -> Option<Job> {
        let mut state = self.state.lock();
        let at = state.jobs.binary_search_by_key(&ticket, |(ticket, ..)| *ticket).ok()?;
        let (_, job, bytes) = state.jobs.remove(at)?;
        state.bytes -= bytes;
        Some(job)
    }

    /// Waits for a job. `None` once the queue is closed.
    pub(super) fn pop(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if let Some((_, job, bytes)) = state.jobs.pop_front() {
                state.bytes -= bytes;
                return Some(job);
            }
            if state.is_closed {
                return None;
            }
            self.filled.wait(&mut state);
        }
    }

    /// Closes the queue and returns the queued jobs.
    pub(super) fn close(&self) -> Vec<Job> {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.bytes = 0;
        let waiting = std::mem::take(&mut state.jobs);
        drop(state);
        self.filled.notify_all();
        waiting.into_iter().map(|(_, job, _)| job).collect()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Number of queued jobs, and their bytes.
    pub(super) fn size(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.jobs.len(), state.bytes)
    }
}
