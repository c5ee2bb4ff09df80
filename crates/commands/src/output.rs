//! Standard output, which its reader may close early, as `flash-indexer config print | head` does.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, IsTerminal, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use console::Term;
use indicatif::{ProgressBar, ProgressStyle};

/// Prints like the macro of the standard library, but does not panic when the reader has closed the pipe.
#[macro_export]
macro_rules! print {
    ($($text:tt)*) => { $crate::output::print(format_args!($($text)*)) };
}

/// Prints a line, like [`print!`].
#[macro_export]
macro_rules! println {
    ($($text:tt)*) => { $crate::print!("{}\n", format_args!($($text)*)) };
}

/// Writes text to standard output. Without a reader, the text is discarded and the command continues, so its exit code stays correct.
/// Another failure ends the process with code 1.
pub fn print(text: Arguments<'_>) {
    let mut out = io::stdout();
    match out.write_fmt(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            eprintln!("flash-indexer: failed to write to standard output: {error}");
            std::process::exit(1);
        }
        _ => {}
    }
}

/// A table without rows. The columns with these numbers, from 0, have their text on the right.
pub fn table<'h>(header: impl IntoIterator<Item = &'h str>, right: impl IntoIterator<Item = usize>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(header);
    for at in right {
        if let Some(column) = table.column_mut(at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A table whose columns wrap their text to fit the terminal.
pub fn fitted(mut table: Table) -> Table {
    if let (true, Some((_, columns))) = (io::stdout().is_terminal(), Term::stdout().size_checked()) {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(columns);
    }
    table
}

/// A progress bar on standard error, if it is a terminal.
pub fn progress(total: usize, unit: &str) -> ProgressBar {
    let template = format!("{{bar:40}} {{human_pos}}/{{human_len}} {unit}  {{elapsed}} (left {{eta}})  {{msg}}");
    let style = ProgressStyle::with_template(&template).expect("the template is valid");
    ProgressBar::new(total as u64).with_style(style)
}

/// A part of a whole, in percent; 0 for an empty whole.
pub fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

/// The text of an error followed by its causes, without those that the text already contains.
pub fn with_causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        match text.is_empty() {
            true => text = cause,
            false if text.contains(&cause) => {}
            false => text = format!("{text}: {cause}"),
        }
    }
    text
}
