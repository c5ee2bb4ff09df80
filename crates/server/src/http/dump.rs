//! `GET /dump`: the index as events from which another index can be built.

use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::response::{IntoResponse, Response};
use flash_indexer_admission::accepted_weight;
use flash_indexer_api::DumpParameters;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_registry::Indexer;
use flash_indexer_snapshot::{DumpForm, DumpWriter};
use flash_indexer_telemetry::metrics::Limit;
use flash_indexer_types::hashes::HashForm;
use flash_indexer_types::{InstanceId, ModelKey};
use futures_core::Stream;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::error::ApiError;
use super::extract::{Caller, Parameters};
use super::fields::CheckedScope;
use flash_indexer_peers::write_models;

/// Size of a chunk.
const CHUNK_BYTES: usize = 64 << 10;
/// Chunks queued for a slow reader.
const CHUNKS_QUEUED_MAX: usize = 4;
/// Longest wait for a reader to take a chunk.
const READER_DEADLINE: Duration = Duration::from_secs(30);
const NDJSON: &str = "application/x-ndjson";
const ZSTD: &str = "zstd";

/// Streams the dump. At most one rank is in memory at a time, and no lock is held while the reader is slow.
pub(super) async fn dump(
    Caller { api, grant, .. }: Caller,
    method: Method,
    headers: HeaderMap,
    Parameters(parameters): Parameters<DumpParameters>,
) -> Result<Response, ApiError> {
    if api.recovery.is_running() {
        // A partial index must not pass for a complete one.
        return Err(ApiError::busy(
            "failed to write a dump: this indexer is recovering; ask another one, or retry later",
        ));
    }
    let busy = "failed to write a dump: too many dumps are running; retry later";
    let permit = api.permit(&api.dumps, Limit::Dumps, busy)?;
    let DumpParameters { scope, instance_id, hashes } = parameters;
    let instance = instance_id.as_deref().map(InstanceId::parse).transpose()?;
    let selection = scope.selection(&grant)?;
    let mut models = api.indexer.matching_models(selection.model.as_deref(), selection.tenant.as_deref());
    models.retain(|(model, _)| grant.permits_tenant(&model.tenant_id));
    let accepts = |header, name| accepted_weight(&headers, header, name) > Some(0.0);
    let form = if accepts(&ACCEPT, NDJSON) { DumpForm::Lines } else { DumpForm::Object };
    let compression = if accepts(&ACCEPT_ENCODING, ZSTD) { Compression::Zstd } else { Compression::None };
    let (chunks, receiver) = mpsc::channel(CHUNKS_QUEUED_MAX);
    let complete = Arc::new(AtomicBool::new(false));
    let body = Body::from_stream(DumpBody { chunks: receiver, complete: Arc::clone(&complete) });
    let response = (head_of(form, compression), body).into_response();
    if method == Method::HEAD {
        // The body is not sent, and has no length.
        return Ok(response);
    }
    let selected = DumpSelection { indexer: Arc::clone(&api.indexer), models, instance };
    let runtime = Handle::current();
    tokio::task::spawn_blocking(move || {
        let mut out = ChunkWriter { runtime, chunks, buffer: Vec::with_capacity(CHUNK_BYTES) };
        // An error means that the reader closed the connection or exceeded its deadline.
        debug!(models = selected.models.len(), "dump started");
        match write_dump(&selected, &mut out, (form, hashes, compression)) {
            Ok(()) => {
                complete.store(true, Ordering::Release);
                debug!(models = selected.models.len(), "dump finished");
            }
            Err(error) => {
                warn!(%error, "failed to write a dump: its reader closed the connection or stopped reading; read it again")
            }
        }
        drop(permit);
    });
    Ok(response)
}

/// Headers of the response.
fn head_of(form: DumpForm, compression: Compression) -> HeaderMap {
    let content_type = if form == DumpForm::Lines { NDJSON } else { "application/json" };
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(VARY, HeaderValue::from_static("accept, accept-encoding"));
    if compression == Compression::Zstd {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(ZSTD));
    }
    headers
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Compression {
    None,
    Zstd,
}

/// Level at which compressing costs about as much as writing JSON.
const ZSTD_LEVEL: i32 = 1;

/// Models and instances to be dumped.
struct DumpSelection {
    indexer: Arc<Indexer>,
    models: Vec<(ModelKey, BlockSize)>,
    instance: Option<InstanceId>,
}

fn write_dump(
    selected: &DumpSelection,
    out: &mut ChunkWriter,
    (form, hashes, compression): (DumpForm, HashForm, Compression),
) -> io::Result<()> {
    let DumpSelection { indexer, models, instance } = selected;
    match compression {
        Compression::None => {
            write_models(indexer, models, instance.as_ref(), DumpWriter::start(out, form, hashes)?)?.flush()
        }
        Compression::Zstd => {
            let encoder = zstd::stream::write::Encoder::new(out, ZSTD_LEVEL)?;
            let writer = DumpWriter::start(encoder, form, hashes)?;
            write_models(indexer, models, instance.as_ref(), writer)?.finish()?.flush()
        }
    }
}

/// Writer that sends chunks to a response body. It blocks while the reader is slow.
struct ChunkWriter {
    runtime: Handle,
    chunks: mpsc::Sender<Bytes>,
    buffer: Vec<u8>,
}

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= CHUNK_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let chunk = Bytes::from(std::mem::replace(&mut self.buffer, Vec::with_capacity(CHUNK_BYTES)));
        let sent = self.runtime.block_on(self.chunks.send_timeout(chunk, READER_DEADLINE));
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Response body of a dump. The stream fails if the dump is incomplete, so a reader cannot mistake a part for the whole.
struct DumpBody {
    chunks: mpsc::Receiver<Bytes>,
    /// Stored (release) before the sender is dropped, and loaded (acquire) after the channel is disconnected.
    complete: Arc<AtomicBool>,
}

impl Stream for DumpBody {
    type Item = Result<Bytes, io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.chunks.poll_recv(context).map(|chunk| match chunk {
            Some(chunk) => Some(Ok(chunk)),
            None if self.complete.load(Ordering::Acquire) => None,
            None => Some(Err(io::Error::new(io::ErrorKind::TimedOut, "the dump was cut off"))),
        })
    }
}
