//! Streaming writer of a dump, rank by rank.

use std::io::{self, Write};

use flash_indexer_core::groups::{GroupChange, GroupEvent};
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::{Block, BlockEvent, SequenceHash, Tier};
use flash_indexer_types::ModelKey;
use flash_indexer_types::hashes::HashForm;
use serde::Serialize;

use super::RankDump;
use super::contents::{self, UnwrittenState};
use super::event::{BlockAnnotations, CacheEvent, Data, ModelFields, RouterEvent, Run, Stored};
use super::record::{End, RankRecord, Start};
use super::tally::Tally;
use super::{EVENT_BLOCKS_MAX, VERSION};

/// Form of a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DumpForm {
    /// One JSON object.
    Object,
    /// One JSON value on each line.
    Lines,
}

/// Writer of one dump: models in turn, and the ranks of each model in turn.
pub struct DumpWriter<W> {
    out: W,
    form: DumpForm,
    hashes: HashForm,
    next_event_id: u64,
    end: End,
    /// Model whose ranks are being written.
    model: Option<ModelKey>,
    ranks: Vec<RankRecord>,
    /// Separator before the model's next event in an object.
    separator: &'static [u8],
}

impl<W: Write> DumpWriter<W> {
    /// Begins a dump of this form, with hashes in the form `hashes`. Like every method, it returns the errors of `out`.
    pub fn start(mut out: W, form: DumpForm, hashes: HashForm) -> io::Result<Self> {
        match form {
            DumpForm::Object => out.write_all(b"{")?,
            DumpForm::Lines => write_line(&mut out, "dump", &Start { version: VERSION })?,
        }
        let end = End { ranks: 0, holds: Tally::default() };
        Ok(Self { out, form, hashes, next_event_id: 0, end, model: None, ranks: Vec::new(), separator: b"" })
    }

    /// Begins the next model.
    pub fn model(&mut self, key: &ModelKey, block_size: u32) -> io::Result<()> {
        let is_first = self.model.is_none();
        self.end_model()?;
        self.model = Some(key.clone());
        if self.form == DumpForm::Object {
            self.out.write_all(if is_first { b"" } else { b"," })?;
            serde_json::to_writer(&mut self.out, &key.to_string())?;
            write!(self.out, ":{{\"block_size\":{block_size},\"model_name\":")?;
            serde_json::to_writer(&mut self.out, &key.model_name)?;
            self.out.write_all(b",\"tenant_id\":")?;
            serde_json::to_writer(&mut self.out, &key.tenant_id)?;
            self.out.write_all(b",\"events\":[")?;
        }
        Ok(())
    }

    /// Writes a rank of the model: its record, with the totals of the primary group and of the decoder state, and its
    /// blocks.
    pub fn rank(&mut self, mut record: RankRecord, dump: &RankDump) -> io::Result<()> {
        record.holds = Tally::default();
        for event in &dump.events {
            let (tier, parent, blocks, copies) = stored(event);
            if copies > 0 {
                record.holds.add(tier, copies, parent, blocks);
            }
        }
        record.remembers = dump.contents.as_deref().map(contents::tally);
        self.end.ranks += 1;
        self.end.holds += record.holds;
        if self.form == DumpForm::Lines {
            write_line(&mut self.out, "rank", &record)?;
        }
        let key = record.key();
        let registered = BlockSize::new(record.block_size).expect("the block size of a model is not zero");
        for GroupChange { group, event } in &dump.secondary {
            let group = (*group, registered);
            match event {
                GroupEvent::Stored { tier, blocks, copies } => {
                    for piece in blocks.chunks(EVENT_BLOCKS_MAX) {
                        self.event(&record, &key, *tier, Stored::in_group(group, *copies, piece, self.hashes))?;
                    }
                }
                GroupEvent::Linked(links) => {
                    for piece in links.chunks(EVENT_BLOCKS_MAX) {
                        let links = Stored::links_in_group(group, piece, self.hashes);
                        self.event(&record, &key, Tier::Device, links)?;
                    }
                }
                GroupEvent::Removed { .. } => unreachable!("a dump consists of stores"),
            }
        }
        let salt_of = |block: &Block| dump.salts.get(&block.sequence).copied();
        let mut unwritten = UnwrittenState::new(dump.contents.as_deref());
        for event in &dump.events {
            let (tier, parent, blocks, copies) = stored(event);
            if copies == 0 {
                for run in runs(parent, blocks, |_, block| BlockAnnotations { salt: salt_of(block), remembered: None })
                {
                    self.event(&record, &key, tier, Stored::kept(run, self.hashes))?;
                }
                continue;
            }
            let mark = |parent, block: &Block| BlockAnnotations {
                salt: salt_of(block),
                remembered: unwritten.mark(parent, block),
            };
            for run in runs(parent, blocks, mark) {
                self.event(&record, &key, tier, Stored::new(run, copies, self.hashes))?;
            }
        }
        for (age, event) in unwritten.not_held() {
            let (tier, parent, blocks, _) = stored(&event);
            for run in runs(parent, blocks, |_, block| BlockAnnotations { salt: salt_of(block), remembered: Some(age) })
            {
                self.event(&record, &key, tier, Stored::not_held(run, self.hashes))?;
            }
        }
        if self.form == DumpForm::Object {
            self.ranks.push(record);
        }
        Ok(())
    }

