//! `flash-indexer dump`: saves a service's index and registrations.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use flash_indexer_snapshot::{DumpEntry, DumpSink, RankName, RankRecord, Rejection, read_dump};
use indicatif::{ProgressBar, ProgressStyle};

use flash_indexer_commands::{DumpEncoding, ServiceUrl, TlsArguments};

/// Save the state of a running service: every held block, all registrations, and the position of each stream.
///
/// The dump is verified while it is written; the file appears only when the dump is complete. A device is written directly. A service that starts
/// from it (`serve --load`) resumes each stream at the dump's position. One JSON value a line. Dumps of other indexers
/// can be saved as well.
#[derive(Args)]
#[command(after_help = "Examples:
  flash-indexer dump http://indexer:8090 -o fleet.zst
  flash-indexer dump --model llama-3-8b | jq .rank
  flash-indexer serve --load fleet.zst
  flash-indexer diff fleet.zst http://indexer:8090")]
pub(crate) struct DumpArguments {
    #[command(flatten)]
    service: ServiceUrl,

    #[command(flatten)]
    tls: TlsArguments,

    /// File to write, compressed if its name ends in .zst; - for standard output.
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,

    /// Only this model.
    #[arg(long = "model", visible_alias = "model-name", value_name = "MODEL")]
    model_name: Option<String>,

    /// Only this tenant.
    #[arg(long)]
    tenant_id: Option<String>,
}

pub(crate) fn run(arguments: &DumpArguments) -> Result<()> {
    let to_stdout = arguments.output.as_os_str() == "-";
    let compressed = arguments.output.extension().is_some_and(|extension| extension == "zst");
    let encoding = if compressed { DumpEncoding::Compressed } else { DumpEncoding::Plain };
    let client = arguments.tls.client(arguments.service.as_str())?;
    let (model_name, tenant_id) = (arguments.model_name.as_deref(), arguments.tenant_id.as_deref());
    // A dump of no instance would be valid, and is most likely a mistake.
    client.check_selection(model_name, tenant_id)?;
    let dump = client.dump(model_name, tenant_id, encoding)?;
    if compressed && !dump.is_compressed {
        bail!("{} sends uncompressed dumps only; choose a file name without .zst", arguments.service.masked());
    }
    if to_stdout {
        return copy(dump.bytes, io::stdout().lock()).or_else(|error| match error.downcast_ref::<io::Error>() {
            // The reader has read enough, like `| head`.
            Some(written) if written.kind() == ErrorKind::BrokenPipe => Ok(()),
            _ => Err(error),
        });
    }
    if arguments.output.metadata().is_ok_and(|existing| !existing.is_file()) {
        // A device or a FIFO is written, not replaced.
        return copy(dump.bytes, create(&arguments.output)?);
    }
    // In the same directory: it can then be renamed.
    let unfinished = arguments.output.with_added_extension("part");
    let copied = create(&unfinished).and_then(|file| copy(dump.bytes, file)).and_then(|()| {
        std::fs::rename(&unfinished, &arguments.output)
            .with_context(|| format!("failed to rename {} to {}", unfinished.display(), arguments.output.display()))
    });
    if copied.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&unfinished);
    }
    copied
}

fn create(path: &Path) -> Result<BufWriter<File>> {
    Ok(BufWriter::new(File::create(path).with_context(|| format!("failed to create {}", path.display()))?))
}

/// Copies a dump; fails unless it is complete and valid.
fn copy(dump: impl Read, output: impl Write) -> Result<()> {
    let mut progress = Progress::new();
    let bar = progress.bar.clone();
    let mut tee = Tee { dump: bar.wrap_read(dump), output, write_error: None };
    let summary = read_dump(&mut tee, &mut progress);
    let written = tee.write_error.map_or_else(|| tee.output.flush(), Err);
    written.context("failed to write the dump")?;
    let summary = summary?;
    bar.finish_and_clear();
    eprintln!("{} ranks, {} blocks, {} bytes", summary.ranks, summary.holds.blocks, bar.position());
    Ok(())
}

/// A reader that copies all bytes to a writer.
struct Tee<R, W> {
    dump: R,
    output: W,
    /// Error of the last write, if the last read failed because of it.
    write_error: Option<io::Error>,
}

impl<R: Read, W: Write> Read for Tee<R, W> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.dump.read(buffer)?;
        self.output.write_all(&buffer[..bytes]).map_err(|error| {
            let kind = error.kind();
            self.write_error = Some(error);
            kind
        })?;
        Ok(bytes)
    }
}

/// Progress of a dump, on standard error.
pub(crate) struct Progress {
    pub(crate) bar: ProgressBar,
    blocks: u64,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let template = "{spinner} {bytes} at {bytes_per_sec}, {msg}";
        let style = ProgressStyle::with_template(template).expect("the template is well-formed");
        Self { bar: ProgressBar::no_length().with_style(style), blocks: 0 }
    }

    /// Adds the blocks of one event.
    pub(crate) fn blocks(&mut self, blocks: usize) {
        self.blocks += blocks as u64;
        self.bar.set_message(format!("{} blocks", self.blocks));
    }
}

impl DumpSink for Progress {
    fn rank(&mut self, _: RankRecord) -> Result<(), Rejection> {
        Ok(())
    }

    fn entry(&mut self, _: RankName<'_>, entry: DumpEntry) -> Result<(), Rejection> {
        self.blocks(entry.block_count());
        Ok(())
    }
}
