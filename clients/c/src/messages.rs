//! Messages of engines.

use std::time::Instant;

use flash_indexer_core::WorkerRank;
use flash_indexer_embed::{EmbedError, EmbeddedIndex, MessageReport, ReplayRequest};

use crate::arguments;
use crate::changes::FlashIndexApplied;
use crate::index::FlashIndex;
use crate::status::{Failure, FlashIndexStatus, guarded, set_last_rejections};

/// Limit of the frames of a message. Engines send three.
const FRAMES_MAX: usize = 16;

/// Bytes of the caller.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct FlashIndexBytes {
    /// The bytes; may be NULL if length is 0.
    pub data: *const u8,
    /// Their number.
    pub length: usize,
}

/// What a message changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FlashIndexReport {
    /// Messages that were applied: none while earlier ones are missing and are being replayed.
    pub messages: u64,
    /// Changed blocks.
    pub applied: FlashIndexApplied,
    /// Events and messages that were rejected; flash_index_last_rejections says why. Their ranks are degraded, but for events
    /// of a memory that no tier stands for.
    pub rejected: u64,
    /// Messages missing between the last live one and this one.
    pub missed_messages: u64,
    /// Missing messages that are lost for good since the last call.
    pub lost_messages: u64,
    /// Messages that were received before, and were ignored.
    pub duplicates: u64,
    /// Whether all blocks of the stream's ranks were dropped first, because the engine has restarted or too much is lost.
    pub cleared: bool,
    /// Whether to request the messages from replay_from on from the engine now. A later request replaces an earlier one.
    pub has_replay: bool,
    /// Number of the request, for flash_index_apply_replayed.
    pub replay_attempt: u32,
    /// First sequence number of the request.
    pub replay_from: u64,
}

impl From<&MessageReport> for FlashIndexReport {
    fn from(report: &MessageReport) -> Self {
        let replay = report.replay.unwrap_or(ReplayRequest { attempt: 0, from: 0 });
        Self {
            messages: report.messages,
            applied: report.applied.into(),
            rejected: report.rejections.iter().map(|rejection| rejection.count).sum(),
            missed_messages: report.missed_messages,
            lost_messages: report.lost_messages,
            duplicates: report.duplicates,
            cleared: report.cleared.is_some(),
            has_replay: report.replay.is_some(),
            replay_attempt: replay.attempt,
            replay_from: replay.from,
        }
    }
}

/// Passes an input to a stream.
///
/// # Safety
///
/// index is a valid index; report is NULL or points to a FlashIndexReport.
unsafe fn receive(
    index: *const FlashIndex,
    stream: WorkerRank,
    report: *mut FlashIndexReport,
    input: impl FnOnce(&EmbeddedIndex, WorkerRank) -> Result<Result<MessageReport, EmbedError>, Failure>,
) -> FlashIndexStatus {
    guarded(|| {
        set_last_rejections("");
        // SAFETY: by this function's contract.
        let index = unsafe { arguments::index(index) }?;
        arguments::check_result("report", report)?;
        let result = input(&index.embedded, stream)??;
        let line = |rejection: &flash_indexer_embed::Rejection| {
            format!("{}\t{}\t{}\n", rejection.reason, rejection.count, rejection.message)
        };
        if !result.rejections.is_empty() {
            set_last_rejections(&result.rejections.iter().map(line).collect::<String>());
        }
        // SAFETY: by this function's contract.
        unsafe { arguments::write("report", report, FlashIndexReport::from(&result)) }
    })
}

/// The frames of a message.
///
/// # Safety
///
/// frames points to frame_count frames, which are valid.
unsafe fn read<'a>(frames: *const FlashIndexBytes, frame_count: usize) -> Result<Vec<&'a [u8]>, Failure> {
    if frame_count > FRAMES_MAX {
        let message =
            format!("failed to read frames: {frame_count} are more than {FRAMES_MAX}; pass those of one message");
        return Err(Failure::new(FlashIndexStatus::InvalidArgument, message));
    }
    // SAFETY: by this function's contract.
    let frames = unsafe { arguments::array("frames", frames, frame_count) }?;
    // SAFETY: by this function's contract.
    frames.iter().map(|frame| unsafe { arguments::array("a frame", frame.data, frame.length) }).collect()
}

