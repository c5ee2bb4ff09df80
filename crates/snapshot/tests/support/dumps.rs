//! Arbitrary bytes as dumps, and the properties of each dump that is written or read.
//!
//! ```text
//!  input:    kind (8) | content
//!  read:     bytes that are left out at the end (8) | a dump in any form
//!  written:  ranks
//!  damaged:  changes (8) | position (16) and other bits (8) of each | ranks
//!  ranks:    number (8) | for each rank: model, instance, data-parallel rank (8) | events | decoder state | cache groups
//! ```

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::io::{self, Read, Write};

use flash_indexer_core::groups::{
    AttentionWindow, BlockLink, GroupBlockSize, GroupChange, GroupEvent, GroupId, SecondaryGroup,
};
use flash_indexer_core::hashing::{BlockSize, Salt};
use flash_indexer_core::keyed::{KeyedMap, KeyedSet};
use flash_indexer_core::{Block, BlockEvent, DpRank, LocalHash, SequenceHash, Tier};
use flash_indexer_snapshot::{
    DumpEntry, DumpError, DumpForm, DumpSink, DumpSummary, DumpWriter, GroupRecord, RankDump, RankName, RankRecord,
    Rejection, Tally, TokenWindowRecord, read_dump, recent_blocks,
};
use flash_indexer_types::InstanceId;
use flash_indexer_types::hashes::HashForm;
use flash_indexer_wire::{Age, RecentBlock};

const BLOCK_SIZE: u32 = 16;

/// Decodes bytes as a dump; panics if it is not written or read as it should be.
pub(crate) fn play(bytes: &[u8]) {
    match bytes {
        [kind, content @ ..] if kind % 4 == 1 => check_written(&mut Bytes(content)),
        [kind, content @ ..] if kind % 4 == 2 => check_damaged(&mut Bytes(content)),
        [_, cut, dump @ ..] => check_read(dump, usize::from(*cut)),
        _ => {}
    }
}

/// A dump gives the same result when read in pieces of any size, and is rejected if it is cut off.
fn check_read(dump: &[u8], cut: usize) {
    let (content, summary) = Content::read(dump);
    let (in_pieces, summary_in_pieces) = Content::read(InPieces { rest: dump, bytes: cut % 7 + 1 });
    assert_eq!(format!("{summary_in_pieces:?}"), format!("{summary:?}"));
    let Ok(summary) = summary else { return };
    assert_eq!(in_pieces, content);
    assert_eq!(content.holds, summary.holds);
    // Spaces may follow an object. A compressed dump may end in an empty frame.
    let dump = dump.trim_ascii_end();
    if matches!(dump.first(), Some(b'{')) {
        let cut_off = &dump[..dump.len().saturating_sub(cut + 1)];
        assert!(Content::read(cut_off).1.is_err(), "{} bytes of {}", cut_off.len(), dump.len());
    }
}

/// Every form of a dump has the content that was written.
fn check_written(bytes: &mut Bytes<'_>) {
    let ranks = bytes.ranks();
    let expected = Content::of(&ranks);
    for (form, hashes) in [(DumpForm::Lines, HashForm::Number), (DumpForm::Object, HashForm::String)] {
        let dump = write(&ranks, form, hashes);
        let (content, summary) = Content::read(&dump[..]);
        let summary = summary.unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&dump)));
        assert_eq!(content.blocks, expected.blocks, "{form:?}");
        assert_eq!(content.salts, expected.salts, "{form:?}");
        assert_eq!((summary.ranks, summary.holds), (ranks.len() as u64, expected.holds));
    }
}

/// A damaged snapshot is rejected, unless it still has the same content.
fn check_damaged(bytes: &mut Bytes<'_>) {
    let count = usize::from(bytes.next() % 4) + 1;
    let changes: Vec<_> =
        (0..count).map(|_| (usize::from(u16::from_le_bytes([bytes.next(), bytes.next()])), bytes.next())).collect();
    let dump = write(&bytes.ranks(), DumpForm::Lines, HashForm::Number);
    let whole = compress(&dump).expect("written to memory");
    let mut damaged = whole.clone();
    for (at, bits) in changes {
        let at = at % damaged.len();
        match bits {
            0 => damaged.truncate(at.max(1)),
            bits => damaged[at] ^= bits,
        }
    }
    let (content, summary) = Content::read(&damaged[..]);
    if summary.is_ok() {
        assert_eq!(content, Content::read(&whole[..]).0);
    }
}

