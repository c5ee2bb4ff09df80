//! Streams recorded from real engines: JSON lines, in order of observation.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_wire::{EngineEvent, LiveMessage, decode_batch};
use serde::{Deserialize, Deserializer};

use crate::publisher::ReplayFraming;

/// Failure to read a recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file cannot be opened or read.
    #[error("failed to read {path}: {source}; check its name and permissions")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line is not one of a recording.
    #[error("line {line} of {path} is not a line of a recording: {reason}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number, counted from one.
        line: usize,
        /// Why.
        reason: String,
    },
    /// No message stores a block, so the block size is unknown.
    #[error("{path} stores no block, so the block size is unknown; give a recording with BlockStored events")]
    NoBlocks {
        /// The file.
        path: PathBuf,
    },
}

/// The base model of recordings; any other model name is an adapter's.
const BASE_MODEL: &str = "tiny";

/// Frames of a replayed message in the older framing.
const FRAMES_WITHOUT_TOPIC: usize = 3;

/// A published message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedMessage {
    /// When it was received, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The publisher's topic.
    pub topic: Vec<u8>,
    /// Its sequence number in the publisher's epoch.
    pub sequence: u64,
    /// The batch, in MessagePack.
    pub payload: Vec<u8>,
    /// The rank that published it.
    pub dp_rank: DpRank,
}

/// A request that the engine finished.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RecordedRequest {
    /// Its id in the recording.
    pub id: String,
    /// The recorder's test phase.
    pub phase: String,
    /// Whether other requests ran at the same time, which makes the cache's state at its start unknown.
    pub concurrent: bool,
    /// The adapter it used.
    #[serde(rename = "model", deserialize_with = "adapter")]
    pub lora_name: Option<String>,
    /// The salt it was sent with.
    pub cache_salt: Option<String>,
    /// SGLang's `extra_key`, which separates cached blocks without being part of hashes or events.
    pub extra_key: Option<String>,
    /// The rank it was sent to, where the recorder chose one.
    #[serde(default, deserialize_with = "dp_rank")]
    pub dp_rank: Option<DpRank>,
    /// Tokens of its prompt.
    pub prompt: Vec<u32>,
    /// Cached prompt tokens that the engine reported.
    pub cached_tokens: usize,
}

/// One line of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordedLine {
    /// A published message.
    Message(RecordedMessage),
    /// A finished request.
    Request(RecordedRequest),
    /// The cache was reset.
    Reset,
    /// Another observation.
    Other,
}

/// A whole recording.
#[derive(Debug, Clone)]
pub struct Recording {
    /// Name and release of the engine.
    pub engine: String,
    /// Tokens in its blocks.
    pub block_size: BlockSize,
    /// Ranks that published, ascending.
    pub dp_ranks: Vec<DpRank>,
    /// Framing of recorded replays.
    pub replay_framing: ReplayFraming,
    /// Its lines in order.
    pub lines: Vec<RecordedLine>,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum RawLine {
    Meta {
        engine: String,
    },
    Msg {
        t: f64,
        frames: Vec<String>,
    },
    Req(RecordedRequest),
    Admin {},
    Replay {
        replies: Vec<Vec<String>>,
    },
    #[serde(other)]
    Other,
}

impl Recording {
    /// Reads a whole recording.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, a line is not one of a recording, or nothing is stored in it.
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        let io = |source| RecordingError::Io { path: path.to_owned(), source };
        let file = BufReader::new(File::open(path).map_err(io)?);
        let mut recording = Self {
            engine: String::new(),
            block_size: BlockSize::new(1).expect("one is not zero"),
            dp_ranks: Vec::new(),
            replay_framing: ReplayFraming::WithTopic,
            lines: Vec::new(),
        };
        let mut block_size = None;
        for (at, text) in file.lines().enumerate() {
            let bad = |reason: String| RecordingError::Line { path: path.to_owned(), line: at + 1, reason };
            let raw = serde_json::from_str(&text.map_err(io)?).map_err(|error| bad(error.to_string()))?;
            let line = match raw {
                RawLine::Meta { engine } => {
                    recording.engine = engine;
                    continue;
                }
                RawLine::Msg { t, frames } => {
                    let (message, stored) = message(t, &frames).map_err(bad)?;
                    block_size = block_size.or(stored);
                    if !recording.dp_ranks.contains(&message.dp_rank) {
                        recording.dp_ranks.push(message.dp_rank);
                    }
                    RecordedLine::Message(message)
                }
                RawLine::Req(request) => RecordedLine::Request(request),
                RawLine::Admin {} => RecordedLine::Reset,
                RawLine::Replay { replies } => {
                    if replies.first().is_some_and(|reply| reply.len() == FRAMES_WITHOUT_TOPIC) {
                        recording.replay_framing = ReplayFraming::WithoutTopic;
                    }
                    RecordedLine::Other
                }
                RawLine::Other => RecordedLine::Other,
            };
            recording.lines.push(line);
        }
        recording.dp_ranks.sort_unstable();
        recording.block_size = block_size.ok_or_else(|| RecordingError::NoBlocks { path: path.to_owned() })?;
        Ok(recording)
    }

    /// Requests in the recording.
    pub fn requests(&self) -> impl Iterator<Item = &RecordedRequest> {
        self.lines.iter().filter_map(|line| match line {
            RecordedLine::Request(request) => Some(request),
            _ => None,
        })
    }

    /// Messages in the recording.
    pub fn messages(&self) -> impl Iterator<Item = &RecordedMessage> {
        self.lines.iter().filter_map(|line| match line {
            RecordedLine::Message(message) => Some(message),
            _ => None,
        })
    }
}

/// The adapter that a model's name names; none for the base model.
fn adapter<'de, D: Deserializer<'de>>(model: D) -> Result<Option<String>, D::Error> {
    Ok(Some(String::deserialize(model)?).filter(|model| model != BASE_MODEL))
}

fn dp_rank<'de, D: Deserializer<'de>>(number: D) -> Result<Option<DpRank>, D::Error> {
    Ok(Option::<u32>::deserialize(number)?.map(DpRank))
}

/// A message, and the size of the blocks that it stores, if it stores any.
fn message(received_s: f64, frames: &[String]) -> Result<(RecordedMessage, Option<BlockSize>), String> {
    let frames = frames.iter().map(|frame| from_hex(frame)).collect::<Option<Vec<_>>>();
    let frames = frames.ok_or("a frame is not hexadecimal")?;
    let live = LiveMessage::from_frames(&frames).map_err(|error| error.to_string())?;
    let batch = decode_batch(live.payload).map_err(|error| error.to_string())?;
    let block_size = batch.events.clone().find_map(|event| match event {
        Ok(EngineEvent::Stored(stored)) => BlockSize::new(stored.block_size),
        _ => None,
    });
    let message = RecordedMessage {
        at_ms: (received_s * 1e3) as u64,
        topic: live.topic.to_owned(),
        sequence: live.sequence.ok_or("a message has no sequence number")?,
        payload: live.payload.to_owned(),
        dp_rank: batch.dp_rank.unwrap_or_default(),
    };
    Ok((message, block_size))
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some((digit(pair[0])? << 4 | digit(*pair.get(1)?)?) as u8)).collect()
}
