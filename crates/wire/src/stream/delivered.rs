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

/// The last delivered messages of the current epoch.
#[derive(Debug, Default)]
pub(super) struct Delivered {
    /// By ascending sequence number.
    recent: VecDeque<Cursor>,
}

impl Delivered {
    pub(super) fn push(&mut self, cursor: Cursor) {
        if self.recent.len() == REMEMBERED_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(cursor);
    }

    pub(super) fn clear(&mut self) {
        self.recent.clear();
    }

    /// Compares a message with the delivered ones. Cost: a binary search and one pass over the payload.
    pub(super) fn compare(&self, sequence: u64, payload: &[u8]) -> Comparison {
        match self.recent.binary_search_by_key(&sequence, |cursor| cursor.sequence) {
            Ok(at) if self.recent[at] == Cursor::new(sequence, payload) => Comparison::Same,
            Ok(_) => Comparison::Different,
            Err(_) => Comparison::Unknown,
        }
    }
}
