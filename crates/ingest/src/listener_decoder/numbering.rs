//! Sequence numbers of streams whose engine does not send any.

use flash_indexer_wire::Numbering;

use super::ListenerDecoder;
use crate::log_listener;

impl ListenerDecoder {
    /// Sequence number of a live message, from the number sent with it. None if earlier messages of the connection are numbered otherwise.
    pub(super) fn number(&mut self, sent: Option<u64>) -> Option<u64> {
        let is_first = self.numbering == Numbering::Unknown;
        if is_first && sent.is_none() && self.listener.set_unnumbered() {
            self.metrics.unnumbered_stream();
            log_listener!(warn, self.listener, "messages without sequence numbers: the ranks are never exact");
        }
        self.numbering.number(sent)
    }
}
