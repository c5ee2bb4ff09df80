//! The contents of a dump, sorted for comparison.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use flash_indexer_core::groups::{GroupChange, GroupEvent};
use flash_indexer_core::{SequenceHash, Tier};
use flash_indexer_server::{InstanceId, ModelKey};
use flash_indexer_snapshot::{DumpEntry, DumpSink, GroupRecord, RankName, RankRecord, Rejection, StoredBlocks, Tally};

use crate::dump::Progress;

/// A rank, ordered by model, instance and number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RankKey {
    model: ModelKey,
    instance: InstanceId,
    dp_rank: u32,
}

impl fmt::Display for RankKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} instance {} rank {}", self.model, self.instance, self.dp_rank)
    }
}

/// A block in a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BlockKey {
    tier: Tier,
    sequence: SequenceHash,
}

impl fmt::Display for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.tier.as_str(), self.sequence.0)
    }
}

/// Blocks, each with a digest of its content, parent and copies.
type Digests = Vec<(BlockKey, u64)>;

/// The contents of one rank.
#[derive(Debug, Default)]
pub(super) struct RankContents {
    pub(super) record: Option<RankRecord>,
    blocks: Digests,
    /// Blocks in secondary cache groups, by group number.
    groups: BTreeMap<u32, Digests>,
}

impl RankContents {
    pub(super) fn block_count(&self) -> usize {
        self.blocks.len()
    }

    fn names(&self, group: u32) -> &[(BlockKey, u64)] {
        self.groups.get(&group).map(Vec::as_slice).unwrap_or_default()
    }
}

/// The contents of a dump.
pub(super) struct DumpContents {
    pub(super) progress: Progress,
    model_name: Option<String>,
    tenant_id: Option<String>,
    pub(super) ranks: BTreeMap<RankKey, RankContents>,
    /// The first models that were not selected.
    pub(super) left_out: BTreeSet<ModelKey>,
}

/// Maximum number of models that an error names.
const MODELS_NAMED: usize = 8;

impl DumpContents {
    /// No contents yet. Of a dump, only the ranks of a model and a tenant are kept: a file contains all of them.
    pub(super) fn new(model_name: Option<String>, tenant_id: Option<String>) -> Self {
        Self { progress: Progress::new(), model_name, tenant_id, ranks: BTreeMap::new(), left_out: BTreeSet::new() }
    }

    /// Sorts the blocks of a completely read dump.
    pub(super) fn finish(&mut self) {
        self.progress.bar.finish_and_clear();
        for rank in self.ranks.values_mut() {
            rank.blocks.sort_unstable();
            rank.groups.values_mut().for_each(|names| names.sort_unstable());
        }
    }

    pub(super) fn blocks(&self) -> usize {
        self.ranks.values().map(RankContents::block_count).sum()
    }

    /// Keeps the name of a model that is not selected.
    pub(super) fn leave_out(&mut self, model: ModelKey) {
        if self.left_out.len() < MODELS_NAMED {
            self.left_out.insert(model);
        }
    }

    fn is_selected(&self, model: &ModelKey) -> bool {
        self.model_name.as_ref().is_none_or(|name| *name == model.model_name)
            && self.tenant_id.as_ref().is_none_or(|tenant| *tenant == model.tenant_id)
    }
}

impl DumpSink for DumpContents {
    fn rank(&mut self, record: RankRecord) -> Result<(), Rejection> {
        let key = RankKey { model: record.key(), instance: record.instance_id.clone(), dp_rank: record.dp_rank };
        if self.is_selected(&key.model) {
            self.ranks.entry(key).or_default().record = Some(record);
        } else {
            self.leave_out(key.model);
        }
        Ok(())
    }

    fn entry(&mut self, rank: RankName<'_>, entry: DumpEntry) -> Result<(), Rejection> {
        self.progress.blocks(entry.block_count());
        if !self.is_selected(rank.key) {
            return Ok(());
        }
        let key = RankKey { model: rank.key.clone(), instance: rank.instance.clone(), dp_rank: rank.dp_rank.0 };
        let held = self.ranks.entry(key).or_default();
        match entry {
            DumpEntry::Blocks(StoredBlocks { tier, mut parent, copies, blocks, .. }) => {
                for block in &blocks {
                    let mut one = Tally::default();
                    one.add(tier, copies, parent, std::slice::from_ref(block));
                    held.blocks.push((BlockKey { tier, sequence: block.sequence }, one.digest));
                    parent = Some(block.sequence);
                }
            }
            DumpEntry::Secondary(GroupChange { group, event: GroupEvent::Stored { tier, copies, blocks } }) => {
                let held = held.groups.entry(group.id.0).or_default();
                for sequence in blocks {
                    let mut one = Tally::default();
                    one.add_sequence_hashes(tier, copies, &[sequence]);
                    held.push((BlockKey { tier, sequence }, one.digest));
                }
            }
            // Links follow from the sequence hashes, and the other blocks are not held.
            DumpEntry::Secondary(_) | DumpEntry::Recent(_) | DumpEntry::Kept(_) => {}
        }
        Ok(())
    }
}

