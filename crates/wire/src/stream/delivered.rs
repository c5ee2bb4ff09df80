//! The last messages of a kind, to recognize a live message that was received before.

use std::collections::VecDeque;

use crate::cursor::Cursor;

/// Messages that are remembered. 16 bytes each.
const REMEMBERED_MAX: usize = 128;

/// Comparison of a message with the remembered one of the same sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    /// It is remembered, byte for byte.
    Same,
    /// Another message is remembered under its number: it belongs to another epoch.
    Different,
    /// No message of this number is remembered, or another message that may be of an earlier epoch.
    Unknown,
}

/// The first and the last messages of one kind in the current epoch: delivered or undelivered ones.
#[derive(Debug, Default)]
pub(super) struct Delivered {
    /// Message 0: a late duplicate of it would look like the whole of a new epoch.
    first: Option<Cursor>,
    /// By ascending sequence number.
    recent: VecDeque<Cursor>,
    /// Messages before this number may be of an earlier epoch than the later ones.
    unproven_before: u64,
}

impl Delivered {
    pub(super) fn push(&mut self, cursor: Cursor) {
        if cursor.sequence == 0 {
            self.first = Some(cursor);
        }
        if self.recent.len() == REMEMBERED_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(cursor);
    }

    pub(super) fn clear(&mut self) {
        self.first = None;
        self.recent.clear();
        self.unproven_before = 0;
    }

    /// Records that the messages after the remembered ones are not proven to be of the same epoch. `next` is the number after them.
    pub(super) fn continue_unproven(&mut self, next: u64) {
        self.unproven_before = next;
    }

    /// Compares a message with the remembered ones. Cost: a binary search and one pass over the payload.
    pub(super) fn compare(&self, sequence: u64, payload: &[u8]) -> Comparison {
        let recent = self.recent.binary_search_by_key(&sequence, |cursor| cursor.sequence);
        let delivered = recent.ok().map(|at| self.recent[at]).or(self.first.filter(|first| first.sequence == sequence));
        match delivered {
            Some(delivered) if delivered == Cursor::new(sequence, payload) => Comparison::Same,
            Some(_) if sequence >= self.unproven_before => Comparison::Different,
            _ => Comparison::Unknown,
        }
    }
}
