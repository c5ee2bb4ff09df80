//! The last delivered messages, to recognize a live message that was delivered before.

use std::collections::VecDeque;

use crate::cursor::Cursor;

/// Delivered messages that are remembered. 16 bytes each.
const REMEMBERED_MAX: usize = 128;

/// Comparison of a message with the delivered one of the same sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    /// It was delivered before, byte for byte.
    Same,
    /// Another message was delivered under its number: it belongs to another epoch.
    Different,
    /// The message of this number is not remembered, or was never delivered.
    Unknown,
}

/// The first and the last delivered messages of the current epoch.
#[derive(Debug, Default)]
pub(super) struct Delivered {
    /// Message 0: a late duplicate of it would look like the whole of a new epoch.
    first: Option<Cursor>,
    /// By ascending sequence number.
    recent: VecDeque<Cursor>,
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
    }

    /// Compares a message with the delivered ones. Cost: a binary search and one pass over the payload.
    pub(super) fn compare(&self, sequence: u64, payload: &[u8]) -> Comparison {
        let recent = self.recent.binary_search_by_key(&sequence, |cursor| cursor.sequence);
        let delivered = recent.ok().map(|at| self.recent[at]).or(self.first.filter(|first| first.sequence == sequence));
        match delivered {
            Some(delivered) if delivered == Cursor::new(sequence, payload) => Comparison::Same,
            Some(_) => Comparison::Different,
            None => Comparison::Unknown,
        }
    }
}
