//! Eviction: drops the least valuable of some runs without child runs.
//!
//! It evicts whole runs, because a free record can be reused for any content, and only ends of chains, so that no
//! remaining prefix loses its beginning. A random sample of a few runs contains one that is close to the least
//! valuable of all, and sampling needs no ordered structure.

use std::ops::ControlFlow;

use super::Writer;
use crate::run::published::layout::{CAPACITIES, RunId};
use crate::run::published::rank_table::RankSlot;

/// Runs that are compared.
const CANDIDATES: usize = 16;
/// Records that are sampled to find them. Most records are in use when memory is short.
const SAMPLED_MAX: usize = 16 * CANDIDATES;
/// Records that are scanned in order when no sampled run can be evicted.
const SCANNED_MAX: usize = 2_048;
/// Holders that are counted in the value of a run; with more, eviction is practically excluded.
const HOLDERS_COUNTED_MAX: u32 = 256;
/// Bytes of a block's sequence hash and its directory entry.
const BLOCK_BYTES: f32 = 22.0;
/// Bytes of a block's local hash.
const LOCAL_BYTES: f32 = 8.0;
/// Bytes of a run besides its blocks: header, state, edge, value.
const RUN_BYTES: f32 = 200.0;

impl Writer {
    /// Evicts a run for all ranks that hold it, or for at most `holders_max` of them. Returns the number of ranks, at
    /// least one; zero if no run can be evicted.
    pub(super) fn evict(&mut self, holders_max: usize) -> usize {
        let Some(run) = self.least_valuable() else { return 0 };
        let state = self.runs.get(run);
        let (parent, domains) = (state.parent().run, state.columns.domains().next());
        if parent != RunId::NONE {
            self.bounded_mut().values.inherit(run, parent);
        }
        let slots = self.holders_of(run, holders_max);
        let evicted = slots.len().max(1);
        for slot in slots {
            self.steps.take(1);
            if self.ranks.is_retired(slot) {
                self.release_run_of_retired(slot, run);
            } else {
                self.evict_run(slot, run);
            }
        }
        if let Some(domain) = domains {
            let Self { domains, sequences, .. } = self;
            let given_back = domains.get_mut(domain).directory.shrink_next(sequences);
            self.bounded_mut().directory_bytes -= given_back;
        }
        evicted
    }

    fn evict_run(&mut self, slot: RankSlot, run: RunId) {
        self.evict_blocks_of(slot, run);
        if self.bounded_mut().current != Some(slot) {
            let rank = self.ranks.get(slot).rank;
            self.finish(rank);
        }
    }

    /// Ranks that hold blocks of a run, including cleared ones; at most `holders_max`.
    fn holders_of(&self, run: RunId, holders_max: usize) -> Vec<RankSlot> {
        let mut slots = Vec::new();
        self.published.run(run).holdings().each_until(|holder, _| {
            slots.push(self.holders.owner(holder));
            if slots.len() < holders_max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        let room = holders_max.saturating_sub(slots.len());
        slots.extend(self.runs.get(run).exceptions().map(|(rank, _)| rank).take(room));
        slots.sort_unstable();
        slots.dedup();
        slots
    }

    fn least_valuable(&mut self) -> Option<RunId> {
        let touched: usize = (0..CAPACITIES.len()).map(|class| self.runs.touched(class)).sum();
        let mut least: Option<(f32, RunId)> = None;
        let mut candidates = 0;
        for _ in 0..SAMPLED_MAX {
            let random = self.random();
            self.steps.take(1);
            let run = self.run_at(((u128::from(random) * touched as u128) >> 64) as usize);
            if !self.is_evictable(run) {
                continue;
            }
            let value = self.value(run);
            if least.is_none_or(|(least, _)| value < least) {
                least = Some((value, run));
            }
            candidates += 1;
            if candidates == CANDIDATES {
                break;
            }
        }
        // Hardly any run is in use, or each has child runs: a part of the records is scanned in order.
        least.map(|(_, run)| run).or_else(|| self.next_evictable(touched))
    }

    fn next_evictable(&mut self, touched: usize) -> Option<RunId> {
        for _ in 0..touched.min(SCANNED_MAX) {
            self.steps.take(1);
            let bounded = self.bounded_mut();
            let at = (bounded.scanned + 1) % touched;
            bounded.scanned = at;
            let run = self.run_at(at);
            if self.is_evictable(run) {
                return Some(run);
            }
        }
        None
    }

    /// A record by its number among all classes.
    fn run_at(&self, mut at: usize) -> RunId {
        for class in 0..CAPACITIES.len() {
            match at.checked_sub(self.runs.touched(class)) {
                None => return RunId::new(class, at as u32),
                Some(rest) => at = rest,
            }
        }
        RunId::NONE
    }

    fn is_evictable(&self, run: RunId) -> bool {
        let state = self.runs.get(run);
        state.len > 0 && state.children == 0 && Some(run) != self.bounded.as_ref().map(|bounded| bounded.pinned)
    }

    /// Value of a run: expected hits lost with it, in blocks, for each byte that it takes. It grows with recent uses
    /// and with the number of holders.
    fn value(&self, run: RunId) -> f32 {
        let Some(bounded) = &self.bounded else { return 0.0 };
        let len = f32::from(self.runs.get(run).len);
        let bytes = len * BLOCK_BYTES + f32::from(CAPACITIES[run.class()]) * LOCAL_BYTES + RUN_BYTES;
        let mut holders = 0;
        self.published.run(run).holdings().each_until(|_, _| {
            holders += 1;
            if holders < HOLDERS_COUNTED_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        bounded.values.uses(run) * holders as f32 * len / bytes
    }

    fn random(&mut self) -> u64 {
        let random = &mut self.bounded_mut().random;
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        *random
    }
}
