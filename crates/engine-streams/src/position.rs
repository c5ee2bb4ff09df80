//! Start of a call, and the batches that continue the previous ones.

/// Position of one rank in its engine's batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct BatchPosition {
    /// Number of the last delivered batch.
    last: Option<u64>,
    /// The last delivered batch was a snapshot. The server does not repeat a snapshot under its number.
    is_snapshot: bool,
    /// The server cannot continue after the last batch.
    is_lost: bool,
    /// The missing number that was requested from the server.
    asked_for: Option<u64>,
}

/// Outcome of a received batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It is delivered.
    Deliver,
    /// Batches before it are missing, and another call may return them. It is not delivered.
    AskAgain,
}

impl BatchPosition {
    /// The start number of a new call; 0 if the server cannot continue.
    ///
    /// The number is that of the last batch that the client has. With one less, the server repeats the last batch, whose
    /// content shows whether the engine is still in the same epoch.
    pub(crate) fn begin_call(&mut self) -> u64 {
        let start = self.resume_from();
        self.asked_for = self.missing().filter(|_| start != 0);
        start
    }

    fn resume_from(&self) -> u64 {
        match self.last {
            Some(last) if !self.is_snapshot && !self.is_lost => last.saturating_sub(1),
            _ => 0,
        }
    }

    /// Number of the next batch.
    fn missing(&self) -> Option<u64> {
        self.last.map(|last| last.saturating_add(1))
    }

    /// Handles a batch of this number.
    pub(crate) fn admit(&mut self, sequence: u64) -> Admission {
        let is_gap = self.missing().is_some_and(|missing| sequence > missing);
        if is_gap && self.resume_from() != 0 && self.asked_for != self.missing() {
            return Admission::AskAgain;
        }
        *self = Self { last: Some(sequence), asked_for: self.asked_for, ..Self::default() };
        Admission::Deliver
    }

    /// Handles a snapshot that ends with this number.
    pub(crate) fn snapshot(&mut self, sequence: u64) {
        *self = Self { last: Some(sequence), is_snapshot: true, ..Self::default() };
    }

    /// Handles an answer that shows that the server cannot continue.
    pub(crate) fn lose(&mut self) {
        self.is_lost = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_begins_one_batch_before_the_last_one() {
        let mut position = BatchPosition::default();
        assert_eq!(position.begin_call(), 0);
        for sequence in [0, 1, 2] {
            assert_eq!(position.admit(sequence), Admission::Deliver);
        }
        assert_eq!(position.begin_call(), 1, "the server repeats batch 2");
        position.lose();
        assert_eq!(position.begin_call(), 0);
        assert_eq!(position.admit(7), Admission::Deliver, "nothing can be asked for");
        assert_eq!(position.begin_call(), 6);
    }

    #[test]
    fn the_server_is_asked_once_for_a_missing_batch() {
        let mut position = BatchPosition::default();
        position.begin_call();
        assert_eq!(position.admit(5), Admission::Deliver, "the first batch begins anywhere");
        assert_eq!(position.admit(8), Admission::AskAgain);
        assert_eq!(position.begin_call(), 4);
        assert_eq!(position.admit(8), Admission::Deliver, "the server does not have it");
        assert_eq!(position.admit(10), Admission::AskAgain, "another one");
        position.begin_call();
        assert_eq!(position.admit(8), Admission::Deliver);
        assert_eq!(position.admit(9), Admission::Deliver);
    }

    #[test]
    fn a_call_after_a_snapshot_asks_for_another_snapshot() {
        let mut position = BatchPosition::default();
        position.snapshot(9);
        assert_eq!(position.begin_call(), 0);
        assert_eq!(position.admit(10), Admission::Deliver);
        assert_eq!(position.begin_call(), 9);
    }
}
