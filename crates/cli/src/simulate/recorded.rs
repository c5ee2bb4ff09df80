//! `simulate --recording`: plays a recorded stream as the engine published it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use flash_indexer_commands::output::progress;
use flash_indexer_core::DpRank;
use flash_indexer_sim::{Publisher, RecordedLine, RecordedMessage, RecordedRequest, Recording};
use flash_indexer_types::Trust;

use super::service::{EngineRank, Service};
use super::workload::reusable_tokens;
use super::{Pace, SimulateArguments};
use crate::stop::StopFlag;

/// The instance that a recording is registered as.
const INSTANCE: u64 = 1;

pub(super) fn run(arguments: &SimulateArguments, path: &Path, stop: &StopFlag) -> Result<()> {
    let recording = Recording::open(path)?;
    println!("{}: {}, blocks of {} tokens", path.display(), recording.engine, recording.block_size.tokens());
    let mut publishers = BTreeMap::new();
    for (number, &dp_rank) in (0..).zip(&recording.dp_ranks) {
        let topic = recording.messages().find(|message| message.dp_rank == dp_rank).map(|message| &message.topic);
        let topic = topic.expect("a rank of a recording has published").clone();
        publishers.insert(dp_rank, arguments.publisher(number, INSTANCE, topic, recording.replay_framing)?);
    }
    let mut service = arguments.service()?;
    if let Some(service) = &mut service {
        for (&dp_rank, publisher) in &publishers {
            let (rank, endpoint) = (EngineRank { instance: INSTANCE, dp_rank }, arguments.endpoint(publisher));
            service.register(rank, endpoint, publisher, recording.block_size)?;
        }
    }
    arguments.wait_for_subscribers(publishers.values(), stop)?;

    let mut player = Player {
        recording: &recording,
        publishers,
        service: service.as_ref(),
        verify: arguments.verify,
        published: BTreeMap::new(),
        report: Report::default(),
        uses_extra_key: recording.requests().any(|request| request.extra_key.is_some()),
    };
    player.play(&mut Pace::new(arguments.speed, stop))?;
    if arguments.verify {
        player.report.print();
    }
    arguments.stay(stop);
    let unexplained = player.report.unexplained.len();
    ensure!(unexplained == 0, "{unexplained} predictions differed from the engine's reports");
    Ok(())
}

struct Player<'a> {
    recording: &'a Recording,
    publishers: BTreeMap<DpRank, Publisher>,
    service: Option<&'a Service>,
    verify: bool,
    published: BTreeMap<EngineRank, u64>,
    report: Report,
    uses_extra_key: bool,
}

/// Comparison of predictions with the engine's reports.
#[derive(Default)]
struct Report {
    /// Requests that ran concurrently with others: the cache's state at their start is unknown.
    concurrent: usize,
    checked: usize,
    equal: usize,
    explained: BTreeMap<&'static str, Vec<String>>,
    unexplained: Vec<String>,
    /// Trust state of the instance at the end.
    trust: Option<&'static str>,
}

/// An accepted reason for a different prediction.
const LATE_CLEAR: &str =
    "the first request after a cache reset: the engine publishes the reset only with its next step";
/// An accepted reason for a different prediction.
const EXTRA_KEY: &str = "extra_key: SGLang's default event format omits it from hashes and events, so blocks that the \
                         engine keeps apart have equal hashes";

impl Player<'_> {
    /// Plays the recording. A request is compared before its own messages are published: at its start the engine's cache
    /// is the result of all messages up to the end of the previous request.
    fn play(&mut self, pace: &mut Pace) -> Result<()> {
        let bar = progress(self.recording.messages().count(), "messages");
        let mut own_messages: Vec<&RecordedMessage> = Vec::new();
        let mut after_reset = false;
        // After the last line, the messages that follow the last request are published.
        for line in self.recording.lines.iter().chain([&RecordedLine::Other]) {
            match line {
                RecordedLine::Message(message) => {
                    own_messages.push(message);
                    continue;
                }
                RecordedLine::Request(request) if request.concurrent => self.report.concurrent += 1,
                RecordedLine::Request(request) if self.verify => self.check(request, &own_messages, after_reset)?,
                _ => {}
            }
            after_reset = matches!(line, RecordedLine::Reset);
            for message in own_messages.drain(..) {
                pace.wait_for(message.at_ms)?;
                self.publish(message)?;
                bar.inc(1);
            }
        }
        if let Some(service) = self.service {
            service.catch_up(&self.published)?;
            self.report.trust = service.trust(INSTANCE)?.map(Trust::as_str);
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn publish(&mut self, message: &RecordedMessage) -> Result<()> {
        self.publishers[&message.dp_rank].publish(message.sequence, &message.payload)?;
        let rank = EngineRank { instance: INSTANCE, dp_rank: message.dp_rank };
        self.published.insert(rank, message.sequence);
        Ok(())
    }

    fn check(&mut self, request: &RecordedRequest, own_messages: &[&RecordedMessage], after_reset: bool) -> Result<()> {
        let service = self.service.expect("--verify requires --register");
        service.catch_up(&self.published)?;
        let dp_rank = self.rank_of(request, own_messages);
        let predicted =
            service.predict(&request.prompt, request.lora_name.as_deref(), request.cache_salt.as_deref())?;
        let matched = predicted.get(&EngineRank { instance: INSTANCE, dp_rank }).copied();
        let matched = matched.with_context(|| format!("rank {dp_rank} is not in the response"))?;
        let predicted = matched.min(reusable_tokens(request.prompt.len(), self.recording.block_size));
        let actual = request.cached_tokens as u64;
        self.report.checked += 1;
        let difference = || {
            let RecordedRequest { id, phase, .. } = request;
            format!("{id} ({phase}): {predicted} tokens predicted, {actual} cached")
        };
        if predicted == actual {
            self.report.equal += 1;
        } else if after_reset {
            self.report.explained.entry(LATE_CLEAR).or_default().push(difference());
        } else if self.uses_extra_key {
            self.report.explained.entry(EXTRA_KEY).or_default().push(difference());
        } else {
            self.report.unexplained.push(difference());
        }
        Ok(())
    }

    /// The rank that served a request: the recorder's choice, or else the rank that published the request's changes, or
    /// else the only rank.
    fn rank_of(&self, request: &RecordedRequest, own_messages: &[&RecordedMessage]) -> DpRank {
        let publishers: BTreeSet<DpRank> = own_messages.iter().map(|message| message.dp_rank).collect();
        let publisher = publishers.first().filter(|_| publishers.len() == 1).copied();
        request.dp_rank.or(publisher).unwrap_or(self.recording.dp_ranks[0])
    }
}

impl Report {
    fn print(&self) {
        let explained: usize = self.explained.values().map(Vec::len).sum();
        println!(
            "requests checked {}, equal {}, explained {explained}, unexplained {}; {} ran beside others and cannot be checked",
            self.checked,
            self.equal,
            self.unexplained.len(),
            self.concurrent
        );
        if let Some(trust) = &self.trust {
            println!("trust of the service: {trust}");
        }
        for (reason, differences) in &self.explained {
            println!("{} differ because of {reason}:", differences.len());
            for difference in differences {
                println!("  {difference}");
            }
        }
        for difference in &self.unexplained {
            println!("unexplained: {difference}");
        }
    }
}
