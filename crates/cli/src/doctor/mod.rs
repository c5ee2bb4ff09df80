//! `flash-indexer doctor`: is everything as it should be, from the engines to the answers?

mod discovery;
mod finding;
mod heard;
mod judge;
mod names;
mod probe;
mod report;
mod service;
mod sockets;
mod store;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

use self::finding::{Finding, Verdict};
use self::probe::{Observed, Stream, instance_name};
use self::report::{Report, Subject};
use crate::client::{IndexerClient, Worker};
use crate::simulate::progress;
use crate::with_causes;

/// Engines that are looked at at a time.
const PROBES_MAX: usize = 16;
/// The exit code of a check that could not be made.
const NOT_CHECKED: u8 = 2;

/// Check a running service and its engines end to end, and say what to fix.
///
/// It asks the service what is registered and how its peers, discovery and shared store fare, connects to every engine
/// itself, listens for a few seconds, asks each replay endpoint for all that it has, and compares: connections, sequence
/// numbers, block sizes, block names recomputed from tokens, clocks, and whether the service finds the prefixes that the
/// engine was heard to store. It changes nothing, and an idle engine is no fault.
///
/// Exit code: 0 if nothing is wrong (there may be warnings), 1 if there are problems, 2 if it could not be checked.
#[derive(Args)]
#[command(after_help = "Examples:
  flash-indexer doctor http://127.0.0.1:8090
  flash-indexer doctor http://indexer:8090 --instance gpu-1 --listen-s 20
  flash-indexer doctor http://indexer:8090 --json | jq '.[].findings[] | select(.verdict != \"ok\")'

Run it where the service runs, so that engines answer it as they answer the service.")]
pub(crate) struct DoctorArguments {
    /// The service to check.
    #[arg(env = "FLASH_INDEXER_URL", default_value = "http://127.0.0.1:8090")]
    url: String,

    /// Only this instance.
    #[arg(long, value_name = "ID")]
    instance: Option<String>,

    /// Only engines of this model.
    #[arg(long, alias = "model")]
    model_name: Option<String>,

    /// Seconds to listen to each engine; longer finds rarer faults, and busy engines need one.
    #[arg(long, default_value_t = 4, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    listen_s: u64,

    /// The PYTHONHASHSEED of vLLM engines with --prefix-caching-hash-algo sha256_cbor, to recompute their names of blocks.
    #[arg(long, default_value = "0")]
    hash_seed: String,

    /// Print findings as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &DoctorArguments) -> ExitCode {
    match examine(arguments) {
        Ok(reports) => {
            match arguments.json {
                true => report::print_json(&reports),
                false => report::print_table(&reports),
            }
            let worst = reports.iter().map(Report::verdict).max();
            ExitCode::from(u8::from(worst == Some(Verdict::Problem)))
        }
        Err(error) => {
            eprintln!("flash-indexer: {}", with_causes(&error));
            ExitCode::from(NOT_CHECKED)
        }
    }
}

fn examine(arguments: &DoctorArguments) -> Result<Vec<Report>> {
    let client = IndexerClient::new(&arguments.url);
    client.health()?;
    let ready = client.ready().map_err(|error| format!("{error:#}"));
    let workers = client.all_workers()?;
    let streams = streams_of(&workers, arguments);
    let mut findings = vec![service::readiness(ready)];
    findings.extend(service::peers(&client, &workers));
    findings.extend(discovery::sources(&client));
    findings.extend(store::store(&client));
    if streams.is_empty() {
        let none = format!("no such engine is registered with {}", arguments.url);
        let fix = "see GET /workers, and POST /register";
        // What keeps engines away may have been found.
        if findings.iter().all(|finding| finding.verdict == Verdict::Ok) {
            bail!("{none}: {fix}");
        }
        findings.push(Finding::problem("engines", none, fix));
    }
    let mut reports = vec![Report { subject: Subject::Service(arguments.url.clone()), findings }];
    reports.extend(observe_all(arguments, &streams).iter().map(|observed| Report {
        subject: Subject::Stream(Box::new(observed.stream.clone())),
        findings: judge::judge(observed),
    }));
    Ok(reports)
}

/// The registered streams that are asked about: ranks of an instance at one endpoint share one, unless they connect to
/// the service.
fn streams_of(workers: &[Worker], arguments: &DoctorArguments) -> Vec<Stream> {
    let mut streams = Vec::new();
    for worker in workers {
        let instance = instance_name(&worker.instance_id);
        let is_asked = arguments.instance.as_ref().is_none_or(|asked| *asked == instance)
            && arguments.model_name.as_ref().is_none_or(|asked| *asked == worker.model_name);
        let mut by_endpoint: BTreeMap<(&str, Option<u32>), Stream> = BTreeMap::new();
        for (&rank, listener) in worker.listeners.iter().filter(|_| is_asked) {
            let name = (listener.endpoint.as_str(), probe::is_bound(&listener.endpoint).then_some(rank));
            let stream = by_endpoint.entry(name).or_insert_with(|| Stream {
                instance: instance.clone(),
                model_name: worker.model_name.clone(),
                tenant_id: worker.tenant_id.clone(),
                block_size: worker.block_size,
                ranks: Vec::new(),
                listener: listener.clone(),
            });
            stream.ranks.push(rank);
        }
        streams.extend(by_endpoint.into_values());
    }
    streams
}

/// Looks at all streams, some at a time, with a bar on standard error.
fn observe_all(arguments: &DoctorArguments, streams: &[Stream]) -> Vec<Observed> {
    let bar = progress(streams.len(), "engines");
    bar.set_message(format!("listening to each for {} s", arguments.listen_s));
    bar.enable_steady_tick(Duration::from_millis(200));
    let listen = Duration::from_secs(arguments.listen_s);
    let mut all = Vec::new();
    for some in streams.chunks(PROBES_MAX) {
        std::thread::scope(|scope| {
            let look = |stream| {
                let client = IndexerClient::new(&arguments.url);
                let observed = probe::observe(&client, stream, &arguments.hash_seed, listen);
                bar.inc(1);
                observed
            };
            let looking: Vec<_> = some.iter().map(|stream| scope.spawn(move || look(stream))).collect();
            all.extend(looking.into_iter().map(|thread| thread.join().expect("looking does not panic")));
        });
    }
    bar.finish_and_clear();
    all
}
