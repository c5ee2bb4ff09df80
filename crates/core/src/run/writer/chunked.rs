//! A vector that grows without copying.

use std::mem::needs_drop;
use std::ops::{Index, IndexMut};

use bytemuck::Zeroable;

use crate::run::published::arena::freeing_steps;

pub(super) const CHUNK: usize = if cfg!(loom) { 8 } else { 1_024 };

/// Values found by number. Growth costs one new chunk.
#[derive(Debug)]
pub(super) struct Chunked<T> {
    chunks: Vec<Box<[T; CHUNK]>>,
}

impl<T> Default for Chunked<T> {
    fn default() -> Self {
        Self { chunks: Vec::new() }
    }
}

impl<T: Zeroable> Chunked<T> {
    /// Allocates the chunk of `at`. Values that were never used are zero, and the operating system provides their
    /// memory on first use.
    pub(super) fn ensure(&mut self, at: u32) {
        while self.chunks.len() * CHUNK <= at as usize {
            let chunk = bytemuck::zeroed_slice_box(CHUNK);
            self.chunks.push(chunk.try_into().unwrap_or_else(|_| unreachable!("as many as a chunk has")));
        }
    }
}

impl<T> Chunked<T> {
    /// Capacity, in values.
    pub(super) fn room(&self) -> usize {
        self.chunks.len() * CHUNK
    }

    /// Frees the values chunk by chunk and yields the steps of each.
    pub(super) fn into_pieces(self) -> impl Iterator<Item = usize> {
        self.chunks.into_iter().map(|chunk| {
            let steps = if needs_drop::<T>() { CHUNK } else { freeing_steps(size_of_val(&*chunk)) };
            drop(chunk);
            steps
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.room() * size_of::<T>() + self.chunks.capacity() * size_of::<Box<[T; CHUNK]>>()
    }
}

impl<T> Index<u32> for Chunked<T> {
    type Output = T;
    #[inline]
    fn index(&self, at: u32) -> &T {
        &self.chunks[at as usize / CHUNK][at as usize % CHUNK]
    }
}

impl<T> IndexMut<u32> for Chunked<T> {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut T {
        &mut self.chunks[at as usize / CHUNK][at as usize % CHUNK]
    }
}
