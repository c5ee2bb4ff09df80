//! JSON of one event of a dump, which other indexers call a router event.

use flash_indexer_core::groups::{BlockLink, GroupId, SecondaryGroup};
use flash_indexer_core::hashing::{BlockSize, Salt};
use flash_indexer_core::{Block, LocalHash, SequenceHash, Tier};
use flash_indexer_types::hashes::{AnyHash, FormattedHash, HashForm};
use flash_indexer_types::{InstanceId, ModelKey};
use flash_indexer_wire::Age;
use serde::de::{self, Deserializer, IgnoredAny, SeqAccess};
use serde::{Deserialize, Serialize, Serializer};

use super::READ_EVENT_BLOCKS_MAX;
use super::groups::{WindowRecord, size_record};

/// Event as it is written.
#[derive(Serialize)]
pub(super) struct RouterEvent<'a> {
    pub(super) worker_id: &'a InstanceId,
    pub(super) storage_tier: &'static str,
    pub(super) event: CacheEvent<'a>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(super) model: Option<ModelFields<'a>>,
}

/// Model of a line, for readers that process single lines.
#[derive(Serialize)]
pub(super) struct ModelFields<'a> {
    model_name: &'a str,
    tenant_id: &'a str,
    block_size: u32,
}

impl<'a> ModelFields<'a> {
    pub(super) fn new(key: &'a ModelKey, block_size: u32) -> Self {
        Self { model_name: &key.model_name, tenant_id: &key.tenant_id, block_size }
    }
}

#[derive(Serialize)]
pub(super) struct CacheEvent<'a> {
    pub(super) event_id: u64,
    pub(super) dp_rank: u32,
    pub(super) data: Data<'a>,
}

#[derive(Serialize)]
pub(super) struct Data<'a> {
    pub(super) stored: Stored<'a>,
}

/// Chain of blocks with equal annotations: each block is the parent of the next.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run<'a> {
    pub(super) parent: Option<SequenceHash>,
    pub(super) blocks: &'a [Block],
    pub(super) mark: BlockAnnotations,
}

/// Annotations of blocks in a dump.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct BlockAnnotations {
    /// Salt that the blocks inherit.
    pub(super) salt: Option<Salt>,
    /// Age of the blocks in the decoder state, if they are in it.
    pub(super) remembered: Option<Age>,
}

#[derive(Serialize)]
pub(super) struct Stored<'a> {
    #[serde(flatten)]
    run: ShownRun<'a>,
    /// Always null: positions follow from parents.
    start_position: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    copies: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<StoredInGroup<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gone: Option<ShownRun<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<ShownRun<'a>>,
}

#[derive(Serialize)]
struct ShownRun<'a> {
    parent_hash: Option<FormattedHash>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "salt_digits")]
    salt: Option<Salt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remembered: Option<Age>,
    blocks: ShownBlocks<'a>,
}

impl<'a> ShownRun<'a> {
    fn new(Run { parent, blocks, mark }: Run<'a>, hashes: HashForm) -> Self {
        Self {
            parent_hash: parent.map(|parent| FormattedHash(parent.0, hashes)),
            salt: mark.salt,
            remembered: mark.remembered,
            blocks: ShownBlocks(blocks, hashes),
        }
    }
}

#[derive(Serialize)]
struct StoredInGroup<'a> {
    group: u32,
    needs: WindowRecord,
    #[serde(skip_serializing_if = "Option::is_none")]
    block_size: Option<u32>,
    blocks: ShownHashes<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    links: Option<ShownLinks<'a>>,
}

impl<'a> Stored<'a> {
    pub(super) fn new(run: Run<'a>, copies: u32, hashes: HashForm) -> Self {
        Self {
            run: ShownRun::new(run, hashes),
            start_position: None,
            copies: (copies > 1).then_some(copies),
            group: None,
            gone: None,
            kept: None,
        }
    }

    /// Event of a secondary cache group, without blocks of the primary group.
    pub(super) fn in_group(
        (group, registered): (SecondaryGroup, BlockSize),
        copies: u32,
        blocks: &'a [SequenceHash],
        hashes: HashForm,
    ) -> Self {
        let group = StoredInGroup::new(group, registered, ShownHashes(blocks, hashes));
        Self { group: Some(group), ..Self::empty(copies, hashes) }
    }

