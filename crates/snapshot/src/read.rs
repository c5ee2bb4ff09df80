//! Streaming reader of a dump in any of its forms.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use flash_indexer_core::groups::{BlockLink, GroupChange, GroupEvent, SecondaryGroup};
use flash_indexer_core::hashing::{BlockSize, Salt};
use flash_indexer_core::{Block, BlockEvent, DpRank, SequenceHash, Tier};
use flash_indexer_types::names::shorten;
use flash_indexer_types::{InstanceId, ModelKey};
use flash_indexer_wire::Age;
use serde::Deserialize;

use super::event::{ReadEvent, ReadTier};
use super::record::{End, RankRecord, Start};
use super::tally::Tally;
use super::totals::ReceivedTotals;
use super::{LINE_BYTES_MAX, LINES_START, VERSION, object};

/// Failure to read a dump. Entries that the sink received before are incomplete and must be discarded.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// Reading the input failed.
    #[error("failed to read the dump: {0}; get it again")]
    Read(io::Error),
    /// The dump ends early.
    #[error("failed to read the dump: it is cut off; get it again")]
    CutOff,
    /// The dump has an invalid part.
    #[error("failed to read the dump at {position}: {cause}; check that the input is a dump, or get it again")]
    Damaged {
        /// Position in the input.
        position: String,
        /// The cause.
        cause: String,
    },
    /// A newer program wrote the dump.
    #[error(
        "failed to read the dump: it has version {0}, and this program reads up to {VERSION}; use the program that wrote it"
    )]
    Version(u32),
    /// The blocks of the dump differ from its own totals.
    #[error("failed to read the dump: {of} should hold {declared:?} and holds {received:?}; get it again")]
    Incomplete {
        /// The part of the dump.
        of: String,
        /// Total that the dump declares.
        declared: Tally,
        /// Total of the blocks read.
        received: Tally,
    },
    /// The sink rejects the dump.
    #[error("{0}")]
    Refused(String),
}

/// Reason for which a sink rejects a dump.
#[derive(Debug)]
pub struct Refused(pub String);

impl From<Refused> for DumpError {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused.0)
    }
}

/// Receiver of a dump while it is read.
pub trait DumpSink {
    /// Receives a rank's record: before its blocks in the form of lines, after them in an object, never from other indexers.
    ///
    /// # Errors
    ///
    /// Returns the reason if the sink rejects the dump.
    fn rank(&mut self, record: RankRecord) -> Result<(), Refused>;

    /// Receives blocks of a rank. In the primary cache group, parents precede children.
    ///
    /// # Errors
    ///
    /// Returns the reason if the sink rejects the dump.
    fn entry(&mut self, rank: RankName<'_>, entry: DumpEntry) -> Result<(), Refused>;
}

/// Rank of an entry.
#[derive(Debug, Clone, Copy)]
pub struct RankName<'a> {
    /// Model and tenant.
    pub key: &'a ModelKey,
    /// Size of the model's blocks.
    pub block_size: BlockSize,
    /// The instance.
    pub instance: &'a InstanceId,
    /// The data-parallel rank.
    pub dp_rank: DpRank,
}

/// Content of one event of a dump.
#[derive(Debug)]
pub enum DumpEntry {
    /// Blocks of the primary cache group, the only one of most models.
    Blocks(StoredBlocks),
    /// Blocks of a secondary cache group.
    Secondary(SecondaryBlocks),
    /// Links between blocks of a secondary cache group, after the blocks.
    Links(GroupLinks),
    /// Recent blocks that the rank no longer holds, for the decoder state.
    Recent(RecentBlocks),
    /// Removed blocks that the rank's index keeps for their descendants.
    Kept(KeptBlocks),
}

impl DumpEntry {
    /// Number of blocks in the entry.
    #[must_use]
    pub fn block_count(&self) -> usize {
        match self {
            Self::Blocks(stored) => stored.blocks.len(),
            Self::Secondary(stored) => stored.hashes.len(),
            Self::Links(_) => 0,
            Self::Recent(recent) => recent.blocks.len(),
            Self::Kept(kept) => kept.blocks.len(),
        }
    }
}

/// Blocks that a rank holds in a secondary cache group, in any order.
#[derive(Debug)]
pub struct SecondaryBlocks {
    /// The group.
    pub group: SecondaryGroup,
    /// Tier of the copies.
    pub tier: Tier,
    /// Reference count of each block.
    pub copies: u32,
    /// The blocks.
    pub hashes: Vec<SequenceHash>,
}

