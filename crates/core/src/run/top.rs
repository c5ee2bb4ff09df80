//! The holders with the deepest matches, found without visiting all holders.
//!
//! A holder of the last run on a query's path is deeper than every holder that ends in a run above it. So the query
//! collects holders from the last run upward until it has enough. In a run further up, a holder may end early
//! although it holds blocks further down. Such runs carry a flag, and the query checks candidates against flagged
//! runs only.

use std::ops::ControlFlow;

use super::comparison::Conflict;
use super::find::{PathKind, check, find_depths, walk};
use super::matches::Step;
use super::published::Published;
use super::published::holdings::Holder;
use super::published::layout::Info;
use super::scratch::Scratch;
use crate::{LocalHash, Tier};

/// Most holders that are collected from the deepest run upward. Each additional holder is compared with those
/// collected before.
const COLLECTED_MAX: usize = if cfg!(loom) { 2 } else { 64 };

/// Fills `top` with the `count` deepest holders of a level, deepest first, in any order among equals.
pub(super) fn find_top(
    published: &Published,
    query: &[LocalHash],
    (count, level): (usize, Tier),
    scratch: &mut Scratch,
) -> Result<(), Conflict> {
    if count > COLLECTED_MAX || from_deepest(published, query, (count, level), scratch)? == PathKind::Branching {
        find_depths(published, query, scratch)?;
        top_of(published, (count, level), scratch);
    }
    Ok(())
}

/// The same for a query with a single path.
fn from_deepest(
    published: &Published,
    query: &[LocalHash],
    (count, level): (usize, Tier),
    scratch: &mut Scratch,
) -> Result<PathKind, Conflict> {
    let generation = published.edges.generation();
    let Scratch { path, top, branches, .. } = scratch;
    top.clear();
    branches.clear();
    let kind = walk(published, generation, query, path, |_, _| {})?;
    if kind == PathKind::Single {
        for (at, step) in path.iter().enumerate().rev() {
            if top.len() >= count {
                break;
            }
            collect_holders(published, &path[..at], step, (count, level), top);
        }
    }
    check(published, generation, path)?;
    Ok(kind)
}

/// Adds new holders of one run, deepest first, up to `count` in total.
fn collect_holders(
    published: &Published,
    above: &[Step],
    step: &Step,
    (count, level): (usize, Tier),
    top: &mut Vec<(Holder, u32)>,
) {
    let deeper = top.len();
    // A reader may see an arbitrary number as a holder while the run changes. A holder whose ends are still being
    // filled in has no assignment yet.
    let holders = published.ranks.holder_count();
    published.run(step.run).holdings().each_beyond(|holder, end| {
        let wanted = (holder.0 as usize) < holders
            && published.ranks.assignment(holder).covers_level(level)
            && top.iter().all(|&(other, _)| other != holder)
            && above
                .iter()
                .filter(|step| step.info.has(Info::RAGGED))
                .all(|step| u32::from(published.run(step.run).holdings().end(holder)) >= step.matched);
        if wanted {
            let depth = step.base + step.matched.min(end.into());
            // Searched from the back: most holders are as deep as the last one.
            let at =
                top[deeper..].iter().rposition(|&(_, other)| other >= depth).map_or(deeper, |last| deeper + last + 1);
            top.truncate(count - 1);
            top.insert(at, (holder, depth));
        }
        match top.last() {
            Some(&(_, least)) if top.len() == count => match (least - step.base) as u16 {
                least if u32::from(least) == step.matched => ControlFlow::Break(()),
                least => ControlFlow::Continue(least),
            },
            _ => ControlFlow::Continue(0),
        }
    });
}

/// The same from complete depths.
fn top_of(published: &Published, (count, level): (usize, Tier), scratch: &mut Scratch) {
    let Scratch { depths, top, .. } = scratch;
    top.clear();
    depths.for_each(|holder, depth| {
        if published.ranks.assignment(holder).covers_level(level) {
            top.push((holder, depth));
        }
    });
    let deepest_first = |&(_, depth): &(Holder, u32)| std::cmp::Reverse(depth);
    if top.len() > count {
        top.select_nth_unstable_by_key(count, deepest_first);
        top.truncate(count);
    }
    top.sort_unstable_by_key(deepest_first);
}
