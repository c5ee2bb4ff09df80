//! Resume points: the state of one rank at one position of its stream.

use flash_indexer_types::Position;
use flash_indexer_wire::{KnownGroup, RecentBlock, SaltedBlock};

/// Position of a rank in its stream, with the decoder state to resume from there.
#[derive(Debug)]
pub struct ResumePoint {
    /// Position in the stream.
    pub position: Position,
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

/// Reads the index on the writer thread, between two messages.
pub(crate) type Read = Box<dyn FnOnce(ResumePoint) + Send>;

/// Position at which the index is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadAt {
    /// After all messages received so far.
    Now,
    /// After the message with this sequence number; never, if a later one is applied already.
    Message(u64),
}