/// Links between blocks of a secondary cache group whose blocks are smaller than the registered ones.
#[derive(Debug)]
pub struct GroupLinks {
    /// The group.
    pub group: SecondaryGroup,
    /// The links.
    pub links: Vec<BlockLink>,
}

impl From<GroupLinks> for GroupChange {
    fn from(GroupLinks { group, links }: GroupLinks) -> Self {
        Self { group, event: GroupEvent::Linked(links) }
    }
}

impl From<SecondaryBlocks> for GroupChange {
    fn from(stored: SecondaryBlocks) -> Self {
        let SecondaryBlocks { group, tier, copies, hashes } = stored;
        Self { group, event: GroupEvent::Stored { tier, blocks: hashes, copies } }
    }
}

/// Chain of blocks that a rank holds: each block is the parent of the next.
#[derive(Debug)]
pub struct StoredBlocks {
    /// Tier of the copies.
    pub tier: Tier,
    /// Parent of the first block; none at the start of a sequence.
    pub parent: Option<SequenceHash>,
    /// Reference count of each block.
    pub copies: u32,
    /// The blocks.
    pub blocks: Vec<Block>,
    /// Salt that the blocks inherit.
    pub salt: Option<Salt>,
    /// Age of the blocks in the decoder state, if they are in it.
    pub remembered: Option<Age>,
}

impl From<StoredBlocks> for BlockEvent {
    fn from(stored: StoredBlocks) -> Self {
        let StoredBlocks { tier, parent, copies, blocks, salt: _, remembered: _ } = stored;
        Self::Stored { tier, parent, blocks, copies }
    }
}

/// Chain of blocks that a rank does not hold, and whose descendants it holds.
#[derive(Debug)]
pub struct KeptBlocks {
    /// Parent of the first block; none at the start of a sequence.
    pub parent: Option<SequenceHash>,
    /// The blocks.
    pub blocks: Vec<Block>,
}

/// Chain of blocks that a rank does not hold, and that its engine may name again by sequence hash alone.
#[derive(Debug)]
pub struct RecentBlocks {
    /// Parent of the first block; none at the start of a sequence.
    pub parent: Option<SequenceHash>,
    /// The blocks.
    pub blocks: Vec<Block>,
    /// Salt that the blocks inherit.
    pub salt: Option<Salt>,
    /// Age of the blocks in the decoder state.
    pub age: Age,
}

/// Totals of a complete dump.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DumpSummary {
    /// Ranks with a record or a block.
    pub ranks: u64,
    /// All blocks.
    pub holds: Tally,
}

/// Reads a dump, compressed with zstd or not, and passes it to `sink` entry by entry. Memory is bounded by the longest
/// event. The entries are valid only if this returns without an error.
///
/// # Errors
///
/// Fails if the dump is incomplete or damaged, or if the sink rejects it.
pub fn read_dump(input: impl Read, sink: &mut impl DumpSink) -> Result<DumpSummary, DumpError> {
    let (start, input) = peek(input)?;
    if !start.starts_with(&ZSTD_MAGIC) {
        return read_plain(&start, input, sink);
    }
    let decoder = zstd::stream::read::Decoder::new(input).map_err(DumpError::Read)?;
    let (start, input) = peek(decoder)?;
    read_plain(&start, input, sink)
}

const ZSTD_MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();

/// Returns the first bytes, which identify the form, and the whole input.
fn peek<R: Read>(mut input: R) -> Result<(Vec<u8>, impl Read), DumpError> {
    let mut start = Vec::with_capacity(LINES_START.len());
    input.by_ref().take(LINES_START.len() as u64).read_to_end(&mut start).map_err(read_error)?;
    Ok((start.clone(), Cursor::new(start).chain(input)))
}

fn read_plain(start: &[u8], input: impl Read, sink: &mut impl DumpSink) -> Result<DumpSummary, DumpError> {
    let input = BufReader::with_capacity(READ_BYTES, input);
    match start == LINES_START {
        true => Lines { input, number: 0, current: None, summary: DumpSummary::default() }.read(sink),
        false => object::read(input, sink),
    }
}

const READ_BYTES: usize = 256 << 10;

/// Maps a read error. A stream that ends in the middle of a compressed frame or of an HTTP body was cut off.
pub(super) fn read_error(error: io::Error) -> DumpError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => DumpError::CutOff,
        _ => DumpError::Read(error),
    }
}

