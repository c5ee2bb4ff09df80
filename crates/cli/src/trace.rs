//! The request trace that `replay` and `bench` read.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// The trace of the repository, relative to its root.
const REPOSITORY_TRACE: &str = "testdata/mooncake/conversation_trace.jsonl.zst";

/// The named trace, or else the trace of the repository in whose root the program runs.
pub(crate) fn trace_file(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(named) = named {
        return Ok(named.to_owned());
    }
    let default = PathBuf::from(REPOSITORY_TRACE);
    if !default.is_file() {
        bail!("no trace at {REPOSITORY_TRACE}: name a trace file, or run the command in a clone of the repository");
    }
    Ok(default)
}
