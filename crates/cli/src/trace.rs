//! The request trace that `replay` and `bench` read.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// The trace of the repository, relative to its root.
const REPOSITORY_TRACE: &str = "testdata/mooncake/conversation_trace.jsonl.zst";

/// The named trace, or else the trace of the repository in whose root the program runs.
pub(crate) fn trace_file(named: Option<&Path>) -> Result<PathBuf> {
    match named {
        Some(named) => Ok(named.to_owned()),
        None if Path::new(REPOSITORY_TRACE).is_file() => Ok(REPOSITORY_TRACE.into()),
        None => {
            bail!("no trace at {REPOSITORY_TRACE}: name a trace file, or run the command in a clone of the repository")
        }
    }
}
