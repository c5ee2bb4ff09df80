//! One model of one tenant: its index and who feeds it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flash_indexer_core::hashing::{BlockSize, TokenWindow};
use flash_indexer_core::{DpRank, PrefixIndex, WorkerId};
use parking_lot::RwLock;

use crate::ingest::Listener;
use crate::instance::{InstanceId, ModelKey};

/// An index and the instances registered for it.
///
/// The writer of the model is the only one that locks `index` for writing; a query sees all of an
/// event or nothing of it.
pub(crate) struct Model {
    pub(crate) key: ModelKey,
    pub(crate) block_size: BlockSize,
    /// Adapter of queries that name none: the one that the first registration named.
    pub(crate) lora_name: Option<String>,
    pub(crate) index: RwLock<Box<dyn PrefixIndex>>,
    pub(crate) instances: RwLock<BTreeMap<InstanceId, Instance>>,
    pub(crate) windows: Windows,
    /// Which writer applies the model's events.
    pub(crate) writer: usize,
}

/// A registered engine instance.
pub(crate) struct Instance {
    pub(crate) worker: WorkerId,
    /// Listeners by registered rank; never empty.
    pub(crate) listeners: BTreeMap<DpRank, Arc<Listener>>,
}

/// Which token windows the model's engines have hashed so far.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    blocks: AtomicBool,
    blocks_and_next: AtomicBool,
}

impl Windows {
    /// An engine uses this window. Relaxed: a query that comes before the first block of a new kind
    /// is visible finds nothing of it either way.
    pub(crate) fn note(&self, window: TokenWindow) {
        let flag = match window {
            TokenWindow::Block => &self.blocks,
            TokenWindow::BlockAndNext => &self.blocks_and_next,
        };
        if !flag.load(Ordering::Relaxed) {
            flag.store(true, Ordering::Relaxed);
        }
    }

    /// The windows to try for a query; plain blocks unless engines use nothing but the other.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = TokenWindow> {
        let next = self.blocks_and_next.load(Ordering::Relaxed);
        let blocks = !next || self.blocks.load(Ordering::Relaxed);
        let windows = [(blocks, TokenWindow::Block), (next, TokenWindow::BlockAndNext)];
        windows.into_iter().filter_map(|(used, window)| used.then_some(window))
    }
}