/// Line of any kind. A line of an unknown kind has none of these fields.
#[derive(Deserialize)]
struct Line {
    dump: Option<Start>,
    rank: Option<RankRecord>,
    end: Option<End>,
    worker_id: Option<InstanceId>,
    storage_tier: Option<ReadTier>,
    event: Option<ReadEvent>,
}

struct Lines<R> {
    input: R,
    number: u64,
    current: Option<Current>,
    summary: DumpSummary,
}

struct Current {
    record: RankRecord,
    key: ModelKey,
    block_size: BlockSize,
    received: ReceivedTotals,
}

impl<R: BufRead> Lines<R> {
    fn read(mut self, sink: &mut impl DumpSink) -> Result<DumpSummary, DumpError> {
        let mut bytes = Vec::new();
        while self.next_line(&mut bytes)? {
            let line: Line = serde_json::from_slice(&bytes).map_err(|error| self.damaged(error.to_string()))?;
            if let Some(start) = line.dump {
                if start.version > VERSION {
                    return Err(DumpError::Version(start.version));
                }
            } else if let Some(record) = line.rank {
                self.end_rank()?;
                record.check_names().map_err(|error| self.damaged(error.to_string()))?;
                let block_size = BlockSize::new(record.block_size);
                let block_size = block_size.ok_or_else(|| self.damaged("a block size of 0".to_owned()))?;
                record.check_groups(block_size).map_err(|error| self.damaged(error.to_string()))?;
                sink.rank(record.clone())?;
                self.current =
                    Some(Current { key: record.key(), record, block_size, received: ReceivedTotals::default() });
            } else if let Some(event) = line.event {
                self.event(line.worker_id, line.storage_tier, event, sink)?;
            } else if let Some(end) = line.end {
                self.end_rank()?;
                return self.end(&end, &mut bytes);
            }
        }
        Err(DumpError::CutOff)
    }

    /// Reads the next line. Returns false at the end of the input.
    fn next_line(&mut self, bytes: &mut Vec<u8>) -> Result<bool, DumpError> {
        bytes.clear();
        self.number += 1;
        let limit = LINE_BYTES_MAX as u64 + 1;
        self.input.by_ref().take(limit).read_until(b'\n', bytes).map_err(read_error)?;
        match bytes.last() {
            None => Ok(false),
            Some(b'\n') => Ok(true),
            Some(_) if bytes.len() > LINE_BYTES_MAX => {
                Err(self.damaged(format!("a line of more than {LINE_BYTES_MAX} bytes")))
            }
            Some(_) => Err(DumpError::CutOff),
        }
    }

    fn event(
        &mut self,
        instance: Option<InstanceId>,
        tier: Option<ReadTier>,
        event: ReadEvent,
        sink: &mut impl DumpSink,
    ) -> Result<(), DumpError> {
        let dp_rank = event.dp_rank.unwrap_or_default();
        let fits = |current: &&mut Current| {
            instance.as_ref() == Some(&current.record.instance_id) && current.record.dp_rank == dp_rank
        };
        let Some(current) = self.current.as_mut().filter(fits) else {
            return Err(self.damaged("an event of a rank other than that of the record before it".to_owned()));
        };
        let rank = RankName {
            key: &current.key,
            block_size: current.block_size,
            instance: &current.record.instance_id,
            dp_rank: DpRank(dp_rank),
        };
        match current.received.count(tier, event.data.stored, current.block_size) {
            Ok(entry) => Ok(sink.entry(rank, entry)?),
            Err(error) => Err(self.damaged(error.to_string())),
        }
    }

    fn end_rank(&mut self) -> Result<(), DumpError> {
        let Some(Current { record, received, .. }) = self.current.take() else { return Ok(()) };
        self.summary.ranks += 1;
        self.summary.holds += received.blocks;
        received.check(&record)
    }

    fn end(mut self, end: &End, bytes: &mut Vec<u8>) -> Result<DumpSummary, DumpError> {
        if end.ranks != self.summary.ranks {
            let cause = format!("the dump should have {} ranks and has {}", end.ranks, self.summary.ranks);
            return Err(self.damaged(cause));
        }
        if end.holds != self.summary.holds {
            return Err(DumpError::Incomplete {
                of: "the whole dump".to_owned(),
                declared: end.holds,
                received: self.summary.holds,
            });
        }
        match self.next_line(bytes)? {
            false => Ok(self.summary),
            true => Err(self.damaged("data follows its end".to_owned())),
        }
    }

    fn damaged(&self, cause: String) -> DumpError {
        DumpError::Damaged { position: format!("line {}", self.number), cause: shorten(cause) }
    }
}
