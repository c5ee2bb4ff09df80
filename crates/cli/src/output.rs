//! Standard output, which its reader may close early, as `flash-indexer config print | head` does.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, IsTerminal, Write};

use comfy_table::{ContentArrangement, Table};
use console::Term;

/// Prints like the macro of the standard library, but does not panic when the reader has closed the pipe.
macro_rules! print {
    ($($text:tt)*) => { $crate::output::print(format_args!($($text)*)) };
}

/// Prints a line, like [`print!`].
macro_rules! println {
    ($($text:tt)*) => { print!("{}\n", format_args!($($text)*)) };
}

/// Writes text to standard output. Without a reader, the text is discarded and the command continues, so its exit code stays correct.
/// Another failure ends the process with code 1.
pub(crate) fn print(text: Arguments<'_>) {
    let mut out = io::stdout();
    if let Err(error) = unless_closed(out.write_fmt(text).and_then(|()| out.flush())) {
        eprintln!("flash-indexer: failed to write to standard output: {error}");
        std::process::exit(1);
    }
}

/// A table whose columns wrap their text to fit the terminal.
pub(crate) fn fitted(mut table: Table) -> Table {
    if let (true, Some((_, columns))) = (io::stdout().is_terminal(), Term::stdout().size_checked()) {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(columns);
    }
    table
}

/// The result of a write. A pipe closed by the reader is not an error.
pub(crate) fn unless_closed(written: io::Result<()>) -> io::Result<()> {
    written.or_else(|error| if error.kind() == ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
}
