//! Depths by holder, and the runs on the path of a query.

use super::published::ends::for_each_end;
use super::published::holdings::{Holder, Holdings};
use super::published::layout::{Info, RunId};

/// Depths by holder, in memory that queries reuse.
///
/// A fleet's answer is an array, because listing thousands of holders costs more than finding them.
#[derive(Debug, Default)]
pub(super) struct Depths {
    /// Leading blocks by holder.
    by_holder: Vec<u32>,
    occupancy: Occupancy,
}

/// Which elements may be nonzero.
#[derive(Debug)]
enum Occupancy {
    Sparse(Vec<Holder>),
    All,
}

impl Default for Occupancy {
    fn default() -> Self {
        Self::Sparse(Vec::new())
    }
}

impl Depths {
    /// Sets the depth of every holder to zero.
    pub(super) fn clear(&mut self, holders: usize) {
        match &mut self.occupancy {
            Occupancy::Sparse(listed) => {
                for holder in listed.drain(..) {
                    self.by_holder[holder.0 as usize] = 0;
                }
            }
            Occupancy::All => {
                self.by_holder.fill(0);
                self.occupancy = Occupancy::default();
            }
        }
        if self.by_holder.len() != holders {
            self.by_holder.resize(holders, 0);
        }
    }

    /// Raises a holder's depth to at least `depth`.
    pub(super) fn raise(&mut self, holder: Holder, depth: u32) {
        let Some(slot) = self.by_holder.get_mut(holder.0 as usize) else { return };
        if *slot == 0
            && depth > 0
            && let Occupancy::Sparse(listed) = &mut self.occupancy
        {
            listed.push(holder);
        }
        *slot = depth.max(*slot);
    }

    /// Sets the depths from the holdings of the first run of a path. For a dense run, previous contents are
    /// overwritten.
    #[inline]
    pub(super) fn start(&mut self, holders: usize, holdings: Holdings<'_>, matched: u32) {
        match holdings {
            Holdings::Entries { .. } => {
                self.clear(holders);
                let Self { by_holder, occupancy: Occupancy::Sparse(listed) } = self else {
                    unreachable!("just cleared")
                };
                holdings.for_each(|holder, end| {
                    if let Some(slot) = by_holder.get_mut(holder.0 as usize) {
                        // A holder that leaves and returns during the read appears twice.
                        if *slot == 0 {
                            listed.push(holder);
                        }
                        *slot = matched.min(end.into());
                    }
                });
            }
            Holdings::Dense { words } => {
                self.occupancy = Occupancy::All;
                self.by_holder.resize(holders, 0);
                let covered = self.by_holder.len().min(words.len() * 4);
                let matched = matched as i16;
                for_each_end(words, &mut self.by_holder, |depth, end| *depth = end.min(matched) as u32);
                self.by_holder[covered..].fill(0);
            }
        }
    }

    /// Extends the depths by a run that follows `base` matched blocks: a holder that has all of those continues into
    /// the run.
    #[inline]
    pub(super) fn advance(&mut self, holdings: Holdings<'_>, base: u32, matched: u32) {
        match holdings {
            Holdings::Entries { .. } => holdings.for_each(|holder, end| {
                if let Some(depth) = self.by_holder.get_mut(holder.0 as usize)
                    && *depth == base
                {
                    *depth = base + matched.min(end.into());
                }
            }),
            Holdings::Dense { words } => {
                let matched = matched as i16;
                for_each_end(words, &mut self.by_holder, |depth, end| {
                    let more = end.min(matched) as u32;
                    *depth = depth.wrapping_add(if *depth == base { more } else { 0 });
                });
            }
        }
    }

    /// Calls `each` with holders that have at least the first block.
    #[inline]
    pub(super) fn for_each(&self, mut each: impl FnMut(Holder, u32)) {
        match &self.occupancy {
            Occupancy::Sparse(listed) => {
                for &holder in listed {
                    match self.by_holder[holder.0 as usize] {
                        0 => {}
                        depth => each(holder, depth),
                    }
                }
            }
            Occupancy::All => {
                for (holder, &depth) in self.by_holder.iter().enumerate() {
                    if depth > 0 {
                        each(Holder(holder as u32), depth);
                    }
                }
            }
        }
    }

    /// The holders with a match and their depths, if they are listed: few of many holders.
    pub(super) fn listed(&self) -> Option<impl Iterator<Item = (Holder, u32)>> {
        let Occupancy::Sparse(listed) = &self.occupancy else { return None };
        let depths = listed.iter().map(|&holder| (holder, self.by_holder[holder.0 as usize]));
        Some(depths.filter(|&(_, depth)| depth > 0))
    }

    /// An upper bound on the holders that [`Depths::for_each`] visits.
    pub(super) fn matches_max(&self) -> usize {
        match &self.occupancy {
            Occupancy::Sparse(listed) => listed.len(),
            Occupancy::All => self.by_holder.len(),
        }
    }

    pub(super) fn as_slice(&self) -> &[u32] {
        &self.by_holder
    }
}

/// A run on the path of a query, as it was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) run: RunId,
    pub(super) version: u64,
    /// Matched blocks before the run.
    pub(super) base: u32,
    /// Matched blocks of the run; at least one.
    pub(super) matched: u32,
    pub(super) info: Info,
}
