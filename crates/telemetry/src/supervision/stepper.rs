//! Threads as steps: each on a thread of the system, or all of them as steps of one simulation.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::Mutex;

use super::Watch;

/// The loop of a thread, one iteration at a time.
pub trait Steps: Send {
    /// Waits for work, and does a part of it.
    fn step(&mut self, watch: &Arc<Watch>) -> Step;
}

/// Outcome of one step of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It did work. There may be more.
    Worked,
    /// There was no work until the step's deadline.
    Idle,
    /// The thread ends.
    Ended,
}

/// Chooses the next thread of a simulation among this number of threads.
pub type ThreadChoice = Box<dyn FnMut(usize) -> usize + Send>;

/// Runs the threads of a simulated service, one step at a time. The caller chooses the thread, so a run can be repeated
/// exactly.
pub struct Stepper {
    /// None while the thread makes a step, and after its end.
    threads: Mutex<Vec<Option<SteppedThread>>>,
    choose: Mutex<ThreadChoice>,
}

struct SteppedThread {
    watch: Arc<Watch>,
    steps: Box<dyn Steps>,
}

impl Stepper {
    pub(super) fn new(choose: ThreadChoice) -> Self {
        Self { threads: Mutex::default(), choose: Mutex::new(choose) }
    }

    pub(super) fn add(&self, watch: Arc<Watch>, steps: Box<dyn Steps>) {
        self.threads.lock().push(Some(SteppedThread { watch, steps }));
    }

    /// Makes steps of the threads in turn, starting with the chosen one, until one did work. Returns false if none had any.
    pub fn step(&self) -> bool {
        let count = self.threads.lock().len();
        if count == 0 {
            return false;
        }
        let first = (self.choose.lock())(count);
        (0..count).any(|offset| self.step_of((first + offset) % count) == Step::Worked)
    }

    fn step_of(&self, number: usize) -> Step {
        let Some(mut thread) = self.threads.lock()[number].take() else { return Step::Ended };
        let step = catch_unwind(AssertUnwindSafe(|| thread.steps.step(&thread.watch)));
        match step {
            Ok(Step::Ended) => thread.watch.finish(),
            Ok(_) => self.threads.lock()[number] = Some(thread),
            Err(ref panic) => thread.watch.fail(&**panic),
        }
        step.unwrap_or(Step::Ended)
    }
}
