//! What a template may cost.

use minijinja::{Error, ErrorKind, State};
use thiserror::Error;

/// The work that one rendering may do beside the engine's instructions: bytes and items that are looked at, made or printed.
/// It bounds memory as well, because nothing is made without being counted.
pub(super) const WORK_MAX: u64 = 1 << 28;

/// What one item of a list counts for: its place in memory, and taking it there.
const ITEM_WORK: usize = 16;

/// How deeply lists and dicts may be nested. JSON that is deeper than 128 is not read in the first place.
pub(super) const NESTING_MAX: u32 = 200;

/// Work is used up.
#[derive(Debug, Error)]
#[error("the template does more work than one rendering may")]
pub(in crate::chat) struct Budget;

/// What is left of [`WORK_MAX`] in this rendering.
struct Left(u64);

/// Counts work, or fails when there has been too much.
pub(super) fn spend(state: &mut State, amount: usize) -> Result<(), Error> {
    let left = &mut state.get_or_insert_extension(Left(WORK_MAX)).0;
    match left.checked_sub((amount as u64).saturating_add(1)) {
        Some(rest) => {
            *left = rest;
            Ok(())
        }
        None => Err(Error::new(ErrorKind::OutOfFuel, "too much work").with_source(Budget)),
    }
}

/// Counts the work on so many items.
pub(super) fn spend_items(state: &mut State, items: usize) -> Result<(), Error> {
    spend(state, items.saturating_mul(ITEM_WORK))
}
