//! Sequence numbers of messages, including those of engines that send none.

/// Source of a stream's sequence numbers. The first message of a connection decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Numbering {
    /// No message was received since the engine connected.
    #[default]
    Unknown,
    /// The engine.
    Engine,
    /// The receiver: the next message has this number.
    Receiver(u64),
}

impl Numbering {
    /// Sequence number of a live message, from the number sent with it. None if earlier messages of the connection are numbered otherwise.
    pub fn number(&mut self, sent: Option<u64>) -> Option<u64> {
        if *self == Self::Unknown {
            *self = if sent.is_some() { Self::Engine } else { Self::Receiver(0) };
        }
        match (self, sent) {
            (Self::Engine, sent) => sent,
            (Self::Receiver(next), None) => {
                let number = *next;
                *next += 1;
                Some(number)
            }
            (Self::Receiver(_) | Self::Unknown, _) => None,
        }
    }
}
