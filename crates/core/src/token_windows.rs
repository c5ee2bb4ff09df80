//! Token windows that engines use.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::hashing::TokenWindow;

/// Token windows with which the engines of an index have hashed blocks so far.
#[derive(Debug, Default)]
pub struct TokenWindows {
    blocks: AtomicBool,
    blocks_and_next: AtomicBool,
}

impl TokenWindows {
    /// Records that an engine uses this window. Relaxed: a query that misses the flag runs before the first block of
    /// that window is visible, and would find none of its blocks anyway.
    pub fn record(&self, window: TokenWindow) {
        let flag = match window {
            TokenWindow::Block => &self.blocks,
            TokenWindow::BlockAndNext => &self.blocks_and_next,
        };
        if !flag.load(Ordering::Relaxed) {
            flag.store(true, Ordering::Relaxed);
        }
    }

    /// The windows to query. Plain blocks are included unless every engine uses the other window.
    pub fn in_use(&self) -> impl Iterator<Item = TokenWindow> {
        let next = self.blocks_and_next.load(Ordering::Relaxed);
        let blocks = !next || self.blocks.load(Ordering::Relaxed);
        let windows = [(blocks, TokenWindow::Block), (next, TokenWindow::BlockAndNext)];
        windows.into_iter().filter_map(|(used, window)| used.then_some(window))
    }
}
