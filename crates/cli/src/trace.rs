//! Where a request trace lies.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// The trace that was named, or the usual one.
pub(crate) fn trace_file(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(named) = named {
        return Ok(named.to_owned());
    }
    let shared = std::env::var_os("FLASH_SHARED").map_or_else(|| PathBuf::from("../shared"), PathBuf::from);
    let usual = shared.join("data/mooncake/conversation_trace.jsonl");
    if !usual.is_file() {
        bail!(
            "no trace at {}: name a trace file, or let FLASH_SHARED say where the folder is that has \
             data/mooncake/conversation_trace.jsonl",
            usual.display()
        );
    }
    Ok(usual)
}
