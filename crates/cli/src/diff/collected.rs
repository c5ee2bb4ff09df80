//! What a dump says, in a form in which two can be compared.

use std::collections::BTreeMap;
use std::fmt;

use flash_indexer_core::{SequenceHash, Tier};
use flash_indexer_server::{InstanceId, ModelKey};
use flash_indexer_snapshot::{
    DumpEntry, DumpSink, GroupRecord, RankName, RankRecord, Refused, SecondaryBlocks, StoredBlocks, Tally,
};

use crate::dump::Progress;

/// Which rank, in the order in which people expect them.
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

/// Blocks with a digest of each.
type Digests = Vec<(BlockKey, u64)>;

/// What a rank holds.
#[derive(Debug, Default)]
pub(super) struct HeldRank {
    pub(super) record: Option<RankRecord>,
    blocks: Digests,
    /// What it holds in further cache groups, by number.
    groups: BTreeMap<u32, Digests>,
}

impl HeldRank {
    pub(super) fn block_count(&self) -> usize {
        self.blocks.len()
    }

    fn names(&self, group: u32) -> &[(BlockKey, u64)] {
        self.groups.get(&group).map(Vec::as_slice).unwrap_or_default()
    }
}

/// A whole dump.
pub(super) struct Collected {
    pub(super) progress: Progress,
    model_name: Option<String>,
    tenant_id: Option<String>,
    ranks: BTreeMap<RankKey, HeldRank>,
}

impl Collected {
    pub(super) fn new(progress: Progress) -> Self {
        Self { progress, model_name: None, tenant_id: None, ranks: BTreeMap::new() }
    }

    /// Takes only what fits: a file has everything.
    pub(super) fn only(&mut self, model_name: Option<&str>, tenant_id: Option<&str>) {
        self.model_name = model_name.map(str::to_owned);
        self.tenant_id = tenant_id.map(str::to_owned);
    }

    /// Everything is there.
    pub(super) fn finish(&mut self) {
        self.progress.bar.finish_and_clear();
        for rank in self.ranks.values_mut() {
            rank.blocks.sort_unstable();
            rank.groups.values_mut().for_each(|names| names.sort_unstable());
        }
    }

    pub(super) fn ranks(&self) -> impl Iterator<Item = &RankKey> {
        self.ranks.keys()
    }

    pub(super) fn rank(&self, key: &RankKey) -> Option<&HeldRank> {
        self.ranks.get(key)
    }

    pub(super) fn blocks(&self) -> usize {
        self.ranks.values().map(HeldRank::block_count).sum()
    }

    fn wants(&self, model: &ModelKey) -> bool {
        self.model_name.as_ref().is_none_or(|name| *name == model.model_name)
            && self.tenant_id.as_ref().is_none_or(|tenant| *tenant == model.tenant_id)
    }
}

impl DumpSink for Collected {
    fn rank(&mut self, record: RankRecord) -> Result<(), Refused> {
        let key = RankKey { model: record.key(), instance: record.instance_id.clone(), dp_rank: record.dp_rank };
        if self.wants(&key.model) {
            self.ranks.entry(key).or_default().record = Some(record);
        }
        Ok(())
    }

    fn entry(&mut self, rank: RankName<'_>, told: DumpEntry) -> Result<(), Refused> {
        self.progress.blocks(told.block_count());
        if !self.wants(rank.key) {
            return Ok(());
        }
        let key = RankKey { model: rank.key.clone(), instance: rank.instance.clone(), dp_rank: rank.dp_rank.0 };
        let held = self.ranks.entry(key).or_default();
        match told {
            DumpEntry::Blocks(StoredBlocks { tier, mut parent, copies, blocks, .. }) => {
                for block in &blocks {
                    let mut one = Tally::default();
                    one.add(tier, copies, parent, std::slice::from_ref(block));
                    held.blocks.push((BlockKey { tier, sequence: block.sequence }, one.digest));
                    parent = Some(block.sequence);
                }
            }
            // What is remembered is no difference in what is held.
            DumpEntry::Recent(_) => {}
            DumpEntry::Secondary(SecondaryBlocks { group, tier, copies, hashes: names }) => {
                let held = held.groups.entry(group.id.0).or_default();
                for sequence in names {
                    let mut one = Tally::default();
                    one.add_sequence_hashes(tier, copies, &[sequence]);
                    held.push((BlockKey { tier, sequence }, one.digest));
                }
            }
        }
        Ok(())
    }
}

/// How two accounts of a rank differ.
#[derive(Debug, Default)]
pub(super) struct Difference {
    pub(super) blocks: BlockDifference,
    /// In further cache groups, by number.
    pub(super) groups: BTreeMap<u32, BlockDifference>,
    /// Fields of the registration, and cache groups, with both values.
    pub(super) fields: Vec<(String, String, String)>,
}

impl Difference {
    /// Linear in the number of blocks.
    pub(super) fn of(a: &HeldRank, b: &HeldRank) -> Self {
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

/// How two lists of blocks differ.
#[derive(Debug, Default)]
pub(super) struct BlockDifference {
    pub(super) only_a: Vec<BlockKey>,
    pub(super) only_b: Vec<BlockKey>,
    pub(super) otherwise: Vec<BlockKey>,
}

impl BlockDifference {
    fn of(a: &[(BlockKey, u64)], b: &[(BlockKey, u64)]) -> Self {
        let mut difference = Self::default();
        let (mut in_a, mut in_b) = (a.iter().peekable(), b.iter().peekable());
        loop {
            match (in_a.peek(), in_b.peek()) {
                (Some(&(key_a, digest_a)), Some(&(key_b, digest_b))) if key_a == key_b => {
                    if digest_a != digest_b {
                        difference.otherwise.push(*key_a);
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
        self.only_a.is_empty() && self.only_b.is_empty() && self.otherwise.is_empty()
    }
}

/// What cache groups are, where it differs; not every dump tells.
fn group_roles(a: &HeldRank, b: &HeldRank) -> Vec<(String, String, String)> {
    let groups = |rank: &HeldRank| rank.record.as_ref().and_then(|record| record.groups.clone());
    let (Some(a), Some(b)) = (groups(a), groups(b)) else { return Vec::new() };
    let role_in = |groups: &[GroupRecord], number: u32| {
        let group = groups.iter().find(|group| group.group == number);
        group.map_or_else(|| "not there".to_owned(), |group| group.role.to_string())
    };
    let mut numbers: Vec<u32> = a.iter().chain(&b).map(|group| group.group).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let roles =
        numbers.into_iter().map(|number| (format!("cache group {number}"), role_in(&a, number), role_in(&b, number)));
    roles.filter(|(_, a, b)| a != b).collect()
}

/// What the engine is registered with, where it differs; not every dump tells.
fn registrations(a: &HeldRank, b: &HeldRank) -> Vec<(String, String, String)> {
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
