//! `flash-indexer reference`: the pages of `docs/reference/`, made from the program itself. Hidden, because only the project uses it.
//!
//! | module | page |
//! |---|---|
//! | `commands` | commands and their options |
//! | `endpoints` | endpoints of the HTTP API, and the fields of their bodies and answers |
//! | `metrics` | metrics |
//! | `reasons` | reasons for trust states, and the values of metrics' labels |

mod commands;
mod endpoints;
mod metrics;
mod reasons;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

/// Write the reference pages of the documentation.
#[derive(Args)]
pub(crate) struct ReferenceArguments {
    /// Directory of the pages.
    directory: PathBuf,
}

pub(crate) fn run(arguments: &ReferenceArguments) -> Result<()> {
    let openapi = flash_indexer_api::document();
    let pages = [
        ("commands.md", commands::page()),
        ("endpoints.md", endpoints::page(&openapi)),
        ("openapi.json", format!("{openapi:#}\n")),
        ("metrics.md", metrics::page()),
        ("reasons.md", reasons::page()),
    ];
    for (name, page) in pages {
        let path = arguments.directory.join(name);
        std::fs::write(&path, page).with_context(|| format!("failed to write {}", path.display()))?;
    }
    Ok(())
}

/// Beginning of a page.
fn head(title: &str, source: &str) -> String {
    format!("# {title}\n\nGenerated from {source} by `flash-indexer reference docs/reference`, do not edit.\n")
}

/// Text as a cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|").replace('<', "&lt;")
}