/// Compresses like snapshots on disk.
fn compress(dump: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1)?;
    encoder.include_checksum(true)?;
    encoder.write_all(dump)?;
    encoder.finish()
}

fn write(ranks: &[(RankRecord, RankDump)], form: DumpForm, hashes: HashForm) -> Vec<u8> {
    let in_memory = "written to memory";
    let mut writer = DumpWriter::start(Vec::new(), form, hashes).expect(in_memory);
    for of_model in ranks.chunk_by(|(a, _), (b, _)| a.key() == b.key()) {
        writer.model(&of_model[0].0.key(), BLOCK_SIZE).expect(in_memory);
        for (record, dump) in of_model {
            writer.rank(record.clone(), dump).expect(in_memory);
        }
    }
    writer.finish().expect(in_memory)
}

/// A reader that returns few bytes at a time.
struct InPieces<'a> {
    rest: &'a [u8],
    bytes: usize,
}

impl Read for InPieces<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.bytes.min(out.len());
        self.rest.read(&mut out[..count])
    }
}

/// Content of a dump, in an order that does not depend on its form.
#[derive(Debug, Default, PartialEq)]
struct Content {
    /// Each block, link and record.
    blocks: Vec<String>,
    /// Each salted block with its salt.
    salts: BTreeSet<String>,
    holds: Tally,
}

impl Content {
    fn read(dump: impl Read) -> (Self, Result<DumpSummary, DumpError>) {
        let mut content = Self::default();
        let summary = read_dump(dump, &mut content);
        content.blocks.sort_unstable();
        (content, summary)
    }

    /// Expected content of a dump of these ranks.
    fn of(ranks: &[(RankRecord, RankDump)]) -> Self {
        let mut content = Self::default();
        for (record, dump) in ranks {
            let rank = (&record.key(), &record.instance_id, DpRank(record.dp_rank));
            let salt_of = |block: &Block| dump.salts.get(&block.sequence).copied();
            for event in &dump.events {
                let BlockEvent::Stored { tier, parent, blocks, copies } = event else { unreachable!("a store") };
                if *copies > 0 {
                    content.holds.add(*tier, *copies, *parent, blocks);
                }
                for (parent, block) in linked(*parent, blocks) {
                    match copies {
                        0 => content.push(rank, ("kept", parent, block, dump.salts.get(&block.sequence))),
                        _ => content.push_held(rank, *tier, *copies, parent, block, salt_of(&block)),
                    }
                }
            }
            for &RecentBlock { sequence, parent, local, age } in dump.contents.iter().flatten() {
                content.push_recent(rank, age, parent, Block { sequence, local }, dump.salts.get(&sequence).copied());
            }
            for GroupChange { group, event } in &dump.secondary {
                match event {
                    GroupEvent::Stored { tier, blocks, copies } => {
                        blocks.iter().for_each(|hash| content.push(rank, (group, tier, copies, hash)));
                    }
                    GroupEvent::Linked(links) => links.iter().for_each(|link| content.push(rank, (group, link))),
                    GroupEvent::Removed { .. } => unreachable!("a store"),
                }
            }
            content.push_record(record);
        }
        content.blocks.sort_unstable();
        content
    }

    fn push(&mut self, rank: impl Debug, what: impl Debug) {
        self.blocks.push(format!("{rank:?} {what:?}"));
    }

    fn push_held(
        &mut self,
        rank: impl Debug,
        tier: Tier,
        copies: u32,
        parent: Option<SequenceHash>,
        block: Block,
        salt: Option<Salt>,
    ) {
        self.push(&rank, ("held", tier, copies, parent, block));
        self.push_salt(rank, block, salt);
    }

    fn push_recent(
        &mut self,
        rank: impl Debug,
        age: Age,
        parent: Option<SequenceHash>,
        block: Block,
        salt: Option<Salt>,
    ) {
        self.push(&rank, ("recent", age, parent, block));
        self.push_salt(rank, block, salt);
    }

