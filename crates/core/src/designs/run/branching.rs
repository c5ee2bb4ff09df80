//! Queries that meet twins: a rank that has two names for one prefix holds two chains with the same
//! local hashes, and both have to be followed. Rare, so this is plain rather than fast.

use rustc_hash::FxHashMap;

use super::find::{Changed, as_child, match_length};
use super::matches::Depths;
use super::published::Published;
use super::published::atomics::{Acquire, fence};
use super::published::holdings::Holder;
use super::published::layout::{Info, Place, RunId};
use crate::LocalHash;

/// A run that continues a chain, and who holds all that lies before it; at the root, everybody does.
struct Branch {
    run: RunId,
    version: u64,
    info: Info,
    base: usize,
    complete: Option<FxHashMap<Holder, u32>>,
}

/// Adds the deepest match of every holder to `depths`, which must be clear.
pub(super) fn find(published: &Published, query: &[LocalHash], depths: &mut Depths) -> Result<(), Changed> {
    let generation = published.edges.generation();
    let mut visited = Vec::new();
    let mut deepest: FxHashMap<Holder, u32> = FxHashMap::default();
    let mut branches = Vec::new();
    follow(published, generation, Place::ROOT, query, 0, None, &mut branches)?;
    while let Some(branch) = branches.pop() {
        let record = published.run(branch.run);
        visited.push((branch.run, branch.version));
        let matched = match_length(record, branch.info, &query[branch.base..]);
        let mut here: FxHashMap<Holder, u32> = FxHashMap::default();
        record.holdings().for_each(|holder, end| {
            if branch.complete.as_ref().is_none_or(|complete| complete.contains_key(&holder)) {
                let depth = branch.base as u32 + u32::from(end).min(matched as u32);
                here.insert(holder, depth);
                let best = deepest.entry(holder).or_default();
                *best = depth.max(*best);
            }
        });
        // With a twin inside, a way may leave at every block and not only where the run differs.
        let first = if branch.info.has(Info::TWIN_INSIDE) { 1 } else { matched };
        for length in first.max(1)..=matched {
            let base = branch.base + length;
            let complete = here.iter().filter(|&(_, &depth)| depth as usize >= base).map(|(&h, &d)| (h, d)).collect();
            let parent = Place { run: branch.run, offset: (length - 1) as u16 };
            follow(published, generation, parent, query, base, Some(complete), &mut branches)?;
        }
    }
    fence(Acquire);
    let same = visited.iter().all(|&(run, version)| published.run(run).is_still(version));
    if !same || published.edges.generation() != generation {
        return Err(Changed);
    }
    for (holder, depth) in deepest {
        depths.set(holder, depth);
    }
    Ok(())
}

/// Every run that follows `parent` with the query's block at `base`.
fn follow(
    published: &Published,
    generation: u32,
    parent: Place,
    query: &[LocalHash],
    base: usize,
    complete: Option<FxHashMap<Holder, u32>>,
    branches: &mut Vec<Branch>,
) -> Result<(), Changed> {
    let Some(&local) = query.get(base) else { return Ok(()) };
    if complete.as_ref().is_some_and(FxHashMap::is_empty) {
        return Ok(());
    }
    let mut result = Ok(());
    published.edges.search(generation, published.edges.hash(parent, local), |run| {
        match as_child(published.run(run), parent, local) {
            Ok(None) => {}
            Ok(Some((version, info))) => {
                branches.push(Branch { run, version, info, base, complete: complete.clone() });
            }
            Err(changed) => result = Err(changed),
        }
        result.is_err()
    });
    result
}
