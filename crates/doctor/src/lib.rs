//! `flash-indexer doctor`: checks a running service and its engines end to end. It changes neither.
//!
//! | module | role |
//! |---|---|
//! | `service`, `discovery_sources`, `shared_store` | checks of the service, its peers, sources and store |
//! | `prompts` | compares the tokens of a request from the service and from an engine |
//! | `probe` | observes one engine: its sockets, and the service's answers about it |
//! | `sockets` | ZeroMQ and plain connections to an engine |
//! | `follower`, `hashes` | follow the engine's stream; recompute its block hashes |
//! | `checks` | findings about one observed stream; pure |
//! | `finding`, `report` | a check's result; the table and the JSON |

mod checks;
mod discovery_sources;
mod finding;
mod follower;
mod hashes;
mod probe;
mod prompts;
mod report;
mod service;
mod shared_store;
mod sockets;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use flash_indexer_api::Worker;
use flash_indexer_types::endpoints::NO_EVENTS;
use flash_indexer_wire::plural;

use self::finding::{Outcome, Verdict};
use self::probe::{Observation, Stream};
use self::report::{Report, Subject};
use flash_indexer_commands::output::{progress, with_causes};
use flash_indexer_commands::{IndexerClient, ServiceUrl, TlsArguments};

/// Engines that are observed at a time.
const PROBES_MAX: usize = 64;
/// The exit code when the service cannot be checked.
const NOT_CHECKED: u8 = 2;

/// Check a running service and its engines end to end, and report fixes.
///
/// Doctor reads the service's registrations and the state of its peers, discovery sources and shared store. It connects
/// to every engine, receives its events for a few seconds and requests a full replay. Then it compares connections,
/// sequence numbers, block sizes, block hashes recomputed from tokens, and clocks, and checks that the service finds the
/// prefixes that the engine stored. It changes nothing. An idle engine is not a fault.
///
/// Exit code: 0 without problems (there may be warnings), 1 with problems, 2 if the service could not be checked.
#[derive(Args)]
#[command(after_help = "Examples:
  flash-indexer doctor http://127.0.0.1:8090
  flash-indexer doctor http://indexer:8090 --instance gpu-1 --listen-s 20
  flash-indexer doctor http://indexer:8090 --engine-url http://gpu-1:8000 --model llama-3-8b
  flash-indexer doctor http://indexer:8090 --json | jq '.[].findings[] | select(.verdict != \"ok\")'

Run it where the service runs: only there it takes the same network path to the engines.")]
pub struct DoctorArguments {
    #[command(flatten)]
    service: ServiceUrl,

    #[command(flatten)]
    tls: TlsArguments,

    /// Only this instance.
    #[arg(long, value_name = "ID")]
    instance: Option<String>,

    /// Only engines of this model.
    #[arg(long = "model", visible_alias = "model-name", value_name = "MODEL")]
    model_name: Option<String>,

    /// Seconds to listen to each engine. One is enough for busy engines; more find rarer faults.
    #[arg(long, default_value_t = 4, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    listen_s: u64,

    /// PYTHONHASHSEED of vLLM engines with --prefix-caching-hash-algo sha256_cbor, to recompute their block hashes.
    #[arg(long, default_value = "0")]
    hash_seed: String,

    /// OpenAI API of an engine: compare its tokens of a request with the service's, by POST /tokenize of both.
    #[arg(long, value_name = "URL")]
    engine_url: Option<String>,

    /// JSON file with the request to compare, as a client sends it; without it, a chat with tools for --model.
    #[arg(long, value_name = "FILE", requires = "engine_url")]
    request: Option<PathBuf>,

