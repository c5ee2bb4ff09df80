//! Hash domains: groups of engines that give the same prefix the same sequence hash.
//!
//! Engines with one hash seed share a directory and one column of sequence hashes for each run. Another replica of a
//! prefix then costs one holding and no sequence hash. No engine publishes its seed; the index infers it. A rank
//! joins the domain that has its first block, or one that does not contradict it. A rank contradicts its domain
//! when it stores a known block under another sequence hash, or another block under a known one. It then moves to a
//! domain that agrees with everything that it holds, or to a new one. It keeps every holding meanwhile, because runs
//! belong to no domain.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use super::Writer;
use super::directory::Directory;
use super::locate::BlockLookup;
use super::rank_states::RankState;
use super::reclaim::Garbage;
use super::runs::DomainId;
use crate::keyed::HashKey;
use crate::run::limits::MOVED_BLOCKS_MAX;
use crate::run::published::arena::freeing_steps;
use crate::run::published::layout::{RunId, RunPosition};
use crate::run::published::rank_table::RankSlot;
use crate::{Block, HeldBlock, PerTier, SequenceHash, Tier, WorkerRank};

/// Domains that are searched for a sequence hash, largest first. In a fleet with more domains, all of few ranks, a
/// rank may get its own domain although another one agrees with it: that costs memory and changes no answer.
const SEARCHED_DOMAINS_MAX: usize = 256;

/// Domains that are compared with everything that a rank holds when it leaves its own. This limit changes no answer either.
const COMPARED_DOMAINS_MAX: usize = 4;

/// One hash domain.
#[derive(Debug)]
pub(super) struct Domain {
    pub(super) directory: Directory,
    /// Number of ranks in it.
    members: usize,
    /// Deferred trims of runs on its behalf; the domain exists until they are done.
    pub(super) queued_trims: usize,
    /// The rank that joined last.
    newest: Option<RankSlot>,
}

impl Domain {
    fn new(key: HashKey) -> Self {
        Self { directory: Directory::new(key), members: 0, queued_trims: 0, newest: None }
    }

    /// The domain's rank, if there is exactly one and it is known.
    pub(super) fn only_member(&self) -> Option<RankSlot> {
        self.newest.filter(|_| self.members == 1)
    }
}

/// All domains.
#[derive(Debug)]
pub(super) struct Domains {
    domains: Vec<Option<Domain>>,
    free: Vec<DomainId>,
    /// Domains with ranks, by the number of ranks.
    by_members: BTreeSet<(Reverse<usize>, DomainId)>,
    key: HashKey,
}

impl Domains {
    /// Creates an empty set of domains; `key` is the key of their directories' hash.
    pub(super) fn new(key: HashKey) -> Self {
        Self { domains: Vec::new(), free: Vec::new(), by_members: BTreeSet::new(), key }
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

    /// Whether at most one rank is in the domain.
    pub(super) fn has_single_rank(&self, domain: DomainId) -> bool {
        self.get(domain).members <= 1
    }

    fn create(&mut self) -> DomainId {
        let at = self.free.pop().unwrap_or_else(|| {
            self.domains.push(None);
            DomainId(u32::try_from(self.domains.len() - 1).expect("fewer than 2^32 domains"))
        });
        self.domains[at.0 as usize] = Some(Domain::new(self.key));
        at
    }

    fn join(&mut self, domain: DomainId, rank: RankSlot) {
        self.change_members(domain, |members| members + 1);
        self.get_mut(domain).newest = Some(rank);
    }

    fn leave(&mut self, domain: DomainId, rank: RankSlot) {
        self.change_members(domain, |members| members - 1);
        let state = self.get_mut(domain);
        state.newest = state.newest.filter(|&newest| newest != rank);
    }

    fn change_members(&mut self, domain: DomainId, change: impl FnOnce(usize) -> usize) {
        let before = self.get(domain).members;
        let after = change(before);
        self.by_members.remove(&(Reverse(before), domain));
        if after > 0 {
            self.by_members.insert((Reverse(after), domain));
        }
        self.get_mut(domain).members = after;
    }

    /// The largest domains.
    fn largest(&self) -> impl Iterator<Item = DomainId> {
        self.by_members.iter().take(SEARCHED_DOMAINS_MAX).map(|&(_, domain)| domain)
    }

    pub(super) fn count(&self) -> usize {
        self.domains.len() - self.free.len()
    }

    /// Frees the memory in pieces and yields the steps of each.
    pub(super) fn into_pieces(self) -> impl Iterator<Item = usize> {
        let segments = self.domains.into_iter().flatten().flat_map(|domain| domain.directory.into_segments());
        segments.map(|segment| freeing_steps(segment.bytes()))
    }

    pub(super) fn bytes(&self) -> usize {
        self.domains.iter().flatten().map(|domain| domain.directory.bytes()).sum()
    }
}

impl Writer {
    /// Adds a rank that holds nothing yet; none if the limit of holders is reached.
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
        self.domains.join(domain, slot);
        let holder = self.holders.take(slot);
        self.ranks.get_mut(slot).levels.set(home, holder);
        self.published.ranks.change(|table| table.set_rank(slot, Some(rank)));
        self.publish_levels(slot);
        Some(slot)
    }

