//! `flash-indexer completions` and `flash-indexer man`: files that packages install with the program.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use clap_complete::Shell;

use crate::program;

/// Print a completion script for a shell.
#[derive(Args)]
#[command(after_help = "Examples:
  flash-indexer completions bash > /etc/bash_completion.d/flash-indexer
  flash-indexer completions zsh > \"${fpath[1]}/_flash-indexer\"
  flash-indexer completions fish > ~/.config/fish/completions/flash-indexer.fish")]
pub(crate) struct CompletionsArguments {
    /// The shell.
    shell: Shell,
}

/// Write manual pages, one for each command.
#[derive(Args)]
#[command(after_help = "Example:
  flash-indexer man /usr/local/share/man/man1")]
pub(crate) struct ManArguments {
    /// Directory of the pages.
    directory: PathBuf,
}

pub(crate) fn complete(arguments: &CompletionsArguments) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut program(), NAME, &mut script);
    if arguments.shell == Shell::Bash {
        // clap_complete 4.6.11 parses the hyphen in the program's name as the start of a subcommand in half of the script.
        let program = NAME.replace('-', "__");
        let text = String::from_utf8(script).context("failed to read the script")?;
        script = text.replace(&NAME.replace('-', "__subcmd__"), &program).into_bytes();
    }
    print!("{}", String::from_utf8_lossy(&script));
    Ok(())
}

pub(crate) fn write_pages(arguments: &ManArguments) -> Result<()> {
    let directory = arguments.directory.display();
    std::fs::create_dir_all(&arguments.directory).with_context(|| format!("failed to make {directory}"))?;
    let command = program();
    clap_mangen::generate_to(command, &arguments.directory)
        .with_context(|| format!("failed to write pages to {directory}"))
}

const NAME: &str = env!("CARGO_BIN_NAME");
