//! The request trace that `replay` and `bench` read.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// The trace of the repository, seen from its root.
const REPOSITORY_TRACE: &str = "testdata/mooncake/conversation_trace.jsonl.zst";

/// The trace that was named, or else that of the repository in which the program is run.
pub(crate) fn trace_file(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(named) = named {
        return Ok(named.to_owned());
    }
    let usual = PathBuf::from(REPOSITORY_TRACE);
    if !usual.is_file() {
        bail!("no trace at {REPOSITORY_TRACE}: name a trace file, or run the command in a clone of the repository");
    }
    Ok(usual)
}
