//! DumpVisitor a dump in any of its forms, a little at a time.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use flash_indexer_core::groups::{GroupChange, GroupEvent, SecondaryGroup};
use flash_indexer_core::hashing::{BlockSize, Salt};
use flash_indexer_core::{Block, BlockEvent, DpRank, SequenceHash, Tier};
use flash_indexer_wire::Age;
use serde::Deserialize;

use super::event::{ReadEvent, ReadTier};
use super::record::{End, RankRecord, Start};
use super::tally::Tally;
use super::totals::ReceivedTotals;
use super::{LINE_BYTES_MAX, LINES_START, VERSION, object};
use flash_indexer_types::names::shorten;
use flash_indexer_types::{InstanceId, ModelKey};

/// A dump cannot be used. What was told of it before need not be the whole of anything.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The bytes do not come.
    #[error("failed to read the dump: {0}")]
    Read(io::Error),
    /// It ends too early.
    #[error("the dump is cut off: get it again")]
    CutOff,
    /// It is not what a dump is made of.
    #[error("the dump is damaged or none at all, {place}: {what}")]
    Damaged {
        /// Where.
        place: String,
        /// What is wrong.
        what: String,
    },
    /// A newer program wrote it.
    #[error("the dump has version {0}, and this program reads up to {VERSION}: use the program that wrote it")]
    Version(u32),
    /// It says itself that something is missing or too much.
    #[error("the dump is damaged: {of} should hold {told:?}, and came with {came:?}")]
    Incomplete {
        /// What does not fit.
        of: String,
        /// What the dump says of itself.
        told: Tally,
        /// What came.
        came: Tally,
    },
    /// Whoever takes it does not want it.
    #[error("{0}")]
    Refused(String),
}

/// Why a sink does not take a dump.
#[derive(Debug)]
pub struct Refused(pub String);

impl From<Refused> for DumpError {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused.0)
    }
}

/// Who takes a dump while it is read.
pub trait DumpSink {
    /// A rank is told of: before its blocks in lines, after them in an object, not at all by other indexers.
    ///
    /// # Errors
    ///
    /// Why it is not wanted.
    fn rank(&mut self, record: RankRecord) -> Result<(), Refused>;

    /// Something that a rank holds; in the indexed cache group parents come before children.
    ///
    /// # Errors
    ///
    /// Why it is not wanted.
    fn entry(&mut self, rank: RankName<'_>, told: DumpEntry) -> Result<(), Refused>;
}

/// Whose blocks are told of.
#[derive(Debug, Clone, Copy)]
pub struct RankName<'a> {
    /// Model and tenant.
    pub key: &'a ModelKey,
    /// Size of the model's blocks.
    pub block_size: BlockSize,
    /// The instance.
    pub instance: &'a InstanceId,
    /// Its rank.
    pub dp_rank: DpRank,
}

/// What one event says.
#[derive(Debug)]
pub enum DumpEntry {
    /// Of the indexed cache group, the only one of most models.
    Blocks(StoredBlocks),
    /// Of another one.
    Names(StoredNames),
    /// Of blocks that the rank no longer holds.
    Gone(RecentBlocks),
}

impl DumpEntry {
    /// How many blocks it is about.
    #[must_use]
    pub fn block_count(&self) -> usize {
        match self {
            Self::Blocks(stored) => stored.blocks.len(),
            Self::Names(stored) => stored.names.len(),
            Self::Gone(gone) => gone.blocks.len(),
        }
    }
}

/// Blocks that a rank holds in a further cache group, in any order.
#[derive(Debug)]
pub struct StoredNames {
    /// The group.
    pub group: SecondaryGroup,
    /// Where the copies lie.
    pub tier: Tier,
    /// Copies of each.
    pub copies: u32,
    /// The blocks.
    pub names: Vec<SequenceHash>,
}

impl From<StoredNames> for GroupChange {
    fn from(stored: StoredNames) -> Self {
        let StoredNames { group, tier, copies, names } = stored;
        Self { group, event: GroupEvent::Stored { tier, blocks: names, copies } }
    }
}

