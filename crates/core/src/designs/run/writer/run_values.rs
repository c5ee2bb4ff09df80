//! What runs are worth: how often they were of use, and how long ago.

use bytemuck::Zeroable;

use super::chunked::Chunked;
use super::runs::Runs;
use crate::designs::run::published::layout::{CAPACITIES, RunId};

/// Of one run.
#[derive(Debug, Clone, Copy, Default, Zeroable)]
struct Value {
    /// When it was last of use, in runs that were made since the index was.
    last: u32,
    /// How often it was; an older use counts less.
    uses: f32,
}

/// Of every run.
#[derive(Debug, Default)]
pub(super) struct Values {
    values: [Chunked<Value>; CAPACITIES.len()],
    now: u32,
    /// In how much time a use comes to count half.
    half_life: f32,
}

impl Values {
    /// Every run that there is, used once.
    pub(super) fn fill(&mut self, runs: &Runs) {
        for class in 0..CAPACITIES.len() {
            for number in 0..runs.touched(class) {
                self.start(RunId::new(class, number as u32));
            }
        }
        self.set_half_life(runs.count());
    }

    /// Makes room for runs of a class up to a number.
    pub(super) fn reserve(&mut self, class: usize, number: usize) {
        self.values[class].ensure(number as u32);
    }

    /// A run that was just made.
    pub(super) fn start(&mut self, run: RunId) {
        self.now = self.now.wrapping_add(1);
        let class = &mut self.values[run.class()];
        class.ensure(run.number());
        class[run.number()] = Value { last: self.now, uses: 1.0 };
    }

    /// Uses count half after as many runs as are kept.
    pub(super) fn set_half_life(&mut self, runs: usize) {
        self.half_life = runs.max(1) as f32;
    }

    /// A use more, if the run is one.
    pub(super) fn count_use(&mut self, run: RunId) {
        let (now, half_life) = (self.now, self.half_life);
        let class = &mut self.values[run.class()];
        if (run.number() as usize) < class.room() {
            let value = &mut class[run.number()];
            value.uses = value.uses_at(now, half_life) + 1.0;
            value.last = now;
        }
    }

    /// What a run was used for was a use of the one it hung from as well.
    pub(super) fn inherit(&mut self, from: RunId, to: RunId) {
        let uses = self.uses(from);
        let (now, half_life) = (self.now, self.half_life);
        let value = &mut self.values[to.class()][to.number()];
        value.uses = value.uses_at(now, half_life) + uses;
        value.last = now;
    }

    /// The uses of a run, older ones counting less.
    pub(super) fn uses(&self, run: RunId) -> f32 {
        self.values[run.class()][run.number()].uses_at(self.now, self.half_life)
    }

    /// Bytes of more memory for one more run of a class that was never in use.
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