    /// Event of links between blocks of a secondary cache group.
    pub(super) fn links_in_group(
        (group, registered): (SecondaryGroup, BlockSize),
        links: &'a [BlockLink],
        hashes: HashForm,
    ) -> Self {
        let group = StoredInGroup::new(group, registered, ShownHashes(&[], hashes));
        let group = StoredInGroup { links: Some(ShownLinks(links, hashes)), ..group };
        Self { group: Some(group), ..Self::empty(1, hashes) }
    }

    /// Event of recent blocks that the rank does not hold.
    pub(super) fn not_held(run: Run<'a>, hashes: HashForm) -> Self {
        Self { gone: Some(ShownRun::new(run, hashes)), ..Self::empty(1, hashes) }
    }

    /// Event of removed blocks that the rank keeps for their descendants.
    pub(super) fn kept(run: Run<'a>, hashes: HashForm) -> Self {
        Self { kept: Some(ShownRun::new(run, hashes)), ..Self::empty(1, hashes) }
    }

    fn empty(copies: u32, hashes: HashForm) -> Self {
        Self::new(Run { parent: None, blocks: &[], mark: BlockAnnotations::default() }, copies, hashes)
    }
}

impl<'a> StoredInGroup<'a> {
    fn new(group: SecondaryGroup, registered: BlockSize, blocks: ShownHashes<'a>) -> Self {
        let SecondaryGroup { id: GroupId(group), window, size } = group;
        Self { group, needs: window.into(), block_size: size_record(size, registered), blocks, links: None }
    }
}

/// Links as pairs: a block, and the one before it.
struct ShownLinks<'a>(&'a [BlockLink], HashForm);

impl Serialize for ShownLinks<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let shown = |hash: SequenceHash| FormattedHash(hash.0, self.1);
        serializer.collect_seq(self.0.iter().map(|link| (shown(link.block), link.before.map(shown))))
    }
}

struct ShownHashes<'a>(&'a [SequenceHash], HashForm);

impl Serialize for ShownHashes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|hash| FormattedHash(hash.0, self.1)))
    }
}

struct ShownBlocks<'a>(&'a [Block], HashForm);

impl Serialize for ShownBlocks<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let shown = |hash| FormattedHash(hash, self.1);
        serializer.collect_seq(self.0.iter().map(|block| StoredBlock {
            block_hash: shown(block.sequence.0),
            tokens_hash: shown(block.local.0),
            mm_extra_info: None,
        }))
    }
}

#[derive(Serialize)]
struct StoredBlock {
    block_hash: FormattedHash,
    tokens_hash: FormattedHash,
    /// Multimodal items are part of `tokens_hash`.
    mm_extra_info: Option<()>,
}

fn salt_digits<S: Serializer>(salt: &Option<Salt>, serializer: S) -> Result<S::Ok, S::Error> {
    match salt {
        Some(salt) => serializer.collect_str(&format_args!("{:016x}", salt.to_bits())),
        None => serializer.serialize_none(),
    }
}

/// Event as it is read; other fields are ignored.
#[derive(Deserialize)]
pub(super) struct ReadEvent {
    pub(super) dp_rank: Option<u32>,
    pub(super) data: ReadData,
}

#[derive(Deserialize)]
pub(super) struct ReadData {
    pub(super) stored: StoredFields,
}

#[derive(Deserialize)]
pub(super) struct StoredFields {
    #[serde(rename = "parent_hash", default, deserialize_with = "parent")]
    pub(super) parent: Option<SequenceHash>,
    pub(super) copies: Option<u32>,
    #[serde(default, deserialize_with = "salt")]
    pub(super) salt: Option<Salt>,
    #[serde(deserialize_with = "blocks")]
    pub(super) blocks: Vec<Block>,
    pub(super) remembered: Option<Age>,
    pub(super) group: Option<ReadGroup>,
    pub(super) gone: Option<RecentBlocks>,
    pub(super) kept: Option<UnheldAncestors>,
}

