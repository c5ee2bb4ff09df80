//! Hash domains: which engines call the same prefix the same.
//!
//! Engines with one hash seed share a directory and one column of names a run: another replica of a
//! prefix then costs one holding and no name. Nobody says which seed an engine has; it shows. A rank
//! joins the domain that knows its first block, or one that does not contradict it. When it
//! contradicts its domain later — another name for a known content, another meaning of a known name —
//! it goes to a domain that agrees with all that it holds, or to one of its own. It keeps every
//! holding meanwhile: runs belong to no domain.

use rustc_hash::FxHashMap;

use super::Writer;
use super::directory::Directory;
use super::place::Located;
use super::ranks::RankState;
use super::runs::DomainId;
use crate::designs::run::published::layout::{Place, RunId};
use crate::designs::run::published::ranks::RankSlot;
use crate::keyed::HashKey;
use crate::{Block, SequenceHash, Tier, WorkerRank};

/// One domain.
#[derive(Debug)]
pub(super) struct Domain {
    pub(super) directory: Directory,
    /// Ranks in it.
    members: usize,
    /// The rank that joined last.
    newest: Option<RankSlot>,
}

impl Domain {
    fn new(key: HashKey) -> Self {
        Self { directory: Directory::new(key), members: 0, newest: None }
    }

    /// The domain's rank, if there is only one and it is known.
    pub(super) fn only_member(&self) -> Option<RankSlot> {
        self.newest.filter(|_| self.members == 1)
    }

    fn join(&mut self, rank: RankSlot) {
        self.members += 1;
        self.newest = Some(rank);
    }
}

/// Every domain.
#[derive(Debug)]
pub(super) struct Domains {
    domains: Vec<Option<Domain>>,
    key: HashKey,
}

impl Domains {
    /// None yet; `key` is the key of their directories' hash.
    pub(super) fn new(key: HashKey) -> Self {
        Self { domains: Vec::new(), key }
    }

    #[inline]
    pub(super) fn get(&self, domain: DomainId) -> &Domain {
        self.domains[domain.0 as usize].as_ref().expect("a domain with members exists")
    }

    /// The domain, if it still exists.
    pub(super) fn find(&self, domain: DomainId) -> Option<&Domain> {
        self.domains.get(domain.0 as usize)?.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, domain: DomainId) -> &mut Domain {
        self.domains[domain.0 as usize].as_mut().expect("a domain with members exists")
    }

    /// Whether no more than one rank is in the domain.
    pub(super) fn is_alone(&self, domain: DomainId) -> bool {
        self.get(domain).members <= 1
    }

    fn create(&mut self) -> DomainId {
        let free = self.domains.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.domains.push(None);
            self.domains.len() - 1
        });
        self.domains[at] = Some(Domain::new(self.key));
        DomainId(u32::try_from(at).expect("fewer than 2^32 domains"))
    }

    pub(super) fn leave(&mut self, domain: DomainId, rank: RankSlot) {
        let state = self.get_mut(domain);
        state.members -= 1;
        state.newest = state.newest.filter(|&newest| newest != rank);
        if state.members == 0 {
            debug_assert!(state.directory.is_empty(), "names go with what they name");
            self.domains[domain.0 as usize] = None;
        }
    }

    fn iter(&self) -> impl Iterator<Item = (DomainId, &Domain)> {
        let domains = self.domains.iter().enumerate();
        domains.filter_map(|(at, domain)| Some((DomainId(at as u32), domain.as_ref()?)))
    }

    pub(super) fn count(&self) -> usize {
        self.iter().count()
    }

    pub(super) fn bytes(&self) -> usize {
        self.iter().map(|(_, domain)| domain.directory.bytes()).sum()
    }
}

impl Writer {
    /// Takes in a rank that holds nothing yet; none when there are too many holders.
    pub(super) fn join(
        &mut self,
        rank: WorkerRank,
        home: Tier,
        parent: Option<SequenceHash>,
        first: &Block,
    ) -> Option<RankSlot> {
        if !self.holders.has_room() {
            return None;
        }
        let domain = self.domain_for(parent, first);
        let slot = self.ranks.insert(RankState::new(rank, domain, home));
        self.domains.get_mut(domain).join(slot);
        let holder = self.holders.take(slot);
        self.ranks.get_mut(slot).levels.set(home, holder);
        self.published.ranks.change(|table| table.set_rank(slot, Some(rank)));
        self.publish_levels(slot);
        self.recount_directories();
        Some(slot)
    }

