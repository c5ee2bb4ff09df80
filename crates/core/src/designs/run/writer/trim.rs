//! Giving back what nobody needs: blocks at the end of a run that no rank holds and no run hangs
//! from, and names of a domain in which no rank holds the block or any that follows it.

use super::Writer;
use super::runs::DomainId;
use crate::designs::run::published::atomics::Relaxed;
use crate::designs::run::published::edges::edge_hash;
use crate::designs::run::published::holdings::Form;
use crate::designs::run::published::layout::{HOLDINGS, INFO, Info, Place, RunId};

impl Writer {
    /// Trims a run, and then those above it that become free of what hung from them.
    pub(super) fn trim(&mut self, run: RunId) {
        let mut run = run;
        while run != RunId::NONE {
            let needed = self.needed(run, None);
            let mut vanished = false;
            if self.runs.get(run).columns.is_single() {
                // Then whatever is needed is needed by the one domain.
                let domain = self.runs.get(run).columns.domains().next();
                vanished |= domain.is_some_and(|domain| self.unname(run, domain, needed));
            } else {
                let domains: Vec<DomainId> = self.runs.get(run).columns.domains().collect();
                for domain in domains {
                    let needed = self.needed(run, Some(domain));
                    vanished |= self.unname(run, domain, needed);
                }
            }
            let parent = self.runs.get(run).parent.run;
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

    /// How many blocks of a run must stay for its holders and for the runs that hang from it; those
    /// of one domain or all.
    fn needed(&mut self, run: RunId, domain: Option<DomainId>) -> u16 {
        let in_domain = |rank| domain.is_none_or(|domain| self.ranks.get(rank).domain == domain);
        let mut needed = 0;
        self.published.run(run).holdings().for_each(|holder, end| {
            if end > needed && in_domain(self.published.ranks.meaning(holder).rank) {
                needed = end;
            }
        });
        let state = self.runs.get(run);
        for (&rank, coverage) in state.exceptions.iter().flat_map(|exceptions| exceptions.iter()) {
            if in_domain(rank) {
                needed = needed.max(coverage.end());
            }
        }
        if state.children == 0 || state.deepest_child < needed {
            return needed;
        }
        let children = self
            .runs
            .children(run)
            .filter(|&(child, _)| domain.is_none_or(|domain| self.runs.get(child).columns.get(domain).named > 0));
        let deepest = children.map(|(_, offset)| offset).max();
        if domain.is_none() {
            self.runs.get_mut(run).deepest_child = deepest.unwrap_or(0);
        }
        deepest.map_or(needed, |deepest| needed.max(deepest + 1))
    }

    /// Forgets the domain's names from an offset on; true when none is left that was.
    fn unname(&mut self, run: RunId, domain: DomainId, keep: u16) -> bool {
        let Self { runs, names, domains, .. } = self;
        let columns = &mut runs.get_mut(run).columns;
        let mut column = columns.get(domain);
        if column.named <= keep {
            return false;
        }
        let directory = &mut domains.get_mut(domain).directory;
        while column.named > keep {
            let (name, line) = names.last(&column).expect("the column has names left");
            directory.remove(name, line);
            names.pop(&mut column);
        }
        columns.set(domain, column);
        column.named == 0
    }

    fn truncate(&mut self, run: RunId, len: u16) {
        if self.runs.get(run).len == len {
            return;
        }
        self.runs.get_mut(run).len = len;
        self.change_run(run, |run| {
            let info = Info(run.record[INFO].load(Relaxed)).with_len(len.into());
            run.record[INFO].store(info.0, Relaxed);
        });
    }

    fn free(&mut self, run: RunId) {
        let parent = self.runs.get(run).parent;
        let hash = edge_hash(parent, self.local_of(Place { run, offset: 0 }));
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
        self.runs.give_back(run);
    }
}
