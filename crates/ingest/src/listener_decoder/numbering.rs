//! Sequence numbers of streams whose engine does not send any.

use super::ListenerDecoder;
use crate::log_listener;

/// Who numbers the messages of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbering {
    /// No message was received since the engine connected.
    Unknown,
    /// The engine.
    Engine,
    /// The decoder: the next message has this number.
    Decoder(u64),
}

impl ListenerDecoder {
    /// The sequence number of a live message that has this one. None if the messages before it differ: the first message of a
    /// connection decides.
    pub(super) fn number(&mut self, sent: Option<u64>) -> Option<u64> {
        match (self.numbering, sent) {
            (Numbering::Unknown, Some(_)) => self.numbering = Numbering::Engine,
            (Numbering::Unknown, None) => {
                self.numbering = Numbering::Decoder(0);
                if self.listener.set_unnumbered() {
                    self.metrics.unnumbered_stream();
                    log_listener!(warn, self.listener, "messages without sequence numbers: the ranks are never exact");
                }
            }
            _ => {}
        }
        match (&mut self.numbering, sent) {
            (Numbering::Engine, sent) => sent,
            (Numbering::Decoder(next), None) => {
                let number = *next;
                *next += 1;
                Some(number)
            }
            (Numbering::Decoder(_) | Numbering::Unknown, _) => None,
        }
    }

    /// Starts numbering over for a new connection. If the decoder numbers the messages, the next one begins an epoch: whether
    /// the engine is still the same is not known.
    pub(super) fn restart_numbering(&mut self) {
        self.numbering = Numbering::Unknown;
    }
}