    /// The domain for a rank whose first event is this: one that knows the block, else the largest one
    /// that does not call it something else. Costs a search in every domain's directory.
    fn domain_for(&mut self, parent: Option<SequenceHash>, first: &Block) -> DomainId {
        let mut best = None;
        for (domain, state) in self.domains.iter() {
            let at = match parent {
                None => Some(Place::ROOT),
                Some(parent) => self.named(domain, parent).map(|cursor| cursor.place),
            };
            let located = at.map(|at| self.locate(domain, at, first));
            match located {
                Some(Located::Known(_)) => return domain,
                Some(Located::OtherName | Located::Elsewhere(_)) => {}
                // Knowing the parent is a sign of kinship, knowing nothing is none.
                Some(Located::Unnamed(_) | Located::Absent) | None => {
                    let preference = (parent.is_some() && at.is_some(), state.members);
                    if best.is_none_or(|(best, _)| best < preference) {
                        best = Some((preference, domain));
                    }
                }
            }
        }
        best.map_or_else(|| self.domains.create(), |(_, domain)| domain)
    }

    /// Moves a rank that contradicts its domain to another: to one that knows `hint`, if it agrees with
    /// all that the rank holds, else to a new one. No reader sees any of it. Costs what the rank holds.
    pub(super) fn change_domain(&mut self, slot: RankSlot, hint: Option<SequenceHash>) {
        let old = self.ranks.get(slot).domain;
        let area = self.named_area(slot);
        let knows = |domain: DomainId| hint.is_some_and(|hint| self.named(domain, hint).is_some());
        let candidates = self.domains.iter().map(|(domain, _)| domain);
        let agreeing =
            candidates.filter(|&domain| domain != old && knows(domain)).find(|&domain| self.agrees(&area, old, domain));
        let new = agreeing.unwrap_or_else(|| self.domains.create());
        for &(run, count) in &area {
            let column = self.runs.get(run).columns.get(old);
            let unnamed = self.runs.get(run).columns.get(new).named..count;
            let missing: Vec<SequenceHash> = unnamed.map(|offset| self.names.at(&column, offset)).collect();
            if !missing.is_empty() {
                let (named, _) = self.push_names(new, run, missing.iter().copied());
                assert_eq!(named, missing.len(), "the domain agrees with all of these names");
            }
        }
        self.domains.get_mut(new).join(slot);
        self.ranks.get_mut(slot).domain = new;
        for &(run, _) in area.iter().rev() {
            self.trim(run, old);
        }
        self.domains.leave(old, slot);
        self.recount_directories();
    }

    /// The runs that a rank holds something of, and those above them, each with the number of blocks
    /// whose names the rank needs; runs above come first.
    fn named_area(&self, slot: RankSlot) -> Vec<(RunId, u16)> {
        let mut needed: FxHashMap<RunId, u16> = FxHashMap::default();
        for run in self.runs_of(slot) {
            let mut place = Place { run, offset: self.coverage(run, slot).end() - 1 };
            while place != Place::ROOT {
                let count = needed.entry(place.run).or_default();
                let known_above = *count > 0;
                *count = (place.offset + 1).max(*count);
                if known_above {
                    break;
                }
                place = self.runs.get(place.run).parent;
            }
        }
        let mut area: Vec<(RunId, u16)> = needed.into_iter().collect();
        area.sort_by_cached_key(|&(run, _)| self.runs_above(run));
        area
    }

    pub(super) fn runs_above(&self, run: RunId) -> usize {
        let above = std::iter::successors(Some(run), |&run| Some(self.runs.get(run).parent.run));
        above.take_while(|&run| run != RunId::NONE).count()
    }

    /// Whether a domain has no other name for any of these blocks and no other meaning of their names.
    fn agrees(&self, area: &[(RunId, u16)], names_of: DomainId, domain: DomainId) -> bool {
        area.iter().all(|&(run, count)| {
            let columns = &self.runs.get(run).columns;
            let (wanted, there) = (columns.get(names_of), columns.get(domain));
            (0..count).all(|offset| {
                let name = self.names.at(&wanted, offset);
                match offset < there.named {
                    true => self.names.at(&there, offset) == name,
                    false => self.named(domain, name).is_none(),
                }
            })
        })
    }
}
