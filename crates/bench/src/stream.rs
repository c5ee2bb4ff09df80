//! File format of events and queries, which a measuring process reads one by one. They take no additional memory.
//!
//! ```text
//! stored   1 | rank u64 | parent? u8 | parent u64 | n u32 | n x (sequence u64, local u64)
//! removed  2 | rank u64 | n u32 | n x sequence u64
//! query    3 | n u32 | n x local u64
//! ```
//!
//! Little-endian, without padding; the end of the file ends the stream. All blocks are in device memory.

use std::io::{self, Read, Write};

use flash_indexer_core::{Block, BlockEvent, LocalHash, RemovedCopies, SequenceHash, Tier};
use flash_indexer_sim::rank_of;

use crate::backend::WorkerEvent;

const STORED: u8 = 1;
const REMOVED: u8 = 2;
const QUERY: u8 = 3;

/// One record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Event(WorkerEvent),
    Query(Vec<LocalHash>),
}

/// Appends an event. Only stores and removals can be written; other events are an error.
pub(crate) fn write_event(to: &mut impl Write, WorkerEvent { rank, event }: &WorkerEvent) -> io::Result<()> {
    match event {
        BlockEvent::Stored { parent, blocks, .. } => {
            to.write_all(&[STORED])?;
            put(to, rank.worker.0)?;
            to.write_all(&[u8::from(parent.is_some())])?;
            put(to, parent.map_or(0, |parent| parent.0))?;
            to.write_all(&(blocks.len() as u32).to_le_bytes())?;
            blocks.iter().try_for_each(|block| put(to, block.sequence.0).and_then(|()| put(to, block.local.0)))
        }
        BlockEvent::Removed { blocks, .. } => {
            to.write_all(&[REMOVED])?;
            put(to, rank.worker.0)?;
            to.write_all(&(blocks.len() as u32).to_le_bytes())?;
            blocks.iter().try_for_each(|block| put(to, block.0))
        }
        BlockEvent::Copied { .. } | BlockEvent::Cleared => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "only stored and removed blocks can be written"))
        }
    }
}

/// Appends a query.
pub(crate) fn write_query(to: &mut impl Write, query: &[LocalHash]) -> io::Result<()> {
    to.write_all(&[QUERY])?;
    to.write_all(&(query.len() as u32).to_le_bytes())?;
    query.iter().try_for_each(|local| put(to, local.0))
}

/// The next record; none at the end.
pub(crate) fn read_record(from: &mut impl Read) -> io::Result<Option<Record>> {
    let mut kind = [0];
    if from.read(&mut kind)? == 0 {
        return Ok(None);
    }
    let record = match kind[0] {
        STORED => {
            let rank = rank_of(take(from)? as usize);
            let mut has_parent = [0];
            from.read_exact(&mut has_parent)?;
            let parent = take(from)?;
            let parent = (has_parent[0] == 1).then_some(SequenceHash(parent));
            let blocks =
                list(from, |from| Ok(Block { sequence: SequenceHash(take(from)?), local: LocalHash(take(from)?) }))?;
            let event = BlockEvent::Stored { tier: Tier::Device, parent, blocks, copies: 1 };
            Record::Event(WorkerEvent { rank, event })
        }
        REMOVED => {
            let rank = rank_of(take(from)? as usize);
            let blocks = list(from, |from| Ok(SequenceHash(take(from)?)))?;
            let event = BlockEvent::Removed { tier: Tier::Device, blocks, copies: RemovedCopies::All };
            Record::Event(WorkerEvent { rank, event })
        }
        QUERY => Record::Query(list(from, |from| Ok(LocalHash(take(from)?)))?),
        kind => return Err(io::Error::new(io::ErrorKind::InvalidData, format!("unknown record kind {kind}"))),
    };
    Ok(Some(record))
}

fn put(to: &mut impl Write, value: u64) -> io::Result<()> {
    to.write_all(&value.to_le_bytes())
}

fn take(from: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn list<R: Read, T>(from: &mut R, item: impl Fn(&mut R) -> io::Result<T>) -> io::Result<Vec<T>> {
    let mut bytes = [0; 4];
    from.read_exact(&mut bytes)?;
    (0..u32::from_le_bytes(bytes)).map(|_| item(from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_records_are_read_back() {
        let block = |at| Block { sequence: SequenceHash(at), local: LocalHash(at + 100) };
        let stored =
            |parent| BlockEvent::Stored { tier: Tier::Device, parent, blocks: vec![block(1), block(2)], copies: 1 };
        let removed = BlockEvent::Removed {
            tier: Tier::Device,
            blocks: vec![SequenceHash(2), SequenceHash(u64::MAX)],
            copies: RemovedCopies::All,
        };
        let events = [stored(None), stored(Some(SequenceHash(0))), removed];
        let query = vec![LocalHash(7), LocalHash(u64::MAX)];
        let mut file = Vec::new();
        for event in &events {
            write_event(&mut file, &WorkerEvent { rank: rank_of(5), event: event.clone() }).expect("it can be written");
        }
        write_query(&mut file, &query).expect("it can be written");
        let mut from = file.as_slice();
        for event in events {
            let expected = Record::Event(WorkerEvent { rank: rank_of(5), event });
            assert_eq!(read_record(&mut from).expect("a record"), Some(expected));
        }
        assert_eq!(read_record(&mut from).expect("a record"), Some(Record::Query(query)));
        assert_eq!(read_record(&mut from).expect("the end"), None);
        assert!(read_record(&mut &file[..file.len() - 1][..]).is_ok(), "only the last record is cut off");
        assert!(read_record(&mut &[9u8][..]).is_err());
    }
}
