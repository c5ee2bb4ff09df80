//! What a dump says, in a form in which two can be compared.

use std::collections::BTreeMap;
use std::fmt;

use flash_indexer_core::{SequenceHash, Tier};
use flash_indexer_server::dump::{DumpSink, RankName, RankRecord, Refused, StoredBlocks, Tally};
use flash_indexer_server::{InstanceId, ModelKey};

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

/// What a rank holds: a digest for each block.
#[derive(Debug, Default)]
pub(super) struct HeldRank {
    pub(super) record: Option<RankRecord>,
    blocks: Vec<(BlockKey, u64)>,
}

impl HeldRank {
    pub(super) fn block_count(&self) -> usize {
        self.blocks.len()
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

    fn stored(&mut self, rank: RankName<'_>, stored: StoredBlocks) -> Result<(), Refused> {
        self.progress.blocks(stored.blocks.len());
        if !self.wants(rank.key) {
            return Ok(());
        }
        let key = RankKey { model: rank.key.clone(), instance: rank.instance.clone(), dp_rank: rank.dp_rank.0 };
        let held = self.ranks.entry(key).or_default();
        let mut parent = stored.parent;
        for block in &stored.blocks {
            let mut one = Tally::default();
            one.add(stored.tier, stored.copies, parent, std::slice::from_ref(block));
            held.blocks.push((BlockKey { tier: stored.tier, sequence: block.sequence }, one.digest));
            parent = Some(block.sequence);
        }
        Ok(())
    }
}

/// How two accounts of a rank differ.
#[derive(Debug, Default)]
pub(super) struct Difference {
    pub(super) only_a: Vec<BlockKey>,
    pub(super) only_b: Vec<BlockKey>,
    pub(super) otherwise: Vec<BlockKey>,
    /// Fields of the registration with both values.
    pub(super) registration: Vec<(&'static str, String, String)>,
}

impl Difference {
    /// Linear in the number of blocks.
    pub(super) fn of(a: &HeldRank, b: &HeldRank) -> Self {
        let mut difference = Self { registration: registrations(a, b), ..Self::default() };
        let (mut in_a, mut in_b) = (a.blocks.iter().peekable(), b.blocks.iter().peekable());
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

    pub(super) fn is_none(&self) -> bool {
        self.only_a.is_empty() && self.only_b.is_empty() && self.otherwise.is_empty() && self.registration.is_empty()
    }
}

/// What the engine is registered with, where it differs; not every dump tells.
fn registrations(a: &HeldRank, b: &HeldRank) -> Vec<(&'static str, String, String)> {
    let (Some(a), Some(b)) = (&a.record, &b.record) else { return Vec::new() };
    let mut fields = vec![("block_size", a.block_size.to_string(), b.block_size.to_string())];
    if let (Some(a), Some(b)) = (&a.engine, &b.engine) {
        let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "none".to_owned());
        fields.push(("endpoint", a.endpoint.clone(), b.endpoint.clone()));
        fields.push(("replay_endpoint", text(&a.replay_endpoint), text(&b.replay_endpoint)));
        fields.push(("lora_name", text(&a.lora_name), text(&b.lora_name)));
        fields.push(("removal", format!("{:?}", a.removal), format!("{:?}", b.removal)));
    }
    fields.retain(|(_, a, b)| a != b);
    fields
}