/// Applies one multipart message of an engine, with the frames topic, sequence and payload as ZeroMQ delivers them. dp_rank is
/// the rank of the endpoint that sent it; the message may name another one. Writes what it changed to *report, unless NULL.
/// A message or an event that cannot be used is no error: the report counts it. Linear in the payload.
///
/// # Safety
///
/// index is a valid index; frames points to frame_count frames with their bytes; report is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flash_index_apply_frames(
    index: *const FlashIndex,
    instance: u64,
    dp_rank: u32,
    frames: *const FlashIndexBytes,
    frame_count: usize,
    report: *mut FlashIndexReport,
) -> FlashIndexStatus {
    let apply = |index: &EmbeddedIndex, stream| {
        // SAFETY: by this function's contract.
        let frames = unsafe { read(frames, frame_count) }?;
        Ok(index.apply_frames(stream, &frames, Instant::now()))
    };
    // SAFETY: by this function's contract.
    unsafe { receive(index, arguments::rank(instance, dp_rank), report, apply) }
}

/// Applies one message of a reply to the request with this attempt, or the message that ends it.
///
/// # Safety
///
/// As flash_index_apply_frames.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flash_index_apply_replayed(
    index: *const FlashIndex,
    instance: u64,
    dp_rank: u32,
    attempt: u32,
    frames: *const FlashIndexBytes,
    frame_count: usize,
    report: *mut FlashIndexReport,
) -> FlashIndexStatus {
    let apply = |index: &EmbeddedIndex, stream| {
        // SAFETY: by this function's contract.
        let frames = unsafe { read(frames, frame_count) }?;
        Ok(index.apply_replayed(stream, attempt, &frames, Instant::now()))
    };
    // SAFETY: by this function's contract.
    unsafe { receive(index, arguments::rank(instance, dp_rank), report, apply) }
}

/// Handles an established connection to the endpoint of a rank: an engine that replays is asked for all messages at once,
/// instead of with its first live one.
///
/// # Safety
///
/// index is a valid index; report is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flash_index_connected(
    index: *const FlashIndex,
    instance: u64,
    dp_rank: u32,
    report: *mut FlashIndexReport,
) -> FlashIndexStatus {
    let connected = |index: &EmbeddedIndex, stream| Ok(index.connected(stream, Instant::now()));
    // SAFETY: by this function's contract.
    unsafe { receive(index, arguments::rank(instance, dp_rank), report, connected) }
}

/// Handles a lost connection to the endpoint of a rank: the engine may restart before the next one, so the ranks of the
/// endpoint are not exact until a replay shows that it did not.
///
/// # Safety
///
/// index is a valid index; report is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flash_index_disconnected(
    index: *const FlashIndex,
    instance: u64,
    dp_rank: u32,
    report: *mut FlashIndexReport,
) -> FlashIndexStatus {
    let disconnected = |index: &EmbeddedIndex, stream| Ok(index.disconnected(stream, Instant::now()));
    // SAFETY: by this function's contract.
    unsafe { receive(index, arguments::rank(instance, dp_rank), report, disconnected) }
}

/// Handles the passing of time. Call it about once a second while a replay is under way: a request without a reply is
/// repeated.
///
/// # Safety
///
/// index is a valid index; report is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flash_index_tick(
    index: *const FlashIndex,
    instance: u64,
    dp_rank: u32,
    report: *mut FlashIndexReport,
) -> FlashIndexStatus {
    let tick = |index: &EmbeddedIndex, stream| Ok(index.tick(stream, Instant::now()));
    // SAFETY: by this function's contract.
    unsafe { receive(index, arguments::rank(instance, dp_rank), report, tick) }
}
