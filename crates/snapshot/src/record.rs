//! What a dump says of a rank besides its blocks.

use flash_indexer_core::hashing::TokenWindow;
use flash_indexer_wire::Cursor;
use serde::{Deserialize, Serialize};

use super::groups::GroupRecord;
use super::tally::{Tally, hex};
use flash_indexer_types::Trust;
use flash_indexer_types::names::{NameError, NameField, check_names};
use flash_indexer_types::{EngineKind, Removal};
use flash_indexer_types::{InstanceId, ModelKey};

/// A rank: whose it is, how its engine is reached, where its stream stood, and how much it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankRecord {
    /// The model.
    pub model_name: String,
    /// Whose it is.
    pub tenant_id: String,
    /// Tokens in a block.
    pub block_size: u32,
    /// The engine instance.
    pub instance_id: InstanceId,
    /// Its rank.
    pub dp_rank: u32,
    /// What it is registered with; nothing where only batches named it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineRecord>,
    /// The stream that its blocks came by, at the moment of which the dump tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamRecord>,
    /// What its blocks' content covers, and that of other ranks of the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<TokenWindowRecord>,
    /// Its blocks, counted and digested; of a hybrid model, those of the indexed cache group.
    pub holds: Tally,
    /// Its cache groups by number; nothing where the dump does not tell of groups at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<GroupRecord>>,
    /// Contents that its stream remembers because its engine offloads, counted and digested; nothing of other ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remembers: Option<Tally>,
}

impl RankRecord {
    /// Refuses names and endpoints that are too long.
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

    /// The model and tenant.
    #[must_use]
    pub fn key(&self) -> ModelKey {
        ModelKey { model_name: self.model_name.clone(), tenant_id: self.tenant_id.clone() }
    }
}

/// What a rank is registered with, in the words of `POST /register`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineRecord {
    /// Where the engine publishes.
    pub endpoint: String,
    /// Where it replays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay_endpoint: Option<String>,
    /// Adapter of its blocks that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora_name: Option<String>,
    /// Its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineKind>,
    /// What its removals mean.
    #[serde(default)]
    pub removal: Removal,
    /// Whether it was registered with extra keys.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub extra_keys: bool,
    /// The source of discovery that keeps it registered; nothing where that is done by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// Where a stream stood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamRecord {
    /// The last message whose effect is in the dump; nothing before the first one.
    pub cursor: Option<CursorRecord>,
    /// Lives of the engine that were seen to end.
    pub epoch: u64,
    /// How far the blocks can be believed.
    pub trust: Trust,
}

/// A [`Cursor`] in a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CursorRecord {
    /// The message's number.
    pub sequence: u64,
    /// Digest of its payload, in hexadecimal digits.
    #[serde(with = "hex")]
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

/// Which tokens a block's hash covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenWindowRecord {
    /// Its own.
    Block,
    /// Its own and the one that follows.
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

/// The first line of a dump in lines.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Start {
    pub(super) version: u32,
}

/// Its last line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) ranks: u64,
    pub(super) holds: Tally,
}
