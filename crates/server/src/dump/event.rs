//! One event of a dump, as other indexers call it a router event.

use flash_indexer_core::hashing::Salt;
use flash_indexer_core::{Block, LocalHash, SequenceHash, Tier};
use serde::de::{self, Deserializer, IgnoredAny, SeqAccess};
use serde::{Deserialize, Serialize, Serializer};

use super::READ_EVENT_BLOCKS_MAX;
use crate::hashes::{AnyHash, HashForm, ShownHash};
use crate::instance::{InstanceId, ModelKey};

/// An event that is written.
#[derive(Serialize)]
pub(super) struct RouterEvent<'a> {
    pub(super) worker_id: &'a InstanceId,
    pub(super) storage_tier: &'static str,
    pub(super) event: CacheEvent<'a>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(super) model: Option<ModelFields<'a>>,
}

/// The model that a line belongs to, for readers that look at one line at a time.
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

#[derive(Serialize)]
pub(super) struct Stored<'a> {
    parent_hash: Option<ShownHash>,
    /// Positions follow from parents.
    start_position: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    copies: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "salt_digits")]
    salt: Option<Salt>,
    blocks: ShownBlocks<'a>,
}

impl<'a> Stored<'a> {
    pub(super) fn new(
        parent: Option<SequenceHash>,
        copies: u32,
        salt: Option<Salt>,
        blocks: &'a [Block],
        hashes: HashForm,
    ) -> Self {
        Self {
            parent_hash: parent.map(|parent| ShownHash(parent.0, hashes)),
            start_position: None,
            copies: (copies > 1).then_some(copies),
            salt,
            blocks: ShownBlocks(blocks, hashes),
        }
    }
}

struct ShownBlocks<'a>(&'a [Block], HashForm);

impl Serialize for ShownBlocks<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let shown = |hash| ShownHash(hash, self.1);
        serializer.collect_seq(self.0.iter().map(|block| StoredBlock {
            block_hash: shown(block.sequence.0),
            tokens_hash: shown(block.local.0),
            mm_extra_info: None,
        }))
    }
}

#[derive(Serialize)]
struct StoredBlock {
    block_hash: ShownHash,
    tokens_hash: ShownHash,
    /// Multimodal items are part of `tokens_hash`.
    mm_extra_info: Option<()>,
}

fn salt_digits<S: Serializer>(salt: &Option<Salt>, serializer: S) -> Result<S::Ok, S::Error> {
    match salt {
        Some(salt) => serializer.collect_str(&format_args!("{:016x}", salt.to_bits())),
        None => serializer.serialize_none(),
    }
}

/// The part of an event that is read.
#[derive(Deserialize)]
pub(super) struct ReadEvent {
    pub(super) dp_rank: Option<u32>,
    pub(super) data: ReadData,
}

#[derive(Deserialize)]
pub(super) struct ReadData {
    pub(super) stored: ReadStored,
}

#[derive(Deserialize)]
pub(super) struct ReadStored {
    pub(super) parent_hash: Option<AnyHash>,
    pub(super) copies: Option<u32>,
    #[serde(default, deserialize_with = "salt")]
    pub(super) salt: Option<Salt>,
    #[serde(deserialize_with = "blocks")]
    pub(super) blocks: Vec<Block>,
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
    struct Visitor;
    impl<'de> de::Visitor<'de> for Visitor {
        type Value = Vec<Block>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a list of blocks with block_hash and tokens_hash")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Block>, A::Error> {
            let mut blocks = Vec::new();
            while blocks.len() < READ_EVENT_BLOCKS_MAX {
                let Some(ReadBlock { block_hash, tokens_hash }) = list.next_element()? else { return Ok(blocks) };
                blocks.push(Block { sequence: SequenceHash(block_hash.0), local: LocalHash(tokens_hash.0) });
            }
            match list.next_element::<IgnoredAny>()? {
                None => Ok(blocks),
                Some(_) => Err(de::Error::custom(format!("an event has more than {READ_EVENT_BLOCKS_MAX} blocks"))),
            }
        }
    }
    deserializer.deserialize_seq(Visitor)
}

/// The memory that an event names; older indexers know device memory only and name none.
#[derive(Clone, Copy)]
pub(super) struct ReadTier(pub(super) Tier);

impl<'de> Deserialize<'de> for ReadTier {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let tier = Tier::ALL.into_iter().find(|tier| tier.as_str().eq_ignore_ascii_case(&name));
        tier.map(Self).ok_or_else(|| de::Error::custom(format!("{name:?} is not a storage_tier")))
    }
}
