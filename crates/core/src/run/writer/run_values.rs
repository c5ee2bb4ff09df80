//! Values of runs for eviction: how often each run was used, with exponential decay.

use bytemuck::Zeroable;

use super::chunked::Chunked;
use super::runs::Runs;
use crate::run::published::layout::{CAPACITIES, RunId};

/// Value of one run.
#[derive(Debug, Clone, Copy, Default, Zeroable)]
struct Value {
    /// Time of the last use; the clock counts runs created since the index was.
    last: u32,
    /// Number of uses; older ones count less.
    uses: f32,
}

/// Values of all runs.
#[derive(Debug, Default)]
pub(super) struct Values {
    values: [Chunked<Value>; CAPACITIES.len()],
    now: u32,
    /// Time in which the weight of a use halves.
    half_life: f32,
}

impl Values {
    /// Gives every existing run one use.
    pub(super) fn fill(&mut self, runs: &Runs) {
        for class in 0..CAPACITIES.len() {
            for number in 0..runs.touched(class) {
                self.start(RunId::new(class, number as u32));
            }
        }
        self.set_half_life(runs.count());
    }

    /// Reserves room for runs of a class up to a number.
    pub(super) fn reserve(&mut self, class: usize, number: usize) {
        self.values[class].ensure(number as u32);
    }

    /// Initialises the value of a new run.
    pub(super) fn start(&mut self, run: RunId) {
        self.now = self.now.wrapping_add(1);
        let class = &mut self.values[run.class()];
        class.ensure(run.number());
        class[run.number()] = Value { last: self.now, uses: 1.0 };
    }

    /// Sets the half-life to the number of runs that are kept.
    pub(super) fn set_half_life(&mut self, runs: usize) {
        self.half_life = runs.max(1) as f32;
    }

    /// Counts a use, if the run exists.
    pub(super) fn count_use(&mut self, run: RunId) {
        if (run.number() as usize) < self.values[run.class()].room() {
            self.add_uses(run, 1.0);
        }
    }

    /// Adds the uses of an evicted run to its parent: each was a use of the parent as well.
    pub(super) fn inherit(&mut self, from: RunId, to: RunId) {
        self.add_uses(to, self.uses(from));
    }

    fn add_uses(&mut self, run: RunId, more: f32) {
        let uses = self.uses(run) + more;
        self.values[run.class()][run.number()] = Value { last: self.now, uses };
    }

    /// Uses of a run with decay.
    pub(super) fn uses(&self, run: RunId) -> f32 {
        self.values[run.class()][run.number()].uses_at(self.now, self.half_life)
    }

    /// Additional bytes for one more run of a class that was never in use.
    pub(super) fn bytes_for(&self, class: usize, number: usize) -> usize {
        if number < self.values[class].room() { 0 } else { super::chunked::CHUNK * size_of::<Value>() }
    }

    pub(super) fn bytes(&self) -> usize {
        self.values.iter().map(Chunked::bytes).sum()
    }
}

impl Value {
    fn uses_at(&self, now: u32, half_life: f32) -> f32 {
        let age = now.wrapping_sub(self.last) as f32;
        self.uses * (-age / half_life).exp2()
    }
}
