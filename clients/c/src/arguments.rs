//! Checks and conversions of callers' arguments.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

use flash_indexer_core::{DpRank, Tier, WorkerId, WorkerRank};

use crate::index::FlashIndex;
use crate::status::{Failure, FlashIndexStatus};

/// Longest text that a caller may pass, in bytes without the NUL.
const TEXT_BYTES_MAX: usize = 4_096;

fn null(name: &str) -> Failure {
    let message = format!("failed to read {name}: it is NULL; pass a pointer to it");
    Failure::new(FlashIndexStatus::NullPointer, message)
}

/// The index of a call.
///
/// # Safety
///
/// `index` is NULL, or was created by `flash_index_create` and is not freed during the call.
pub(crate) unsafe fn index<'a>(index: *const FlashIndex) -> Result<&'a FlashIndex, Failure> {
    // SAFETY: by this function's contract.
    unsafe { index.as_ref() }.ok_or_else(|| null("index"))
}

/// An array of the caller. An empty one may be NULL.
///
/// # Safety
///
/// `data` is NULL, or points to `count` elements that are not changed during the call.
pub(crate) unsafe fn array<'a, T>(name: &str, data: *const T, count: usize) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        return Err(null(name));
    }
    check_place(name, data, count)?;
    // SAFETY: not NULL, aligned, and of a size that a slice may have; the rest is this function's contract.
    Ok(unsafe { std::slice::from_raw_parts(data, count) })
}

/// Memory of the caller for results. Without room it may be NULL.
///
/// # Safety
///
/// `data` is NULL, or points to memory for `count` elements that no other thread uses during the call.
pub(crate) unsafe fn buffer<'a, T>(
    name: &str,
    data: *mut T,
    count: usize,
) -> Result<&'a mut [MaybeUninit<T>], Failure> {
    if count == 0 {
        return Ok(&mut []);
    }
    if data.is_null() {
        return Err(null(name));
    }
    check_place(name, data, count)?;
    // SAFETY: as in `array`.
    Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), count) })
}

fn check_place<T>(name: &str, data: *const T, count: usize) -> Result<(), Failure> {
    let is_too_long = count.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize);
    if is_too_long || !data.is_aligned() {
        let message =
            format!("failed to read {name}: {count} elements cannot be there; check the pointer and the count");
        return Err(Failure::new(FlashIndexStatus::InvalidArgument, message));
    }
    Ok(())
}

/// Checks a place for a result before the call makes a change.
pub(crate) fn check_result<T>(name: &str, place: *const T) -> Result<(), Failure> {
    if place.is_null() { Ok(()) } else { check_place(name, place, 1) }
}

/// Writes a result, unless the pointer for it is NULL.
///
/// # Safety
///
/// `place` is NULL, or points to memory for a value that no other thread uses during the call.
pub(crate) unsafe fn write<T>(name: &str, place: *mut T, value: T) -> Result<(), Failure> {
    if place.is_null() {
        return Ok(());
    }
    check_place(name, place, 1)?;
    // SAFETY: not NULL and aligned; the rest is this function's contract.
    unsafe { place.write(value) };
    Ok(())
}

/// An optional text; none if NULL.
///
/// # Safety
///
/// `text` is NULL, or points to a text that ends with a NUL and is not changed during the call.
pub(crate) unsafe fn text<'a>(name: &str, text: *const c_char) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    let invalid = |why: &str| Failure::new(FlashIndexStatus::InvalidArgument, format!("failed to read {name}: {why}"));
    // SAFETY: not NULL; the rest is this function's contract.
    let text = unsafe { CStr::from_ptr(text) };
    if text.count_bytes() > TEXT_BYTES_MAX {
        return Err(invalid(&format!("it has more than {TEXT_BYTES_MAX} bytes; pass a shorter one")));
    }
    text.to_str().map(Some).map_err(|_| invalid("it is not UTF-8; convert it"))
}

pub(crate) fn tier(tier: u32) -> Result<Tier, Failure> {
    Tier::ALL.get(tier as usize).copied().ok_or_else(|| {
        let message = format!("failed to read tier: {tier} is none; pass a FLASH_INDEX_TIER value");
        Failure::new(FlashIndexStatus::InvalidArgument, message)
    })
}

pub(crate) fn rank(instance: u64, dp_rank: u32) -> WorkerRank {
    WorkerRank { worker: WorkerId(instance), dp_rank: DpRank(dp_rank) }
}
