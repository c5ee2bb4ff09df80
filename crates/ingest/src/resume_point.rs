//! One rank at one place of its stream.

use flash_indexer_core::SequenceHash;
use flash_indexer_core::hashing::Salt;
use flash_indexer_wire::{KnownGroup, RecentBlock};

use flash_indexer_types::Position;

/// Where a rank stands, and what its stream leaves decoder_state from there on.
#[derive(Debug)]
pub struct ResumePoint {
    /// The position.
    pub position: Position,
    /// State needed to decode the next message.
    pub decoder_state: DecoderState,
}

/// What a stream has said once, and what comes later in it is to be understood with.
#[derive(Debug, Default)]
pub struct DecoderState {
    /// Cache groups that were named; none where it is not known whether there are any.
    pub groups: Option<Vec<KnownGroup>>,
    /// Of single blocks.
    pub block_state: BlockDecoderState,
}

/// The part of it that grows with what the rank holds.
#[derive(Debug, Default)]
pub struct BlockDecoderState {
    /// Blocks whose salt is inherited by those that follow them.
    pub salts: Vec<(SequenceHash, Salt)>,
    /// What blocks contain that may be named again without it; none of a rank that has not offloaded.
    pub contents: Option<Vec<RecentBlock>>,
}

/// How much of what is decoder_state is wanted with a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecoderStateDetail {
    /// All but what is about single blocks.
    Brief,
    /// Everything: some bytes for each salted block and for each block of a rank that offloads are copied.
    Full,
}

/// Reads the index where a rank's writer is between two messages.
pub(crate) type Read = Box<dyn FnOnce(ResumePoint) + Send>;

/// When to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadAt {
    /// After everything that has come.
    Now,
    /// After the message of this number; never, if that has passed already.
    Message(u64),
}
