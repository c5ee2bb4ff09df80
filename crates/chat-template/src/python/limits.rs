//! The work limit of one rendering.

use minijinja::{Error, ErrorKind, State};
use thiserror::Error;

use crate::effort::Effort;

/// Maximum work of one rendering, not counting minijinja's instructions: bytes and items that are read, created or
/// printed. It limits memory too, because every allocation is counted.
pub(super) const WORK_MAX: u64 = 1 << 28;

/// The same for a brief rendering: about the work for a chat of half a megabyte whose template reads each text a few times.
const BRIEF_WORK_MAX: u64 = WORK_MAX >> 5;

/// Work for one item of a list: its memory, and moving it there.
const ITEM_WORK: usize = 16;

/// Maximum nesting of lists and dicts. `serde_json` rejects JSON that is nested more than 128 deep.
pub(crate) const NESTING_MAX: u32 = 200;

/// The rendering has exceeded its work limit.
#[derive(Debug, Error)]
#[error("the template exceeds the work limit of one rendering")]
pub(crate) struct WorkLimitExceeded;

/// The part of [`WORK_MAX`] that this rendering has not used.
struct RemainingWork(u64);

/// Counts work. Fails if the limit is exceeded.
pub(super) fn spend(state: &mut State, amount: usize) -> Result<(), Error> {
    let limit = match state.fuel_levels() {
        Some((used, left)) if used + left <= Effort::Brief.instructions_max() => BRIEF_WORK_MAX,
        _ => WORK_MAX,
    };
    let left = &mut state.get_or_insert_extension(RemainingWork(limit)).0;
    match left.checked_sub((amount as u64).saturating_add(1)) {
        Some(rest) => {
            *left = rest;
            Ok(())
        }
        None => Err(Error::new(ErrorKind::OutOfFuel, "too much work").with_source(WorkLimitExceeded)),
    }
}

/// Counts the work on a number of items.
pub(super) fn spend_items(state: &mut State, items: usize) -> Result<(), Error> {
    spend(state, items.saturating_mul(ITEM_WORK))
}
