//! Records of ranks in a dump: registration, stream position and totals.

use std::num::NonZeroUsize;

use flash_indexer_core::hashing::{BlockSize, TokenWindow};
use flash_indexer_types::names::{NameError, NameField, check_names};
use flash_indexer_types::{EngineKind, InstanceId, ModelKey, RemovalMeaning, Trust};
use flash_indexer_wire::Cursor;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::groups::{GroupRecord, GroupSizeError};
use super::tally::{Tally, hex};

/// Record of a rank: identity, registration, stream position and totals.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RankRecord {
    /// The model.
    pub model_name: String,
    /// The tenant.
    pub tenant_id: String,
    /// Tokens in a block.
    pub block_size: u32,
    /// The engine instance.
    pub instance_id: InstanceId,
    /// The data-parallel rank.
    pub dp_rank: u32,
    /// Registration of the rank; none for a rank that only batches named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineRecord>,
    /// Position of the rank's stream at the moment of the dump.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamRecord>,
    /// Token windows of the local hashes of the model's blocks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<TokenWindowRecord>,
    /// Count and digest of the rank's blocks; of a hybrid model, of the primary cache group.
    pub holds: Tally,
    /// Cache groups of the rank by number; none if the dump has no groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<GroupRecord>>,
    /// Count and digest of the decoder state of an engine that offloads; none for other engines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remembers: Option<Tally>,
}

impl RankRecord {
    /// Rejects names and endpoints that are too long.
    pub(super) fn check_names(&self) -> Result<(), NameError> {
        check_names([(NameField::ModelName, Some(&self.model_name)), (NameField::TenantId, Some(&self.tenant_id))])?;
        let Some(engine) = &self.engine else { return Ok(()) };
        check_names([
            (NameField::Endpoint, Some(&engine.endpoint)),
            (NameField::ReplayEndpoint, engine.replay_endpoint.as_deref()),
            (NameField::LoraName, engine.lora_name.as_deref()),
            (NameField::Source, engine.source.as_deref()),
        ])
    }

    /// Rejects block sizes that no cache group of a model with this size can have.
    pub(super) fn check_groups(&self, registered: BlockSize) -> Result<(), GroupSizeError> {
        self.groups.iter().flatten().try_for_each(|group| group.check(registered))
    }

    /// The model and tenant.
    #[must_use]
    pub fn key(&self) -> ModelKey {
        ModelKey { model_name: self.model_name.clone(), tenant_id: self.tenant_id.clone() }
    }
}

/// Registration of a rank, with the fields of `POST /register`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EngineRecord {
    /// Endpoint at which the engine publishes.
    pub endpoint: String,
    /// Endpoint at which the engine replays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay_endpoint: Option<String>,
    /// Adapter of blocks whose events name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora_name: Option<String>,
    /// Kind of the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineKind>,
    /// Meaning of the engine's removals.
    #[serde(default)]
    pub removal: RemovalMeaning,
    /// Whether the registration has extra keys.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub extra_keys: bool,
    /// Blocks that the cache of an engine without events has room for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<usize>, minimum = 1)]
    pub cache_blocks: Option<NonZeroUsize>,
    /// Caches of hosts and pools that the rank is attached to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared_caches: Vec<InstanceId>,
    /// Discovery source that registered the rank; none for a manual registration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// Position of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamRecord {
    /// Last message whose effect is in the dump; none before the first message.
    pub cursor: Option<CursorRecord>,
    /// Epoch of the engine.
    pub epoch: u64,
    /// Trust state of the rank.
    pub trust: Trust,
    /// Whether ranks of the stream that the dump does not list have lost changes, or may have. Such a rank is degraded when
    /// the stream names it later.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unlisted_degraded: bool,
}

/// [`Cursor`] in a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CursorRecord {
    /// Sequence number of the message.
    pub sequence: u64,
    /// Digest of the message's payload, in hexadecimal digits.
    #[serde(with = "hex")]
    #[schema(value_type = String)]
    pub payload_digest: u64,
}

impl From<Cursor> for CursorRecord {
    fn from(cursor: Cursor) -> Self {
        Self { sequence: cursor.sequence, payload_digest: cursor.payload_digest }
    }
}

impl From<CursorRecord> for Cursor {
    fn from(cursor: CursorRecord) -> Self {
        Self { sequence: cursor.sequence, payload_digest: cursor.payload_digest }
    }
}

/// Tokens that a local hash covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenWindowRecord {
    /// The tokens of the block.
    Block,
    /// The tokens of the block and the next token.
    BlockAndNext,
}

impl From<TokenWindow> for TokenWindowRecord {
    fn from(window: TokenWindow) -> Self {
        match window {
            TokenWindow::Block => Self::Block,
            TokenWindow::BlockAndNext => Self::BlockAndNext,
        }
    }
}

impl From<TokenWindowRecord> for TokenWindow {
    fn from(window: TokenWindowRecord) -> Self {
        match window {
            TokenWindowRecord::Block => Self::Block,
            TokenWindowRecord::BlockAndNext => Self::BlockAndNext,
        }
    }
}

/// First line of a dump in the form of lines.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Start {
    pub(super) version: u32,
}

/// Last line of a dump in the form of lines.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) ranks: u64,
    pub(super) holds: Tally,
}
