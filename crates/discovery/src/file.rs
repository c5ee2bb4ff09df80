//! Discovery source: a file with a JSON list of bodies of `POST /register`.

mod watch;

use std::num::NonZeroU16;

use flash_indexer_core::DpRank;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_types::endpoints::{EndpointError, check_endpoint};
use flash_indexer_types::names::shorten;
use flash_indexer_types::{
    EngineKind, InstanceId, RankId, RemovalMeaning, SharedCaches, SharedCachesError, UncheckedInstanceId,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::reconcile::Targets;
use super::template::{EngineTemplate, EngineTraits, EngineTraitsError};

pub(super) use self::watch::watch;

/// One engine, or one of its ranks, with the fields of `POST /register`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object such as {\"instance_id\": 1, \"endpoint\": \"tcp://gpu-1:5557\"}")]
struct Entry {
    instance_id: InstanceId,
    endpoint: String,
    #[serde(alias = "model", alias = "modelname")]
    model_name: Option<String>,
    #[serde(alias = "routing_group")]
    tenant_id: Option<String>,
    block_size: Option<u32>,
    dp_rank: Option<u32>,
    /// Number of ranks, which publish at this port and the following ones.
    data_parallel_size: Option<NonZeroU16>,
    replay_endpoint: Option<String>,
    lora_name: Option<String>,
    engine: Option<EngineKind>,
    removal: Option<RemovalMeaning>,
    extra_keys: Option<bool>,
    shared_caches: Option<Vec<UncheckedInstanceId>>,
}

/// A file that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub(crate) struct FileError {
    line: usize,
    problem: String,
}

/// An invalid entry.
#[derive(Debug, thiserror::Error)]
enum EntryError {
    #[error("block_size must be at least 1: give the engine's block size in tokens")]
    ZeroBlockSize,
    #[error(
        "dp_rank and data_parallel_size are both given: give dp_rank for one rank, or data_parallel_size for all of them"
    )]
    RankAndRanks,
    #[error("{field} {endpoint:?} has no port to count ranks from: give tcp://host:port")]
    NoPort { field: &'static str, endpoint: String },
    #[error(
        "endpoint and replay_endpoint of several ranks have different hosts: add an entry with dp_rank for each rank"
    )]
    TwoHosts,
    #[error("{0} is named twice, with different registrations: remove one")]
    Conflict(RankId),
    #[error("{0}")]
    SharedCaches(#[from] SharedCachesError),
    #[error("{0}")]
    EngineTraits(#[from] EngineTraitsError),
    #[error("{0}")]
    Endpoint(#[from] EndpointError),
}

/// Parses a file. Returns all of its ranks, or an error.
///
/// # Errors
///
/// When an entry is invalid, with its line.
pub(crate) fn parse(text: &str, template: &EngineTemplate) -> Result<Targets, FileError> {
    let entries: Vec<&RawValue> = serde_json::from_str(text).map_err(|error| FileError {
        line: error.line(),
        problem: match error.is_eof() {
            true => "the file is truncated: write another file and rename it into place".to_owned(),
            false => format!("{}; expected a JSON list", without_position(&error)),
        },
    })?;
    let mut targets = Targets::new();
    for entry in entries {
        let line = line_of(text, entry.get());
        let parsed: Entry = serde_json::from_str(entry.get()).map_err(|error| FileError {
            line: line + error.line().max(1) - 1,
            problem: shorten(without_position(&error)),
        })?;
        let ranks =
            ranks(&parsed, template).map_err(|error| FileError { line, problem: shorten(error.to_string()) })?;
        for (rank, registration) in ranks {
            if targets.get(&rank).is_some_and(|known| *known != registration) {
                return Err(FileError { line, problem: EntryError::Conflict(rank).to_string() });
            }
            targets.insert(rank, registration);
        }
    }
    Ok(targets)
}

/// Ranks of one entry.
fn ranks(entry: &Entry, template: &EngineTemplate) -> Result<Targets, EntryError> {
    let shared_caches = SharedCaches::new(entry.shared_caches.iter().flatten().cloned())?;
    let block_size =
        entry.block_size.map(|tokens| BlockSize::new(tokens).ok_or(EntryError::ZeroBlockSize)).transpose()?;
    let mut targets = Targets::new();
    for endpoint in [Some(&entry.endpoint), entry.replay_endpoint.as_ref()].into_iter().flatten() {
        check_endpoint(endpoint)?;
    }
    let traits = EngineTraits {
        model_name: entry.model_name.clone(),
        tenant_id: entry.tenant_id.clone(),
        block_size,
        lora_name: entry.lora_name.clone(),
        engine: entry.engine,
        removal: entry.removal,
        extra_keys: entry.extra_keys,
        shared_caches,
        ..EngineTraits::default()
    };
    if let Some(size) = entry.data_parallel_size {
        if entry.dp_rank.is_some() {
            return Err(EntryError::RankAndRanks);
        }
        let (host, port) = host_and_port("endpoint", &entry.endpoint)?;
        let replay =
            entry.replay_endpoint.as_ref().map(|replay| host_and_port("replay_endpoint", replay)).transpose()?;
        if replay.is_some_and(|(replay_host, _)| replay_host != host) {
            return Err(EntryError::TwoHosts);
        }
        let replay_port = replay.map(|(_, port)| port);
        let traits = EngineTraits { port: Some(port), replay_port, data_parallel_size: Some(size), ..traits };
        // An entry with endpoints has no replay port from the template.
        let template = EngineTemplate { replay_port: None, ..template.clone() };
        template.add_ranks(&mut targets, &entry.instance_id, host, &traits)?;
        return Ok(targets);
    }
    let dp_rank = DpRank(entry.dp_rank.unwrap_or_default());
    let endpoints = (entry.endpoint.clone(), entry.replay_endpoint.clone());
    let registration = template.registration(&entry.instance_id, dp_rank, endpoints, &traits)?;
    targets.insert(registration.rank_id(), registration);
    Ok(targets)
}

fn host_and_port<'e>(field: &'static str, endpoint: &'e str) -> Result<(&'e str, u16), EntryError> {
    let address = endpoint.strip_prefix("tcp://").and_then(|address| address.rsplit_once(':'));
    let parsed = address.and_then(|(host, port)| Some((host, port.parse().ok()?)));
    parsed.ok_or_else(|| EntryError::NoPort { field, endpoint: endpoint.to_owned() })
}

/// The line, counted from 1, on which a part of a text begins.
fn line_of(text: &str, part: &str) -> usize {
    let offset = (part.as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
    1 + text.as_bytes().iter().take(offset).filter(|&&byte| byte == b'\n').count()
}

/// A parser's message without its position, which is relative to the entry.
fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(&*text, |(message, _)| message).to_owned()
}

#[cfg(test)]
mod tests;
