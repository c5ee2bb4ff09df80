//! Resume points: the state of one rank at one position of its stream.

use std::collections::BTreeSet;

use flash_indexer_core::{DpRank, ReadingProgress};
use flash_indexer_types::RankPosition;
use flash_indexer_wire::{KnownGroup, RecentBlock, SaltedBlock};

/// Position of a rank in its stream, with the decoder state to resume from there.
#[derive(Debug)]
pub struct ResumePoint {
    /// Position in the stream.
    pub position: RankPosition,
    /// Ranks of the stream that messages up to the position named, and unregistered ranks of the stream.
    pub named_ranks: BTreeSet<DpRank>,
    /// State needed to decode the next message.
    pub decoder_state: DecoderState,
}

/// State from earlier messages that is needed to decode the next message.
#[derive(Debug, Default)]
pub struct DecoderState {
    /// Known cache groups; none if they are unknown.
    pub groups: Option<Vec<KnownGroup>>,
    /// State of single blocks.
    pub block_state: BlockDecoderState,
}

/// The part of the decoder state that grows with the blocks that the rank holds.
#[derive(Debug, Default)]
pub struct BlockDecoderState {
    /// Salts that the blocks' children inherit.
    pub salts: Vec<SaltedBlock>,
    /// Contents of blocks that may be stored again without tokens; none for a rank that has never offloaded.
    pub contents: Option<Vec<RecentBlock>>,
}

/// Parts of the decoder state that a resume point contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecoderStateDetail {
    /// Without the state of single blocks.
    Brief,
    /// All of it. Copies some bytes for each salted block, and for each block of a rank that offloads.
    Full,
}

/// Reads a rank of the index on its writer thread, between two messages of its instance. Messages of other instances are
/// applied between two parts.
pub trait RankReader: Send {
    /// Reads a bounded part.
    fn read_part(&mut self) -> ReadingProgress;

    /// Receives the position of the reading, after its last part.
    fn finish(self: Box<Self>, point: ResumePoint);
}

/// The parts of a reading: each call reads one.
pub(crate) type ReadInParts = Box<dyn FnMut() -> ReadingProgress + Send>;

/// The parts of a reading at a position.
pub(crate) fn in_parts(
    reader: Box<dyn RankReader>,
    point: impl FnOnce() -> ResumePoint + Send + 'static,
) -> ReadInParts {
    let mut reading = Some((reader, point));
    Box::new(move || {
        let Some((reader, _)) = &mut reading else { return ReadingProgress::Complete };
        let progress = reader.read_part();
        if progress == ReadingProgress::Complete
            && let Some((reader, point)) = reading.take()
        {
            reader.finish(point());
        }
        progress
    })
}

/// Position at which the index is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadAt {
    /// After all messages received so far.
    Now,
    /// After the message with this sequence number; never, if a later one is applied already.
    Message(u64),
}
