//! Giving back what nobody needs: blocks at the end of a run that no rank holds and no run hangs
//! from, and names of a domain in which no rank holds the block or any that follows it.

use std::ops::ControlFlow;

use super::Writer;
use super::runs::DomainId;
use crate::designs::run::published::atomics::Relaxed;
use crate::designs::run::published::holdings::Form;
use crate::designs::run::published::layout::{HOLDINGS, INFO, Info, Place, RunId};

impl Writer {
    /// Trims a run of which a rank of this domain has let go, and then those above it that become free
    /// of what hung from them. Other domains need what they needed before.
    pub(super) fn trim(&mut self, run: RunId, domain: DomainId) {
        let mut run = run;
        while run != RunId::NONE {
            let state = self.runs.get(run);
            let (parent, named) = (state.parent.run, state.columns.get(domain).named);
            let is_single = state.columns.is_single();
            let needed = self.needed(run);
            let needed_names = if is_single { needed } else { self.names_needed(run, domain) };
            let vanished = needed_names == 0 && named > 0;
            self.unname(run, domain, needed_names);
            if needed == 0 {
                self.free(run);
            } else {
                self.truncate(run, needed);
                if !vanished {
                    return;
                }
            }
            run = parent;
        }
    }

    /// How many blocks of a run must stay for its holders and for the runs that hang from it.
    fn needed(&mut self, run: RunId) -> u16 {
        let mut needed = 0;
        let len = self.runs.get(run).len;
        self.published.run(run).holdings().each_until(|_, end| {
            needed = end.max(needed);
            if needed == len { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let state = self.runs.get(run);
        needed = needed.max(state.exceptions.as_ref().map_or(0, |exceptions| exceptions.end()));
        if state.children == 0 || state.deepest_child < needed {
            return needed;
        }
        let deepest = self.runs.children(run).map(|(_, offset)| offset).max().unwrap_or(0);
        self.runs.get_mut(run).deepest_child = deepest;
        needed.max(deepest + 1)
    }

    /// How many blocks of a run must keep the domain's names: those that its ranks hold and those from
    /// which runs hang that it has named.
    fn names_needed(&self, run: RunId, domain: DomainId) -> u16 {
        let named = self.runs.get(run).columns.get(domain).named;
        let needed = match self.domains.get(domain).only_member() {
            Some(rank) => self.coverage_end(run, rank),
            None => self.coverage_end_in(run, domain),
        };
        if needed >= named || self.runs.get(run).children == 0 {
            return needed.min(named);
        }
        let children = self.runs.children(run);
        let named_too = children.filter(|&(child, _)| self.runs.get(child).columns.get(domain).named > 0);
        named_too.fold(needed, |needed, (_, offset)| needed.max(offset + 1))
    }

    /// One more than the last offset that any rank of the domain holds.
    fn coverage_end_in(&self, run: RunId, domain: DomainId) -> u16 {
        let in_domain = |rank| self.ranks.get(rank).domain == domain;
        let mut coverage_end = 0;
        self.published.run(run).holdings().for_each(|holder, end| {
            if end > coverage_end && in_domain(self.holders.owner(holder)) {
                coverage_end = end;
            }
        });
        for (rank, coverage) in self.runs.get(run).exceptions() {
            if in_domain(rank) {
                coverage_end = coverage_end.max(coverage.end());
            }
        }
        coverage_end
    }

    /// Forgets the domain's names from an offset on.
    fn unname(&mut self, run: RunId, domain: DomainId, keep: u16) {
        let Self { runs, names, rows, domains, rare_bytes, .. } = self;
        let columns = &mut runs.get_mut(run).columns;
        let mut column = columns.get(domain);
        if column.named <= keep {
            return;
        }
        let directory = &mut domains.get_mut(domain).directory;
        directory.forget(rows, names.last_lines(&column, keep));
        names.truncate(&mut column, keep);
        columns.set_counted(domain, column, rare_bytes);
    }

    fn truncate(&mut self, run: RunId, len: u16) {
        if self.runs.get(run).len == len {
            return;
        }
        self.before_truncating(run, len);
        self.runs.get_mut(run).len = len;
        self.change_run(run, |run| {
            let info = Info(run.record[INFO].load(Relaxed)).with_len(len.into());
            run.record[INFO].store(info.0, Relaxed);
        });
    }

    fn free(&mut self, run: RunId) {
        let parent = self.runs.get(run).parent;
        let local = self.local_of(Place { run, offset: 0 });
        let info = Info(self.published.run(run).record[INFO].load(Relaxed));
        let hash = self.published.edges.hash(parent, local);
        self.edges.remove(&self.published.edges, hash, run);
        let extent = Form(self.published.run(run).record[HOLDINGS].load(Relaxed)).extent();
        self.change_run(run, |run| {
            run.record[INFO].store(0, Relaxed);
            run.record[HOLDINGS].store(Form::EMPTY.0, Relaxed);
        });
        if let Some(extent) = extent {
            self.extents.give_back(extent);
        }
        self.runs.unlink(run);
        self.show_child(parent.run);
        self.runs.give_back(run);
        self.after_freeing_twin((run, info), local);
    }
}
