//! Prefetches of cache lines.
//!
//! The directory line of a sequence hash is hardly ever in the cache, and an event names all of its sequence hashes
//! at once. Prefetching their lines reduced the time of an ingest by a sixth.

/// Prefetches the cache line in which `value` starts; does not block.
#[inline]
#[allow(unsafe_code, reason = "the intrinsic takes a pointer")]
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch has no effect that the program can observe and never faults. The address is that of a live
    // value all the same.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = value;
}