    fn push_salt(&mut self, rank: impl Debug, block: Block, salt: Option<Salt>) {
        self.salts.extend(salt.map(|salt| format!("{rank:?} {:?} {:?}", block.sequence, salt.to_bits())));
    }

    /// The record without totals, which the writer computes and the reader checks.
    fn push_record(&mut self, record: &RankRecord) {
        let record = RankRecord { holds: Tally::default(), remembers: None, ..record.clone() };
        self.blocks.push(format!("{record:?}"));
    }
}

impl DumpSink for Content {
    fn rank(&mut self, record: RankRecord) -> Result<(), Rejection> {
        self.push_record(&record);
        Ok(())
    }

    fn entry(&mut self, rank: RankName<'_>, entry: DumpEntry) -> Result<(), Rejection> {
        let rank = (rank.key, rank.instance, rank.dp_rank);
        match entry {
            DumpEntry::Blocks(stored) => {
                self.holds.add(stored.tier, stored.copies, stored.parent, &stored.blocks);
                for (parent, block) in linked(stored.parent, &stored.blocks) {
                    self.push_held(rank, stored.tier, stored.copies, parent, block, stored.salt);
                    if let Some(age) = stored.remembered {
                        self.push_recent(rank, age, parent, block, stored.salt);
                    }
                }
            }
            DumpEntry::Recent(recent) => {
                for content in recent_blocks(recent.parent, &recent.blocks, recent.age) {
                    let RecentBlock { sequence, parent, local, age } = content;
                    self.push_recent(rank, age, parent, Block { sequence, local }, recent.salt);
                }
            }
            DumpEntry::Kept(kept) => {
                for (parent, block) in linked(kept.parent, &kept.blocks) {
                    self.push(rank, ("kept", parent, block, kept.salt.as_ref()));
                }
            }
            DumpEntry::Secondary(GroupChange { group, event }) => match &event {
                GroupEvent::Stored { tier, blocks, copies } => {
                    blocks.iter().for_each(|hash| self.push(rank, (&group, tier, copies, hash)));
                }
                GroupEvent::Linked(links) => links.iter().for_each(|link| self.push(rank, (&group, link))),
                GroupEvent::Removed { .. } => panic!("a dump consists of stores: {event:?}"),
            },
        }
        Ok(())
    }
}

/// Each block of a chain with the one before it.
fn linked(mut parent: Option<SequenceHash>, blocks: &[Block]) -> impl Iterator<Item = (Option<SequenceHash>, Block)> {
    blocks.iter().map(move |block| (parent.replace(block.sequence), *block))
}