    /// Chooses the domain for a rank from its first event: one that has the block, else the largest one that does
    /// not contradict it. Searches the directories of at most [`SEARCHED_DOMAINS_MAX`] domains.
    fn domain_for(&mut self, parent: Option<SequenceHash>, first: &Block) -> DomainId {
        if parent.is_none()
            && let Some(domain) = self.domain_that_starts_with(first)
        {
            return domain;
        }
        let mut best = None;
        for domain in self.domains.largest() {
            self.steps.take(1);
            let at = match parent {
                None => Some(RunPosition::ROOT),
                Some(parent) => self.find_sequence(domain, parent).map(|cursor| cursor.position),
            };
            let located = at.map(|at| self.locate(domain, at, first));
            match located {
                Some(BlockLookup::Found(_)) => return domain,
                Some(BlockLookup::OtherHash | BlockLookup::OtherPosition(_)) => {}
                // A domain that has the parent is preferred to one that has neither the parent nor the block.
                Some(BlockLookup::WithoutHash(_) | BlockLookup::Absent) | None => {
                    let preference = (parent.is_some() && at.is_some(), self.domains.get(domain).members);
                    if best.is_none_or(|(best, _)| best < preference) {
                        best = Some((preference, domain));
                    }
                }
            }
        }
        best.map_or_else(|| self.create_domain(), |(_, domain)| domain)
    }

    /// A block that some domain has under this sequence hash, without copies. Searches at most [`SEARCHED_DOMAINS_MAX`]
    /// domains.
    pub(in crate::run) fn find_block(&self, sequence: SequenceHash) -> Option<HeldBlock> {
        self.domains.largest().find_map(|domain| {
            let position = self.find_sequence(domain, sequence)?.position;
            let parent = self.parent_sequence(domain, position);
            Some(HeldBlock { sequence, parent, local: self.local_of(position), copies: PerTier::default() })
        })
    }

    /// A domain that has this block as the first of a sequence.
    fn domain_that_starts_with(&self, first: &Block) -> Option<DomainId> {
        let starts = self.followers(RunPosition::ROOT, first.local).into_iter();
        starts.filter_map(|position| self.domain_of_first(position.run, first.sequence)).next()
    }

    /// A domain in which the first block of a run has this sequence hash.
    fn domain_of_first(&self, run: RunId, sequence: SequenceHash) -> Option<DomainId> {
        if let Some(retention) = self.retention(run).filter(|retention| retention.has_domains()) {
            self.steps.take(1);
            return retention.domain_of_first(sequence);
        }
        let columns = &self.runs.get(run).columns;
        let mut domains = columns.domains().inspect(|_| self.steps.take(1));
        domains.find(|&domain| self.sequences.at(&columns.get(domain), 0) == sequence)
    }

    fn create_domain(&mut self) -> DomainId {
        let domain = self.domains.create();
        self.count_directory((0, self.domains.get(domain).directory.bytes()));
        domain
    }

    /// Removes a rank that no longer holds blocks under the domain's sequence hashes.
    pub(super) fn leave_domain(&mut self, domain: DomainId, rank: RankSlot) {
        self.domains.leave(domain, rank);
        self.end_domain_if_empty(domain);
    }

    /// Frees a domain after its last rank has left and its last deferred trim is done.
    pub(super) fn end_domain_if_empty(&mut self, domain: DomainId) {
        let state = self.domains.get(domain);
        if state.members > 0 || state.queued_trims > 0 {
            return;
        }
        debug_assert!(state.directory.is_empty(), "a domain drops its sequence hashes before their blocks go");
        let state = self.domains.domains[domain.0 as usize].take().expect("it was there just now");
        self.domains.free.push(domain);
        let bytes = state.directory.bytes();
        self.count_directory((bytes, 0));
        self.reclaim_queue.push(Garbage::Directory(state.directory.into_segments()), bytes);
    }

