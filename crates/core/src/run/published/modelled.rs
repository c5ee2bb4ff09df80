//! Loom's atomics, wrapped so that loom explores every race.
//!
//! Loom considers other orders of a store only against the last access of the word. The writer reads most words
//! before it changes them, and that read would hide the reader's accesses. The only thread that changes a word always
//! finds its own last store, so its loads bypass loom.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64 as Latest, Ordering};

loom::thread_local! {
    static WRITES: Cell<bool> = Cell::new(false);
}

/// Runs `write` as the only thread that changes words meanwhile.
pub(crate) fn as_writer<T>(write: impl FnOnce() -> T) -> T {
    WRITES.with(|writes| writes.set(true));
    let written = write();
    WRITES.with(|writes| writes.set(false));
    written
}

macro_rules! single_writer_atomic {
    ($($sequence:ident: $value:ty;)*) => {
        $(
            /// A word that one thread stores and all threads load.
            #[derive(Debug)]
            pub(crate) struct $sequence {
                word: loom::sync::atomic::$sequence,
                latest: Latest,
            }

            impl $sequence {
                pub(crate) fn new(value: $value) -> Self {
                    Self { word: loom::sync::atomic::$sequence::new(value), latest: Latest::new(value.into()) }
                }

                pub(crate) fn load(&self, ordering: Ordering) -> $value {
                    match WRITES.with(Cell::get) {
                        true => self.latest.load(Ordering::Relaxed) as $value,
                        false => self.word.load(ordering),
                    }
                }

                pub(crate) fn store(&self, value: $value, ordering: Ordering) {
                    assert!(WRITES.with(Cell::get), "readers store nothing");
                    self.word.store(value, ordering);
                    self.latest.store(value.into(), Ordering::Relaxed);
                }
            }
        )*
    };
}

single_writer_atomic! {
    AtomicU32: u32;
    AtomicU64: u64;
}
