//! Whether a stream is whole: every publisher numbers its messages from zero.

/// What a message's number says about the messages before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The first message seen of this publisher, after `missed` that were never seen.
    First {
        /// Messages before it.
        missed: u64,
    },
    /// The one after the last.
    Next,
    /// `missed` messages are lost between the last and this one.
    Gap {
        /// Messages lost.
        missed: u64,
    },
    /// The number fell back: the engine has started again, with an empty cache, and `missed`
    /// messages of its new life were never seen.
    Restart {
        /// Messages of the new life before this one.
        missed: u64,
    },
}

impl Arrival {
    /// Messages that were published but not received.
    #[must_use]
    pub const fn missed(self) -> u64 {
        match self {
            Self::Next => 0,
            Self::First { missed } | Self::Gap { missed } | Self::Restart { missed } => missed,
        }
    }
}

/// Follows one publisher's numbers. A live stream is ordered, so a number that does not rise means
/// a new publisher process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SequenceTracker {
    last: Option<u64>,
}

impl SequenceTracker {
    /// The last number taken in, if any.
    #[must_use]
    pub const fn last(&self) -> Option<u64> {
        self.last
    }

    /// Takes in the number of the next message received.
    pub fn take(&mut self, sequence: u64) -> Arrival {
        let arrival = match self.last {
            None => Arrival::First { missed: sequence },
            Some(last) if sequence <= last => Arrival::Restart { missed: sequence },
            Some(last) if sequence == last + 1 => Arrival::Next,
            Some(last) => Arrival::Gap { missed: sequence - last - 1 },
        };
        self.last = Some(sequence);
        arrival
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_tell_gaps_and_restarts() {
        let mut tracker = SequenceTracker::default();
        assert_eq!(tracker.take(3), Arrival::First { missed: 3 });
        assert_eq!(tracker.take(4), Arrival::Next);
        assert_eq!(tracker.take(7), Arrival::Gap { missed: 2 });
        assert_eq!(tracker.take(1), Arrival::Restart { missed: 1 });
        assert_eq!(tracker.take(1), Arrival::Restart { missed: 1 }, "a live stream repeats nothing");
        assert_eq!(tracker.take(u64::MAX), Arrival::Gap { missed: u64::MAX - 2 });
        assert_eq!(tracker.take(0), Arrival::Restart { missed: 0 });
        assert_eq!(tracker.last(), Some(0));
    }
}
