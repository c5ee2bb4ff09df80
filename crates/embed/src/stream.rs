//! State of one stream: the messages of one endpoint of an engine.

use flash_indexer_wire::{
    BatchError, BatchOutline, Numbering, PendingReason, Start, Stream, StreamLimits, StreamOptions,
};

use crate::options::EngineOptions;
use crate::trust::AppliedTrust;

/// Reason why ranks of a stream without sequence numbers are never exact.
pub(crate) const UNNUMBERED: &str =
    "the engine's messages have no sequence numbers, so lost messages are not noticed; use a release that numbers them";

/// Reason why ranks of an engine with extra keys are never exact.
const EXTRA_KEYS: &str =
    "the engine was registered with extra_keys, which its events do not carry: matches may be too long";

/// A message that waits to be applied.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) payload: Box<[u8]>,
    pub(crate) outline: Result<BatchOutline, BatchError>,
}

impl Message {
    pub(crate) fn of(payload: &[u8]) -> Self {
        Self { payload: payload.into(), outline: BatchOutline::of(payload) }
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.payload
    }
}

#[derive(Debug)]
pub(crate) struct StreamState {
    pub(crate) messages: Stream<Message>,
    numbering: Numbering,
    /// Trust of ranks without their own state.
    pub(crate) last: AppliedTrust,
    pub(crate) pending: Option<PendingReason>,
    /// Reason why no rank of the stream can be exact.
    pub(crate) never_exact: Option<&'static str>,
}

impl StreamState {
    pub(crate) fn new(engine: &EngineOptions) -> Self {
        let limits = StreamLimits::default();
        Self {
            messages: Stream::new(StreamOptions { replay: engine.replay, start: Start::Immediate, limits }),
            numbering: Numbering::Unknown,
            last: AppliedTrust::Cold,
            pending: Some(PendingReason::FirstContact),
            never_exact: engine.extra_keys.then_some(EXTRA_KEYS),
        }
    }

    /// The number of a live message, from the sequence number that it was sent with. None if the messages before it differ.
    pub(crate) fn number(&mut self, sent: Option<u64>) -> Option<u64> {
        let number = self.numbering.number(sent);
        if let Numbering::Receiver(_) = self.numbering {
            self.never_exact = Some(UNNUMBERED);
        }
        number
    }

    /// The inputs of the trust in the stream's ranks, other than the ranks' own changes.
    pub(crate) fn trust(&self) -> (AppliedTrust, Option<PendingReason>, Option<&'static str>) {
        (self.last.clone(), self.pending, self.never_exact)
    }

    pub(crate) fn disconnected(&mut self) {
        self.numbering = Numbering::Unknown;
        self.messages.disconnected();
    }
}