    /// Print findings as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the checks and prints what they found. Takes the seconds of `--listen-s` for every 64 engines, and longer where engines do not respond.
/// Returns the exit code that the help lists.
pub fn run(arguments: &DoctorArguments) -> ExitCode {
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
    let client = arguments.tls.client(arguments.service.as_str())?;
    client.health()?;
    let ready = client.ready().map_err(|error| format!("{error:#}"));
    let workers = client.all_workers()?;
    let (streams, without_events) = streams_of(&workers, arguments);
    let mut findings = vec![service::readiness(ready).of("ready")];
    findings.extend(service::peers(&client, &workers).into_iter().map(|peer| peer.of("peers")));
    findings.extend(discovery_sources::check(&client).into_iter().map(|source| source.of("discovery")));
    findings.extend(shared_store::check(&client).map(|store| store.of("store")));
    if let Some(engine_url) = &arguments.engine_url {
        let model = arguments.model_name.as_ref().or_else(|| streams.first().map(|stream| &stream.model_name));
        let request = prompts::request(arguments.request.as_deref(), model.map_or("default", String::as_str))?;
        findings.push(prompts::check(&client, engine_url, &request).of("prompt"));
    }
    if without_events > 0 {
        let are = plural(without_events as u64, "instance is", "instances are");
        let why = format!("{without_events} {are} registered without events: nothing to check there");
        findings.push(Outcome::ok(why).of("engines"));
    } else if streams.is_empty() {
        let such = if arguments.instance.is_some() || arguments.model_name.is_some() { "such " } else { "" };
        let none = match client.check_selection(arguments.model_name.as_deref(), None) {
            Err(unknown) => unknown.to_string(),
            Ok(()) => format!("no {such}engine is registered with {}", arguments.service.masked()),
        };
        let fix =
            "see GET /workers, or register one: POST /register or a discovery source (docs/operations.md, Registering)";
        // A finding about the service may be the reason.
        if arguments.engine_url.is_none() && findings.iter().all(|finding| finding.outcome.verdict == Verdict::Ok) {
            bail!("{none}: {fix}");
        }
        findings.push(Outcome::problem(none, fix).of("engines"));
    }
    let mut reports = vec![Report { subject: Subject::Service(arguments.service.masked().into_owned()), findings }];
    reports.extend(observe_all(arguments, &client, &streams).iter().map(|observation| Report {
        subject: Subject::Stream(Box::new(observation.stream.clone())),
        findings: checks::check_stream(observation),
    }));
    Ok(reports)
}

/// The registered streams of instances that the options select. Ranks of an instance at one endpoint share a stream, unless they
/// connect to the service. Also counts the selected instances that are registered without events.
fn streams_of(workers: &[Worker], arguments: &DoctorArguments) -> (Vec<Stream>, usize) {
    let (mut streams, mut without_events) = (Vec::new(), 0);
    for worker in workers {
        let instance = worker.instance_id.to_string();
        // No answer lists a shared cache separately, so there is nothing to compare with its stream.
        let is_selected = worker.kind.is_none()
            && arguments.instance.as_ref().is_none_or(|selected| *selected == instance)
            && arguments.model_name.as_ref().is_none_or(|selected| *selected == worker.model_name);
        if is_selected && worker.listeners.values().any(|listener| listener.endpoint == NO_EVENTS) {
            without_events += 1;
            continue;
        }
        let mut by_endpoint: BTreeMap<(&str, Option<u32>), Stream> = BTreeMap::new();
        for (&rank, listener) in worker.listeners.iter().filter(|_| is_selected) {
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
    (streams, without_events)
}

/// Observes all streams, [`PROBES_MAX`] at a time, with a progress bar on standard error. A large fleet's duration is
/// announced: a log shows no bar.
fn observe_all(arguments: &DoctorArguments, client: &IndexerClient, streams: &[Stream]) -> Vec<Observation> {
    let rounds = streams.len().div_ceil(PROBES_MAX) as u64;
    if rounds > 1 {
        eprintln!(
            "flash-indexer: listening to {} engines, {PROBES_MAX} at a time, for at least {} s; --instance or --model selects some",
            streams.len(),
            rounds * arguments.listen_s,
        );
    }
    let bar = progress(streams.len(), "engines");
    bar.set_message(format!("listening to each for {} s", arguments.listen_s));
    bar.enable_steady_tick(Duration::from_millis(200));
    let listen = Duration::from_secs(arguments.listen_s);
    let mut all = Vec::new();
    for chunk in streams.chunks(PROBES_MAX) {
        std::thread::scope(|scope| {
            let observe = |stream| {
                let observation = probe::observe(client, stream, &arguments.hash_seed, listen);
                bar.inc(1);
                observation
            };
            let probes: Vec<_> = chunk.iter().map(|stream| scope.spawn(move || observe(stream))).collect();
            all.extend(probes.into_iter().map(|probe| probe.join().expect("a probe does not panic")));
        });
    }
    bar.finish_and_clear();
    all
}
