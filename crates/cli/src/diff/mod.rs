//! `flash-indexer diff`: compares two indexes.

mod contents;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use flash_indexer_server::ModelKey;
use flash_indexer_snapshot::{RankRecord, read_dump};
use flash_indexer_types::masked_url;

use self::contents::{BlockDifference, Difference, DumpContents, RankKey};
use flash_indexer_commands::output::with_causes;
use flash_indexer_commands::{DumpEncoding, TlsArguments};

/// Compare two running services, or a service and a dump, or two dumps, rank by rank.
///
/// Exit code: 0 if they are equal, 1 if they differ, 2 if one of them cannot be read. Two services that listen to
/// busy engines are rarely at the same message: `stream` shows the position of each. Needs 24 bytes of memory a block.
#[derive(Args)]
#[command(after_help = "Examples:
  flash-indexer diff http://replica-a:8090 http://replica-b:8090
  flash-indexer diff yesterday.zst http://replica-a:8090 --model llama-3-8b && echo the same")]
pub(crate) struct DiffArguments {
    /// URL of a service, or file with a dump in any form.
    a: String,

    /// URL or file to compare it with.
    b: String,

    /// Only this model.
    #[arg(long = "model", visible_alias = "model-name", value_name = "MODEL")]
    model_name: Option<String>,

    /// Only this tenant.
    #[arg(long)]
    tenant_id: Option<String>,

    #[command(flatten)]
    tls: TlsArguments,

    /// Differing blocks to list of each rank.
    #[arg(long, default_value_t = 3)]
    blocks: usize,
}

/// The exit code for indexes that differ.
const DIFFERENT: u8 = 1;
/// The exit code for an index that cannot be read.
const UNREADABLE: u8 = 2;

pub(crate) fn run(arguments: &DiffArguments) -> ExitCode {
    match compare(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(DIFFERENT),
        Err(error) => {
            eprintln!("flash-indexer: {}", with_causes(&error));
            ExitCode::from(UNREADABLE)
        }
    }
}

/// Prints all differences; true if there are none.
fn compare(arguments: &DiffArguments) -> Result<bool> {
    let a = read(arguments, &arguments.a)?;
    let b = read(arguments, &arguments.b)?;
    for (name, source, side) in [("A", &arguments.a, &a), ("B", &arguments.b, &b)] {
        println!("{name}  {}: {} ranks, {} blocks", masked(source), side.ranks.len(), side.blocks());
    }
    let keys: BTreeSet<&RankKey> = a.ranks.keys().chain(b.ranks.keys()).collect();
    if keys.is_empty() && (arguments.model_name.is_some() || arguments.tenant_id.is_some()) {
        let others: BTreeSet<&ModelKey> = a.left_out.union(&b.left_out).collect();
        let named = |model: &ModelKey| format!("{:?} of tenant {:?}", model.model_name, model.tenant_id);
        let named: Vec<String> = others.into_iter().map(named).collect();
        let models = if named.is_empty() { "none".to_owned() } else { named.join(", ") };
        bail!(
            "neither A nor B has a rank of this model and tenant; their models: {models}. Check --model and --tenant-id, or \
             leave them out"
        );
    }
    let mut different = 0;
    for &key in &keys {
        match (a.ranks.get(key), b.ranks.get(key)) {
            (Some(a), Some(b)) => {
                let difference = Difference::of(a, b);
                if difference.is_none() {
                    continue;
                }
                print_difference(key, &difference, arguments.blocks);
                println!("  stream: {} in A, {} in B", stream(a.record.as_ref()), stream(b.record.as_ref()));
            }
            (Some(a), None) => println!("\n{key}: only in A, with {} blocks", a.block_count()),
            (None, Some(b)) => println!("\n{key}: only in B, with {} blocks", b.block_count()),
            (None, None) => continue,
        }
        different += 1;
    }
    println!("\n{different} of {} ranks differ", keys.len());
    Ok(different == 0)
}

fn read(arguments: &DiffArguments, source: &str) -> Result<DumpContents> {
    let (model_name, tenant_id) = (arguments.model_name.as_deref(), arguments.tenant_id.as_deref());
    let mut contents = DumpContents::new(arguments.model_name.clone(), arguments.tenant_id.clone());
    let is_url = source.starts_with("http://") || source.starts_with("https://");
    let client = is_url.then(|| arguments.tls.client(source)).transpose()?;
    let bytes: Box<dyn Read> = match &client {
        Some(client) => client.dump(model_name, tenant_id, DumpEncoding::Compressed)?.bytes,
        None => Box::new(File::open(source).with_context(|| {
            let source = masked(source);
            format!("failed to open {source}; give a file, or a URL such as http://127.0.0.1:8090")
        })?),
    };
    let bytes = contents.progress.bar.wrap_read(bytes);
    read_dump(bytes, &mut contents).with_context(|| masked(source).into_owned())?;
    contents.finish();
    if let Some(client) = client.filter(|_| contents.ranks.is_empty()) {
        // Used only for an error, which is also correct without them, such as with a token that does not permit this.
        let workers = client.all_workers().unwrap_or_default();
        let models = workers.into_iter().map(|worker| ModelKey::new(worker.model_name, Some(worker.tenant_id)));
        models.for_each(|model| contents.leave_out(model));
    }
    Ok(contents)
}

/// A URL or the name of a file for output. A name may have a `@`.
fn masked(source: &str) -> Cow<'_, str> {
    let has_password = source.rsplit_once('@').is_some_and(|(before, _)| before.contains(':'));
    if has_password || source.contains("://") { masked_url(source) } else { source.into() }
}

fn print_difference(key: &RankKey, difference: &Difference, blocks_shown: usize) {
    println!("\n{key}:");
    print_blocks("", &difference.blocks, blocks_shown);
    for (group, difference) in &difference.groups {
        print_blocks(&format!("of cache group {group} "), difference, blocks_shown);
    }
    for (field, a, b) in &difference.fields {
        println!("  {field}: {a} in A, {b} in B");
    }
}

fn print_blocks(of: &str, difference: &BlockDifference, blocks_shown: usize) {
    let lists = [
        ("only in A", &difference.only_a),
        ("only in B", &difference.only_b),
        ("with other content, parent or number of copies", &difference.changed),
    ];
    for (what, blocks) in lists {
        if !blocks.is_empty() {
            let shown: Vec<String> = blocks.iter().take(blocks_shown).map(ToString::to_string).collect();
            let more = if blocks.len() > shown.len() { ", …" } else { "" };
            let noun = if blocks.len() == 1 { "block" } else { "blocks" };
            println!("  {} {noun} {of}{what}: {}{more}", blocks.len(), shown.join(", "));
        }
    }
}

fn stream(record: Option<&RankRecord>) -> String {
    let Some(stream) = record.and_then(|record| record.stream) else { return "unknown".to_owned() };
    let trust = stream.trust.as_str();
    match stream.cursor {
        Some(cursor) => format!("at {} ({trust})", cursor.sequence),
        None => format!("at its start ({trust})"),
    }
}