/// Chain of blocks that a rank does not hold, with descendants that it holds.
#[derive(Debug, Deserialize)]
pub struct UnheldAncestors {
    /// Parent of the first block; none at the start of a sequence.
    #[serde(rename = "parent_hash", default, deserialize_with = "parent")]
    pub parent: Option<SequenceHash>,
    /// Salt that later blocks inherit.
    #[serde(default, deserialize_with = "salt")]
    pub salt: Option<Salt>,
    /// The blocks.
    #[serde(deserialize_with = "blocks")]
    pub blocks: Vec<Block>,
}

/// Chain of blocks that a rank does not hold, and that its engine may name again by sequence hash only.
#[derive(Debug, Deserialize)]
pub struct RecentBlocks {
    /// Age of the blocks in the decoder state.
    #[serde(rename = "remembered")]
    pub age: Age,
    /// Parent of the first block; none at the start of a sequence.
    #[serde(rename = "parent_hash", default, deserialize_with = "parent")]
    pub parent: Option<SequenceHash>,
    /// Salt that the blocks inherit.
    #[serde(default, deserialize_with = "salt")]
    pub salt: Option<Salt>,
    /// The blocks.
    #[serde(deserialize_with = "blocks")]
    pub blocks: Vec<Block>,
}

#[derive(Deserialize)]
pub(super) struct ReadGroup {
    pub(super) group: u32,
    pub(super) needs: WindowRecord,
    pub(super) block_size: Option<u32>,
    #[serde(deserialize_with = "sequence_hashes")]
    pub(super) blocks: Vec<SequenceHash>,
    #[serde(default, deserialize_with = "links")]
    pub(super) links: Vec<BlockLink>,
}

fn parent<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SequenceHash>, D::Error> {
    Ok(Option::<AnyHash>::deserialize(deserializer)?.map(sequence_hash))
}

fn sequence_hash(AnyHash(hash): AnyHash) -> SequenceHash {
    SequenceHash(hash)
}

fn salt<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Salt>, D::Error> {
    let Some(digits) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    let bits = u64::from_str_radix(&digits, 16);
    bits.map(|bits| Some(Salt::from_bits(bits))).map_err(|_| de::Error::custom(format!("{digits:?} is not a salt")))
}

fn blocks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Block>, D::Error> {
    #[derive(Deserialize)]
    struct ReadBlock {
        block_hash: AnyHash,
        tokens_hash: AnyHash,
    }
    let expected = "a list of blocks with block_hash and tokens_hash";
    let convert =
        |read: ReadBlock| Block { sequence: sequence_hash(read.block_hash), local: LocalHash(read.tokens_hash.0) };
    deserializer.deserialize_seq(LimitedList { expected, convert })
}

fn sequence_hashes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SequenceHash>, D::Error> {
    deserializer.deserialize_seq(LimitedList { expected: "a list of block hashes", convert: sequence_hash })
}

fn links<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<BlockLink>, D::Error> {
    let convert = |(block, before): (AnyHash, Option<AnyHash>)| BlockLink {
        block: sequence_hash(block),
        before: before.map(sequence_hash),
    };
    deserializer.deserialize_seq(LimitedList { expected: "a list of pairs of block hashes", convert })
}

/// List with at most [`READ_EVENT_BLOCKS_MAX`] entries.
struct LimitedList<R, T> {
    expected: &'static str,
    convert: fn(R) -> T,
}

impl<'de, R: Deserialize<'de>, T> de::Visitor<'de> for LimitedList<R, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut entries = Vec::new();
        while entries.len() < READ_EVENT_BLOCKS_MAX {
            let Some(read) = list.next_element()? else { return Ok(entries) };
            entries.push((self.convert)(read));
        }
        match list.next_element::<IgnoredAny>()? {
            None => Ok(entries),
            Some(_) => Err(de::Error::custom(format!("an event has more than {READ_EVENT_BLOCKS_MAX} blocks"))),
        }
    }
}

/// Tier of an event. Older indexers support only device memory and write none.
#[derive(Clone, Copy)]
pub(super) struct ReadTier(pub(super) Tier);

impl<'de> Deserialize<'de> for ReadTier {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let tier = Tier::ALL.into_iter().find(|tier| tier.as_str().eq_ignore_ascii_case(&name));
        tier.map(Self).ok_or_else(|| de::Error::custom(format!("{name:?} is not a storage_tier")))
    }
}