    fn event(&mut self, of: &RankRecord, key: &ModelKey, tier: Tier, stored: Stored<'_>) -> io::Result<()> {
        let event = RouterEvent {
            worker_id: &of.instance_id,
            storage_tier: tier.as_str(),
            event: CacheEvent { event_id: self.next_event_id, dp_rank: of.dp_rank, data: Data { stored } },
            model: (self.form == DumpForm::Lines).then(|| ModelFields::new(key, of.block_size)),
        };
        self.next_event_id += 1;
        if self.form == DumpForm::Object {
            self.out.write_all(std::mem::replace(&mut self.separator, b","))?;
        }
        serde_json::to_writer(&mut self.out, &event)?;
        if self.form == DumpForm::Lines {
            self.out.write_all(b"\n")?;
        }
        Ok(())
    }

    fn end_model(&mut self) -> io::Result<()> {
        if self.model.is_some() && self.form == DumpForm::Object {
            self.out.write_all(b"],\"ranks\":")?;
            serde_json::to_writer(&mut self.out, &self.ranks)?;
            self.out.write_all(b"}")?;
        }
        self.ranks.clear();
        self.separator = b"";
        Ok(())
    }

    /// Ends the dump. Readers reject a dump without its end.
    pub fn finish(mut self) -> io::Result<W> {
        self.end_model()?;
        match self.form {
            DumpForm::Object => self.out.write_all(b"}")?,
            DumpForm::Lines => write_line(&mut self.out, "end", &self.end)?,
        }
        Ok(self.out)
    }
}

/// Writes a line of this kind with a value.
fn write_line(out: &mut impl Write, kind: &str, value: &impl Serialize) -> io::Result<()> {
    write!(out, "{{\"{kind}\":")?;
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"}\n")
}

/// Splits a chain of blocks where annotations change, and where an event would exceed [`EVENT_BLOCKS_MAX`].
fn runs(
    first_parent: Option<SequenceHash>,
    blocks: &[Block],
    mut mark: impl FnMut(Option<SequenceHash>, &Block) -> BlockAnnotations,
) -> Vec<Run<'_>> {
    let mut runs: Vec<Run<'_>> = Vec::new();
    let (mut parent, mut start) = (first_parent, 0);
    for (at, block) in blocks.iter().enumerate() {
        let mark = mark(parent, block);
        match runs.last_mut() {
            Some(run) if run.mark == mark && at - start < EVENT_BLOCKS_MAX => run.blocks = &blocks[start..=at],
            _ => {
                start = at;
                runs.push(Run { parent, blocks: &blocks[at..=at], mark });
            }
        }
        parent = Some(block.sequence);
    }
    runs
}

/// Fields of a stored event.
fn stored(event: &BlockEvent) -> (Tier, Option<SequenceHash>, &[Block], u32) {
    match event {
        BlockEvent::Stored { tier, parent, blocks, copies } => (*tier, *parent, blocks, *copies),
        BlockEvent::Copied { .. } | BlockEvent::Removed { .. } | BlockEvent::Cleared => {
            unreachable!("a dump consists of stores")
        }
    }
}