/// Differences between two ranks.
#[derive(Debug, Default)]
pub(super) struct Difference {
    pub(super) blocks: BlockDifference,
    /// Differences in secondary cache groups, by group number.
    pub(super) groups: BTreeMap<u32, BlockDifference>,
    /// Differing fields of the registration and roles of cache groups, with both values.
    pub(super) fields: Vec<(String, String, String)>,
}

impl Difference {
    /// Linear in the number of blocks.
    pub(super) fn of(a: &RankContents, b: &RankContents) -> Self {
        let mut groups: BTreeMap<u32, BlockDifference> = BTreeMap::new();
        for &group in a.groups.keys().chain(b.groups.keys()) {
            groups.entry(group).or_insert_with(|| BlockDifference::of(a.names(group), b.names(group)));
        }
        groups.retain(|_, difference| !difference.is_none());
        let mut fields = registrations(a, b);
        fields.extend(group_roles(a, b));
        Self { blocks: BlockDifference::of(&a.blocks, &b.blocks), groups, fields }
    }

    pub(super) fn is_none(&self) -> bool {
        self.blocks.is_none() && self.groups.is_empty() && self.fields.is_empty()
    }
}

/// Differences between two sorted lists of blocks.
#[derive(Debug, Default)]
pub(super) struct BlockDifference {
    pub(super) only_a: Vec<BlockKey>,
    pub(super) only_b: Vec<BlockKey>,
    /// Blocks in both, with different content, parent or copies.
    pub(super) changed: Vec<BlockKey>,
}

impl BlockDifference {
    fn of(a: &[(BlockKey, u64)], b: &[(BlockKey, u64)]) -> Self {
        let mut difference = Self::default();
        let (mut in_a, mut in_b) = (a.iter().peekable(), b.iter().peekable());
        loop {
            match (in_a.peek(), in_b.peek()) {
                (Some(&(key_a, digest_a)), Some(&(key_b, digest_b))) if key_a == key_b => {
                    if digest_a != digest_b {
                        difference.changed.push(*key_a);
                    }
                    in_a.next();
                    in_b.next();
                }
                (Some((key, _)), other) if other.is_none_or(|(other, _)| key < other) => {
                    difference.only_a.push(*key);
                    in_a.next();
                }
                (_, Some((key, _))) => {
                    difference.only_b.push(*key);
                    in_b.next();
                }
                (_, None) => return difference,
            }
        }
    }

    fn is_none(&self) -> bool {
        self.only_a.is_empty() && self.only_b.is_empty() && self.changed.is_empty()
    }
}

/// Differing roles of cache groups; none if a dump does not list them.
fn group_roles(a: &RankContents, b: &RankContents) -> Vec<(String, String, String)> {
    let groups = |rank: &RankContents| rank.record.as_ref().and_then(|record| record.groups.clone());
    let (Some(a), Some(b)) = (groups(a), groups(b)) else { return Vec::new() };
    let role_in = |groups: &[GroupRecord], number: u32| {
        let group = groups.iter().find(|group| group.group == number);
        group.map_or_else(
            || "absent".to_owned(),
            |group| match group.block_size {
                None => group.role.to_string(),
                Some(tokens) => format!("{}, blocks of {tokens} tokens", group.role),
            },
        )
    };
    let numbers: BTreeSet<u32> = a.iter().chain(&b).map(|group| group.group).collect();
    let roles =
        numbers.into_iter().map(|number| (format!("cache group {number}"), role_in(&a, number), role_in(&b, number)));
    roles.filter(|(_, a, b)| a != b).collect()
}

/// Differing fields of the registrations; none if a dump does not list them.
fn registrations(a: &RankContents, b: &RankContents) -> Vec<(String, String, String)> {
    let (Some(a), Some(b)) = (&a.record, &b.record) else { return Vec::new() };
    let mut fields = vec![("block_size", a.block_size.to_string(), b.block_size.to_string())];
    if let (Some(a), Some(b)) = (&a.engine, &b.engine) {
        let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "none".to_owned());
        fields.push(("endpoint", a.endpoint.clone(), b.endpoint.clone()));
        fields.push(("replay_endpoint", text(&a.replay_endpoint), text(&b.replay_endpoint)));
        fields.push(("lora_name", text(&a.lora_name), text(&b.lora_name)));
        fields.push(("removal", a.removal.as_str().to_owned(), b.removal.as_str().to_owned()));
    }
    let differing = fields.into_iter().filter(|(_, a, b)| a != b);
    differing.map(|(field, a, b)| (field.to_owned(), a, b)).collect()
}