    /// [`Writer::change_domain`] for a rank that has another sequence hash for a block of its domain, if the rank may move
    /// its blocks.
    pub(super) fn change_domain_to(&mut self, slot: RankSlot, hint: SequenceHash) -> bool {
        // A copy of an index may leave the domain or add a twin even if the index did not.
        let moves_max = if self.bounded.is_some() { usize::MAX } else { self.moves_left(slot).min(MOVED_BLOCKS_MAX) };
        self.change_domain(slot, Some(hint), moves_max)
    }

    /// Moves a rank that contradicts its domain to another one: to a domain that has `hint` and agrees with
    /// everything that the rank holds, else to a new one. Invisible to readers. Costs what the rank holds; returns false,
    /// with nothing changed, if that is many more than `moves_max` blocks.
    pub(super) fn change_domain(&mut self, slot: RankSlot, hint: Option<SequenceHash>, moves_max: usize) -> bool {
        let old = self.ranks.get(slot).domain;
        let mut visited = 0;
        let area = self.runs_with_ancestors(slot, (&mut visited, moves_max));
        self.steps.take(visited);
        self.spend_moves(slot, visited);
        let Some(area) = area else { return false };
        let contains_rank = |domain: DomainId| hint.is_some_and(|hint| self.find_sequence(domain, hint).is_some());
        let candidates = self.domains.largest().inspect(|_| self.steps.take(1));
        let agreeing = candidates
            .filter(|&domain| domain != old && contains_rank(domain))
            .take(COMPARED_DOMAINS_MAX)
            .find(|&domain| self.agrees(&area, old, domain));
        let new = agreeing.unwrap_or_else(|| self.create_domain());
        for &(run, count) in &area {
            let column = self.runs.get(run).columns.get(old);
            let missing_range = self.runs.get(run).columns.get(new).len..count;
            let missing: Vec<SequenceHash> = missing_range.map(|offset| self.sequences.at(&column, offset)).collect();
            if !missing.is_empty() {
                let (column_len, _) = self.push_sequences(new, run, missing.iter().copied());
                assert_eq!(column_len, missing.len(), "the domain agrees with all of these sequence hashes");
            }
        }
        self.domains.join(new, slot);
        self.ranks.get_mut(slot).domain = new;
        for &(run, _) in &area {
            let length = self.coverage_end(run, slot);
            self.rank_changes_domain(run, length, (old, new));
        }
        for &(run, _) in area.iter().rev() {
            self.trim(run, old);
        }
        self.leave_domain(old, slot);
        true
    }

    /// The runs in which a rank holds blocks, and their ancestors, each with the number of blocks whose sequence
    /// hashes the rank needs; ancestors come first. Adds up the runs and the blocks; returns none if either are many more
    /// than `moves_max`.
    fn runs_with_ancestors(
        &self,
        slot: RankSlot,
        (visited, moves_max): (&mut usize, usize),
    ) -> Option<Vec<(RunId, u16)>> {
        let rank = self.ranks.get(slot);
        let visits_max = moves_max.saturating_mul(3);
        if rank.size.blocks - rank.size.waiting > moves_max || rank.runs.len() > visits_max.saturating_add(64) {
            return None;
        }
        let mut area: Vec<(RunId, u16)> = Vec::new();
        let mut at_run: FxHashMap<RunId, usize> = FxHashMap::default();
        let mut path = Vec::new();
        for run in self.runs_of(slot) {
            let mut position = RunPosition { run, offset: self.coverage(run, slot).end() - 1 };
            while position != RunPosition::ROOT {
                *visited += 1;
                if let Some(&at) = at_run.get(&position.run) {
                    let count = &mut area[at].1;
                    let needed = (position.offset + 1).max(*count);
                    *visited += usize::from(needed - *count);
                    *count = needed;
                    break;
                }
                *visited += usize::from(position.offset + 1);
                path.push((position.run, position.offset + 1));
                if *visited > visits_max {
                    return None;
                }
                position = self.runs.get(position.run).parent();
            }
            for (run, count) in path.drain(..).rev() {
                at_run.insert(run, area.len());
                area.push((run, count));
            }
        }
        Some(area)
    }

    /// Whether a domain has neither another sequence hash for any of these blocks nor another block for their
    /// sequence hashes.
    fn agrees(&self, area: &[(RunId, u16)], old_domain: DomainId, domain: DomainId) -> bool {
        area.iter().all(|&(run, count)| {
            let columns = &self.runs.get(run).columns;
            let (wanted, there) = (columns.get(old_domain), columns.get(domain));
            (0..count).all(|offset| {
                let sequence = self.sequences.at(&wanted, offset);
                match offset < there.len {
                    true => self.sequences.at(&there, offset) == sequence,
                    false => self.find_sequence(domain, sequence).is_none(),
                }
            })
        })
    }
}
