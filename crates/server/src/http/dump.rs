//! Everything that the index knows, as events that make another index know it.

use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::{Block, BlockEvent, SequenceHash};
use futures_core::Stream;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::Api;
use super::error::ApiError;
use super::extract::Parameters;
use super::fields::{HashForm, Scope, ShownHash};
use crate::indexer::{Indexer, RankDump};
use crate::instance::{InstanceId, ModelKey};
use crate::metrics::Bound;

/// Bytes gathered before they are sent.
const CHUNK_BYTES: usize = 64 << 10;
/// Chunks that may wait for a slow reader.
const CHUNKS_WAITING_MAX: usize = 4;
/// A reader that takes no chunk for so long is given up.
const READER_DEADLINE: Duration = Duration::from_secs(30);
const NDJSON: &str = "application/x-ndjson";

#[derive(Deserialize)]
pub(super) struct DumpParameters {
    #[serde(flatten)]
    scope: Scope,
    #[serde(default)]
    hashes: HashForm,
}

/// Streams the dump: at no time is more than one rank of it in memory, and no lock is held while
/// the reader is slow.
pub(super) async fn dump(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    Parameters(parameters): Parameters<DumpParameters>,
) -> Result<Response, ApiError> {
    let permit = Arc::clone(&api.dumps)
        .try_acquire_owned()
        .inspect_err(|_| api.indexer.metrics().bound(Bound::Dumps))
        .map_err(|_| ApiError::unavailable("enough dumps are running: try again when one has finished"))?;
    let DumpParameters { scope, hashes } = parameters;
    let (model_name, tenant_id) = scope.names()?;
    let models = api.indexer.dumpable(model_name.as_deref(), tenant_id.as_deref());
    let as_lines = headers.get_all(ACCEPT).iter().any(|accept| accept.to_str().is_ok_and(|text| text.contains(NDJSON)));
    let (chunks, received) = mpsc::channel(CHUNKS_WAITING_MAX);
    let complete = Arc::new(AtomicBool::new(false));
    let body = Body::from_stream(Received { chunks: received, complete: Arc::clone(&complete) });
    let indexer = Arc::clone(&api.indexer);
    let runtime = Handle::current();
    tokio::task::spawn_blocking(move || {
        let dump = Dump { indexer, hashes, next_event_id: 0 };
        let mut out = ChunkWriter { runtime, chunks, gathered: Vec::with_capacity(CHUNK_BYTES) };
        let written = if as_lines { dump.lines(&models, &mut out) } else { dump.object(&models, &mut out) };
        // An error means that the reader has gone away or stands still.
        if written.and_then(|()| out.flush()).is_ok() {
            complete.store(true, Ordering::Release);
        }
        drop(permit);
    });
    let content_type = if as_lines { NDJSON } else { "application/json" };
    Ok(([(CONTENT_TYPE, content_type)], body).into_response())
}

struct Dump {
    indexer: Arc<Indexer>,
    hashes: HashForm,
    next_event_id: u64,
}

impl Dump {
    /// `{"model:tenant": {"block_size": …, "events": […]}, …}`
    fn object(mut self, models: &[(ModelKey, BlockSize)], out: &mut impl Write) -> io::Result<()> {
        let indexer = Arc::clone(&self.indexer);
        out.write_all(b"{")?;
        for (at, (key, block_size)) in models.iter().enumerate() {
            out.write_all(if at == 0 { b"" } else { b"," })?;
            serde_json::to_writer(&mut *out, &key.to_string())?;
            write!(out, ":{{\"block_size\":{},\"events\":[", block_size.tokens())?;
            let mut separator = "";
            for rank in indexer.dump(key) {
                for event in &rank.events {
                    out.write_all(separator.as_bytes())?;
                    separator = ",";
                    self.router_event(&rank, event, None, out)?;
                }
            }
            out.write_all(b"]}")?;
        }
        out.write_all(b"}")
    }

