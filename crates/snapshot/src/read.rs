//! Streaming reader of a dump in any of its forms.

use std::io::{BufRead, BufReader, Cursor, Read};

use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_types::names::shorten;
use flash_indexer_types::{InstanceId, ModelKey};
use serde::Deserialize;

use super::entry::{DumpSink, DumpSummary, RankName};
use super::error::{DumpError, read_error};
use super::event::{ReadEvent, ReadTier};
use super::record::{End, RankRecord, Start};
use super::totals::ReceivedTotals;
use super::{LINE_BYTES_MAX, LINES_START, VERSION, object};

/// Reads a dump, compressed with zstd or not, and passes it to `sink` entry by entry. Memory is bounded by the longest
/// event. The entries are valid only if this returns without an error.
///
/// # Errors
///
/// Fails if the dump is incomplete or damaged, or if the sink rejects it.
pub fn read_dump(input: impl Read, sink: &mut impl DumpSink) -> Result<DumpSummary, DumpError> {
    let (start, input) = peek(decompressed(input)?)?;
    let input = BufReader::with_capacity(READ_BYTES, input);
    if start == LINES_START { Lines::new(input).read(sink) } else { object::read(input, sink) }
}

/// Returns the version in the first line of a dump in the form of lines, compressed or not. Costs reading this line.
///
/// # Errors
///
/// Fails if the input cannot be read, or does not begin as such a dump.
pub(crate) fn read_version(input: impl Read) -> Result<u32, DumpError> {
    let (start, input) = peek(decompressed(input)?)?;
    if start != LINES_START {
        let cause = "it does not begin as a dump of a known version".to_owned();
        return Err(DumpError::Damaged { position: "its start".to_owned(), cause });
    }
    let mut lines = Lines::new(BufReader::new(input.take(START_BYTES_MAX)));
    let mut bytes = Vec::new();
    lines.next_line(&mut bytes)?;
    let line: Line = serde_json::from_slice(&bytes).map_err(|error| lines.damaged(error))?;
    line.dump.map(|start| start.version).ok_or_else(|| lines.damaged("a first line without a version"))
}

/// Decompresses an input that is compressed with zstd, and returns any other input unchanged.
fn decompressed<'i>(input: impl Read + 'i) -> Result<Box<dyn Read + 'i>, DumpError> {
    let (start, input) = peek(input)?;
    if !start.starts_with(&ZSTD_MAGIC) {
        return Ok(Box::new(input));
    }
    Ok(Box::new(zstd::stream::read::Decoder::new(input).map_err(DumpError::Read)?))
}

const ZSTD_MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();

/// Returns the first bytes, which identify the form, and the whole input.
fn peek<R: Read>(mut input: R) -> Result<(Vec<u8>, impl Read), DumpError> {
    let mut start = Vec::with_capacity(LINES_START.len());
    input.by_ref().take(LINES_START.len() as u64).read_to_end(&mut start).map_err(read_error)?;
    Ok((start.clone(), Cursor::new(start).chain(input)))
}

const READ_BYTES: usize = 256 << 10;
/// Limit of bytes in the first line, where only its version is read.
const START_BYTES_MAX: u64 = 64 << 10;

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
    fn new(input: R) -> Self {
        Self { input, number: 0, current: None, summary: DumpSummary::default() }
    }

    fn read(mut self, sink: &mut impl DumpSink) -> Result<DumpSummary, DumpError> {
        let mut bytes = Vec::new();
        while self.next_line(&mut bytes)? {
            let line: Line = serde_json::from_slice(&bytes).map_err(|error| self.damaged(error))?;
            if let Some(start) = line.dump {
                if start.version > VERSION {
                    return Err(DumpError::Version(start.version));
                }
            } else if let Some(record) = line.rank {
                self.end_rank()?;
                record.check_names().map_err(|error| self.damaged(error))?;
                let block_size = BlockSize::new(record.block_size).ok_or_else(|| self.damaged("a block size of 0"))?;
                record.check_groups(block_size).map_err(|error| self.damaged(error))?;
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
            return Err(self.damaged("an event of a rank other than that of the record before it"));
        };
        let rank = RankName {
            key: &current.key,
            block_size: current.block_size,
            instance: &current.record.instance_id,
            dp_rank: DpRank(dp_rank),
        };
        match current.received.count(tier, event.data.stored, current.block_size) {
            Ok(entry) => Ok(sink.entry(rank, entry)?),
            Err(error) => Err(self.damaged(error)),
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
        if self.next_line(bytes)? { Err(self.damaged("data follows its end")) } else { Ok(self.summary) }
    }

    fn damaged(&self, cause: impl ToString) -> DumpError {
        DumpError::Damaged { position: format!("line {}", self.number), cause: shorten(cause.to_string()) }
    }
}
