//! What a change or a message did.

use flash_indexer_embed::MessageReport;
use pyo3::prelude::*;

/// What a change did, in blocks.
#[pyclass(frozen, get_all, eq, module = "flash_index")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Applied {
    stored: u64,
    duplicate: u64,
    waiting: u64,
    moved: u64,
    refused: u64,
    removed: u64,
    unknown: u64,
}

impl From<flash_indexer_core::AppliedChanges> for Applied {
    fn from(applied: flash_indexer_core::AppliedChanges) -> Self {
        let flash_indexer_core::AppliedChanges { stored, duplicate, waiting, moved, refused, removed, unknown, .. } =
            applied;
        Self { stored, duplicate, waiting, moved, refused, removed, unknown }
    }
}

#[pymethods]
impl Applied {
    fn __repr__(&self) -> String {
        format!("{self:?}")
    }
}

/// Events or messages that were not applied, for one reason.
#[pyclass(frozen, get_all, eq, module = "flash_index")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rejection {
    reason: String,
    count: u64,
    message: String,
}

#[pymethods]
impl Rejection {
    fn __repr__(&self) -> String {
        format!("{self:?}")
    }
}

/// Messages to request from an engine.
#[pyclass(frozen, eq, module = "flash_index")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReplayRequest {
    /// Number of the request.
    #[pyo3(get)]
    attempt: u32,
    /// First sequence number.
    #[pyo3(get)]
    first: u64,
}

#[pymethods]
impl ReplayRequest {
    fn __repr__(&self) -> String {
        format!("{self:?}")
    }
}

/// What a message changed.
#[pyclass(frozen, get_all, eq, module = "flash_index")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    messages: u64,
    applied: Applied,
    rejections: Vec<Rejection>,
    unknown_fields: Vec<String>,
    missed_messages: u64,
    lost_messages: u64,
    duplicates: u64,
    cleared: Option<&'static str>,
    replay: Option<ReplayRequest>,
}

impl From<MessageReport> for Report {
    fn from(report: MessageReport) -> Self {
        let rejections = report.rejections.into_iter().map(|rejection| Rejection {
            reason: rejection.reason.to_owned(),
            count: rejection.count,
            message: rejection.message,
        });
        Self {
            messages: report.messages,
            applied: report.applied.into(),
            rejections: rejections.collect(),
            unknown_fields: report.unknown_fields,
            missed_messages: report.missed_messages,
            lost_messages: report.lost_messages,
            duplicates: report.duplicates,
            cleared: report.cleared.map(|reason| reason.as_str()),
            replay: report.replay.map(|request| ReplayRequest { attempt: request.attempt, first: request.from }),
        }
    }
}

#[pymethods]
impl Report {
    fn __repr__(&self) -> String {
        format!("{self:?}")
    }
}