    /// One event a line, each with the model that it belongs to.
    fn lines(mut self, models: &[(ModelKey, BlockSize)], out: &mut impl Write) -> io::Result<()> {
        let indexer = Arc::clone(&self.indexer);
        for (key, block_size) in models {
            for rank in indexer.dump(key) {
                for event in &rank.events {
                    self.router_event(&rank, event, Some((key, *block_size)), out)?;
                    out.write_all(b"\n")?;
                }
            }
        }
        Ok(())
    }

    fn router_event(
        &mut self,
        rank: &RankDump,
        event: &BlockEvent,
        model: Option<(&ModelKey, BlockSize)>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let BlockEvent::Stored { tier, parent, blocks, copies } = event else {
            unreachable!("a dump consists of stores")
        };
        let event = RouterEvent {
            worker_id: &rank.instance,
            storage_tier: tier.as_str(),
            event: CacheEvent {
                event_id: self.next_event_id,
                dp_rank: rank.dp_rank.0,
                data: CacheEventData { stored: self.stored(*parent, blocks, *copies) },
            },
            model: model.map(|(key, block_size)| ModelFields {
                model_name: &key.model_name,
                tenant_id: &key.tenant_id,
                block_size: block_size.tokens(),
            }),
        };
        self.next_event_id += 1;
        Ok(serde_json::to_writer(out, &event)?)
    }

    fn stored(&self, parent: Option<SequenceHash>, blocks: &[Block], copies: u32) -> Stored {
        let shown = |hash| ShownHash(hash, self.hashes);
        Stored {
            parent_hash: parent.map(|parent| shown(parent.0)),
            start_position: None,
            copies: (copies > 1).then_some(copies),
            blocks: blocks
                .iter()
                .map(|block| StoredBlock {
                    block_hash: shown(block.sequence.0),
                    tokens_hash: shown(block.local.0),
                    mm_extra_info: None,
                })
                .collect(),
        }
    }
}

#[derive(Serialize)]
struct RouterEvent<'a> {
    worker_id: &'a InstanceId,
    storage_tier: &'static str,
    event: CacheEvent,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    model: Option<ModelFields<'a>>,
}

#[derive(Serialize)]
struct ModelFields<'a> {
    model_name: &'a str,
    tenant_id: &'a str,
    block_size: u32,
}

#[derive(Serialize)]
struct CacheEvent {
    event_id: u64,
    dp_rank: u32,
    data: CacheEventData,
}

#[derive(Serialize)]
struct CacheEventData {
    stored: Stored,
}

#[derive(Serialize)]
struct Stored {
    parent_hash: Option<ShownHash>,
    /// Positions follow from parents.
    start_position: Option<u32>,
    /// How often the rank holds each block, where it is more than once.
    #[serde(skip_serializing_if = "Option::is_none")]
    copies: Option<u32>,
    blocks: Vec<StoredBlock>,
}

#[derive(Serialize)]
struct StoredBlock {
    block_hash: ShownHash,
    tokens_hash: ShownHash,
    /// Multimodal items are part of `tokens_hash`.
    mm_extra_info: Option<()>,
}

/// Gathers bytes and hands them over in chunks; waits while the reader is behind.
struct ChunkWriter {
    runtime: Handle,
    chunks: mpsc::Sender<Bytes>,
    gathered: Vec<u8>,
}

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.gathered.extend_from_slice(bytes);
        if self.gathered.len() >= CHUNK_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let chunk = Bytes::from(std::mem::replace(&mut self.gathered, Vec::with_capacity(CHUNK_BYTES)));
        let sent = self.runtime.block_on(self.chunks.send_timeout(chunk, READER_DEADLINE));
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// The receiving end as a stream. It fails unless the dump is complete, so that a reader cannot take
/// a part for the whole.
struct Received {
    chunks: mpsc::Receiver<Bytes>,
    /// Stored before the sending end is dropped, and loaded after that is seen.
    complete: Arc<AtomicBool>,
}

impl Stream for Received {
    type Item = Result<Bytes, io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.chunks.poll_recv(context).map(|chunk| match chunk {
            Some(chunk) => Some(Ok(chunk)),
            None if self.complete.load(Ordering::Acquire) => None,
            None => Some(Err(io::Error::new(io::ErrorKind::TimedOut, "the dump was cut off"))),
        })
    }
}