/// Blocks that a rank holds, each following the one before it.
#[derive(Debug)]
pub struct StoredBlocks {
    /// Where the copies lie.
    pub tier: Tier,
    /// The block before the first one; none where a sequence starts.
    pub parent: Option<SequenceHash>,
    /// Copies of each.
    pub copies: u32,
    /// The blocks.
    pub blocks: Vec<Block>,
    /// The salt that they inherit.
    pub salt: Option<Salt>,
    /// How long their content is remembered, if it is.
    pub remembered: Option<Age>,
}

impl From<StoredBlocks> for BlockEvent {
    fn from(stored: StoredBlocks) -> Self {
        let StoredBlocks { tier, parent, copies, blocks, salt: _, remembered: _ } = stored;
        Self::Stored { tier, parent, blocks, copies }
    }
}

/// Blocks that a rank's engine may name again without saying what they contain, each following the one before it. The
/// rank does not hold them.
#[derive(Debug)]
pub struct RecentBlocks {
    /// The block before the first one; none where a sequence starts.
    pub parent: Option<SequenceHash>,
    /// The blocks.
    pub blocks: Vec<Block>,
    /// The salt that they inherit.
    pub salt: Option<Salt>,
    /// How long their content is remembered.
    pub age: Age,
}

/// What a whole dump had.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DumpSummary {
    /// Ranks that were told of or hold something.
    pub ranks: u64,
    /// All blocks.
    pub holds: Tally,
}

/// Reads a dump, compressed with zstd or not, and gives it to `sink` piece by piece: memory is bounded by the
/// longest event. Nothing that the sink got counts before this returns without an error.
///
/// # Errors
///
/// When the dump is not whole, is damaged, or is not wanted.
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

/// The first bytes, which tell the form, and the whole input.
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

/// A stream that ends in the middle of a compressed frame or of an HTTP body was cut off.
pub(super) fn read_error(error: io::Error) -> DumpError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => DumpError::CutOff,
        _ => DumpError::Read(error),
    }
}

/// Any line: exactly one kind of it, or one that only later programs know.
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
    came: ReceivedTotals,
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
                sink.rank(record.clone())?;
                self.current = Some(Current { key: record.key(), record, block_size, came: ReceivedTotals::default() });
            } else if let Some(event) = line.event {
                self.event(line.worker_id, line.storage_tier, event, sink)?;
            } else if let Some(end) = line.end {
                self.end_rank()?;
                return self.end(&end, &mut bytes);
            }
        }
        Err(DumpError::CutOff)
    }

    /// The next line without its end; none at the end of the input.
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
            return Err(self.damaged("an event of a rank that was not told of just before".to_owned()));
        };
        let rank = RankName {
            key: &current.key,
            block_size: current.block_size,
            instance: &current.record.instance_id,
            dp_rank: DpRank(dp_rank),
        };
        let told = current.came.take(tier, event.data.stored);
        Ok(sink.entry(rank, told)?)
    }

    fn end_rank(&mut self) -> Result<(), DumpError> {
        let Some(Current { record, came, .. }) = self.current.take() else { return Ok(()) };
        self.summary.ranks += 1;
        self.summary.holds += came.blocks;
        came.check(&record)
    }

    fn end(mut self, end: &End, bytes: &mut Vec<u8>) -> Result<DumpSummary, DumpError> {
        if end.ranks != self.summary.ranks {
            let what = format!("it should have {} ranks and has {}", end.ranks, self.summary.ranks);
            return Err(self.damaged(what));
        }
        if end.holds != self.summary.holds {
            return Err(DumpError::Incomplete {
                of: "the whole".to_owned(),
                told: end.holds,
                came: self.summary.holds,
            });
        }
        match self.next_line(bytes)? {
            false => Ok(self.summary),
            true => Err(self.damaged("it goes on after its end".to_owned())),
        }
    }

    fn damaged(&self, what: String) -> DumpError {
        DumpError::Damaged { place: format!("line {}", self.number), what: shorten(what) }
    }
}
