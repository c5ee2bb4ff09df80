//! The atomics that readers share with the writer: the standard library's, or loom's when models check the
//! publication protocol under every interleaving.

#[cfg(loom)]
pub(crate) use super::modelled::{AtomicU32, AtomicU64};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::fence;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, fence};

pub(crate) use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Yields, so that the writer can complete its change.
pub(crate) fn pause() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::hint::spin_loop();
}

/// Allocates `count` zero words, as address space that costs nothing until it is written.
pub(crate) fn zeroed_words(count: usize) -> Box<[AtomicU64]> {
    #[cfg(loom)]
    return (0..count).map(|_| AtomicU64::new(0)).collect();
    #[cfg(not(loom))]
    bytemuck::zeroed_slice_box(count)
}