/// The remaining bytes. All bytes after them are zero.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// Ranks, grouped by model.
    fn ranks(&mut self) -> Vec<(RankRecord, RankDump)> {
        let count = self.next() % 4;
        let mut ranks: Vec<_> = (0..count).map(|number| self.rank(number)).collect();
        ranks.sort_by_key(|(record, _)| record.key().to_string());
        ranks
    }

    fn rank(&mut self, number: u8) -> (RankRecord, RankDump) {
        let (name, tenant) = [("m", "default"), ("m", "a:b"), ("\"\u{e9}\\:", "t")][usize::from(self.next() % 3)];
        let instance = match self.next() % 2 {
            0 => InstanceId::number(number.into()),
            _ => InstanceId::parse(&format!("\"i\u{e9}-{number}")).expect("a name"),
        };
        let (dp_rank, registered) = (u32::from(self.next()), BlockSize::new(BLOCK_SIZE).expect("not zero"));
        let events: Vec<_> = (0..self.next() % 6).map(|_| self.stored()).collect();
        let contents = (self.next() % 2 == 1).then(|| self.contents(&events));
        let secondary: Vec<_> = (0..self.next() % 4).map(|_| self.group_change(registered)).collect();
        let salted = self.next();
        let held = events.iter().flat_map(|event| match event {
            BlockEvent::Stored { blocks, .. } => &blocks[..],
            _ => &[],
        });
        let sequences = held.map(|block| block.sequence);
        let sequences = sequences.chain(contents.iter().flatten().map(|content| content.sequence));
        let is_salted = |sequence: &SequenceHash| salted >> (sequence.0 % 8) & 1 == 1;
        let salts: KeyedMap<_, _> =
            sequences.filter(is_salted).map(|sequence| (sequence, Salt::from_bits(sequence.0 / 4))).collect();
        let record = RankRecord {
            model_name: name.to_owned(),
            tenant_id: tenant.to_owned(),
            block_size: BLOCK_SIZE,
            instance_id: instance.clone(),
            dp_rank,
            engine: None,
            stream: None,
            windows: vec![TokenWindowRecord::Block],
            holds: Tally::default(),
            groups: (!secondary.is_empty()).then(|| GroupRecord::all(registered, &[], &secondary)),
            remembers: None,
        };
        let dump = RankDump {
            instance,
            dp_rank: DpRank(dp_rank),
            position: None,
            events,
            secondary,
            named_groups: None,
            salts,
            contents,
        };
        (record, dump)
    }

    fn tier(&mut self) -> Tier {
        Tier::ALL[usize::from(self.next()) % Tier::ALL.len()]
    }

    /// A hash, mostly from a small set.
    fn sequence(&mut self) -> SequenceHash {
        match self.next() {
            byte @ 0..0xf0 => SequenceHash(u64::from(byte % 32)),
            byte => SequenceHash(u64::MAX - u64::from(byte)),
        }
    }

    /// A chain of blocks, at times longer than one written event.
    fn stored(&mut self) -> BlockEvent {
        let (tier, copies, parent) = (self.tier(), self.next() % 3, self.next());
        let parent = (parent % 2 == 1).then(|| self.sequence());
        let SequenceHash(first) = self.sequence();
        let count = match self.next() {
            0xff => 700,
            count => u64::from(count % 24),
        };
        let blocks = (0..count).map(|at| {
            let sequence = first.wrapping_add(at);
            Block { sequence: SequenceHash(sequence), local: LocalHash(sequence.wrapping_mul(0x1_0001)) }
        });
        BlockEvent::Stored { tier, parent, blocks: blocks.collect(), copies: copies.into() }
    }

    /// Decoder state, of held blocks or others.
    fn contents(&mut self, events: &[BlockEvent]) -> Vec<RecentBlock> {
        let held: Vec<_> = events
            .iter()
            .filter_map(|event| match event {
                BlockEvent::Stored { parent, blocks, .. } => Some(linked(*parent, blocks)),
                _ => None,
            })
            .flatten()
            .collect();
        let mut seen = KeyedSet::default();
        let mut contents = Vec::new();
        for _ in 0..self.next() % 32 {
            let kind = self.next();
            let (parent, block) = match held.get(usize::from(self.next()) % held.len().max(1)) {
                Some(&held) if kind & 2 == 0 => held,
                _ => {
                    let (parent, sequence) = (self.next() % 4, self.sequence());
                    let parent = (parent != 0).then(|| self.sequence());
                    (parent, Block { sequence, local: LocalHash(u64::from(kind)) })
                }
            };
            let age = if kind & 1 == 0 { Age::Young } else { Age::Old };
            if seen.insert(block.sequence) {
                contents.push(RecentBlock { sequence: block.sequence, parent, local: block.local, age });
            }
        }
        contents
    }

    fn group_change(&mut self, registered: BlockSize) -> GroupChange {
        let kind = self.next();
        let id = u32::from(kind % 4);
        let (window, tokens) = [
            (AttentionWindow::Full, BLOCK_SIZE),
            (AttentionWindow::LastBlocks(3), BLOCK_SIZE / 2),
            (AttentionWindow::LastBlocks(1), 2 * BLOCK_SIZE),
            (AttentionWindow::LastBlocks(7), BLOCK_SIZE),
        ][id as usize];
        let size = GroupBlockSize::of(tokens, registered).expect("a size of a group");
        let group = SecondaryGroup { id: GroupId(id), window, size };
        let count = self.next() % 16;
        let event = match kind & 0x80 {
            0 => {
                let (tier, copies) = (self.tier(), u32::from(self.next() % 3) + 1);
                GroupEvent::Stored { tier, blocks: (0..count).map(|_| self.sequence()).collect(), copies }
            }
            _ => GroupEvent::Linked((0..count).map(|_| self.link()).collect()),
        };
        GroupChange { group, event }
    }

    fn link(&mut self) -> BlockLink {
        let before = self.next() % 2 == 1;
        BlockLink { block: self.sequence(), before: before.then(|| self.sequence()) }
    }
}
