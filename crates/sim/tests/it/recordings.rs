//! Recorded streams: an index that applies them predicts the cached tokens that the engine reported for each request.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use flash_indexer_core::groups::{GroupedIndex, RankEvent};
use flash_indexer_core::hashing::{BlockSize, HashVariant, local_hashes};
use flash_indexer_core::run::RunIndex;
use flash_indexer_core::{DpRank, RankMatch, RemovedCopies, SharedIndex, WorkerId, WorkerRank};
use flash_indexer_sim::{RecordedLine, RecordedMessage, RecordedRequest, Recording, reusable_blocks};
use flash_indexer_test_support::testdata;
use flash_indexer_wire::{Translator, TranslatorOptions, decode_batch};

/// An index that follows the ranks of one engine.
struct Follower {
    index: GroupedIndex,
    block_size: BlockSize,
    translators: BTreeMap<DpRank, Translator>,
    has_secondary_groups: bool,
    /// Blocks that contradict earlier events.
    contradictions: u64,
}

impl Follower {
    fn new(block_size: BlockSize) -> Self {
        let index = GroupedIndex::new(Box::<RunIndex>::default());
        Self { index, block_size, translators: BTreeMap::new(), has_secondary_groups: false, contradictions: 0 }
    }

    /// Applies a message; every event must translate.
    fn apply(&mut self, message: &RecordedMessage) {
        let rank = worker_rank(message.dp_rank);
        let options = TranslatorOptions {
            block_size: self.block_size,
            lora_name: None,
            removed_copies: RemovedCopies::One,
            cache_tier: None,
        };
        let translator = self.translators.entry(message.dp_rank).or_insert_with(|| Translator::new(options));
        for event in decode_batch(&message.payload).expect("a batch").events {
            let event = event.expect("a good event");
            for change in translator.translate(&event).unwrap_or_else(|error| panic!("{error}: {event:?}")) {
                self.has_secondary_groups |= matches!(change, RankEvent::Secondary(_));
                let applied = self.index.apply_event(rank, &change);
                self.contradictions += applied.refused + applied.moved + applied.unknown;
            }
        }
        assert!(!translator.has_unsupported_groups() && !translator.lacks_primary_group());
    }

    /// Prompt tokens that the rank can reuse from its cache. An engine always computes the last token, so the prefix
    /// excludes it.
    fn predict(&self, request: &RecordedRequest, dp_rank: DpRank) -> usize {
        let variant = HashVariant::new(request.lora_name.as_deref(), request.cache_salt.as_deref());
        let window = self.translators.get(&dp_rank).map(Translator::window).unwrap_or_default();
        let locals = local_hashes(variant, &request.prompt, self.block_size, window);
        let reusable = reusable_blocks(request.prompt.len(), self.block_size).min(locals.len());
        let found = self.index.find(&locals[..reusable]);
        found.get(worker_rank(dp_rank)).map_or(0, RankMatch::longest) as usize * self.block_size.token_count()
    }
}

fn worker_rank(dp_rank: DpRank) -> WorkerRank {
    WorkerRank { worker: WorkerId(1), dp_rank }
}

/// Predictions of one recording.
#[derive(Default)]
struct PredictionReport {
    requests: usize,
    hits: usize,
    different: Vec<String>,
}

fn check(recording: &Recording, follower: &mut Follower) -> PredictionReport {
    let mut report = PredictionReport::default();
    let mut own_messages: Vec<&RecordedMessage> = Vec::new();
    let mut after_reset = false;
    for line in &recording.lines {
        if let RecordedLine::Message(message) = line {
            own_messages.push(message);
            continue;
        }
        // The engine publishes a reset only with its next step: the next request may run before or after it.
        if let RecordedLine::Request(request) = line
            && !request.concurrent
            && !after_reset
        {
            let publisher = own_messages.first().map(|message| message.dp_rank);
            let dp_rank = request.dp_rank.or(publisher).unwrap_or(recording.dp_ranks[0]);
            let predicted = follower.predict(request, dp_rank);
            report.requests += 1;
            report.hits += usize::from(predicted > 0);
            if predicted != request.cached_tokens {
                let RecordedRequest { id, cached_tokens, .. } = request;
                report.different.push(format!("{id}: {predicted} predicted, {cached_tokens} cached"));
            }
        }
        after_reset = matches!(line, RecordedLine::Reset);
        own_messages.drain(..).for_each(|message| follower.apply(message));
    }
    report
}

fn streams(data: &Path) -> Vec<PathBuf> {
    let folder = std::fs::read_dir(data.join("engines")).expect("the folder of streams");
    let mut streams: Vec<_> = folder.map(|entry| entry.expect("an entry").path()).collect();
    streams.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    streams
}

#[test]
fn every_reported_hit_follows_from_the_stream() {
    let data = testdata();
    let streams = streams(&data);
    assert!(streams.len() >= 6, "the recorded streams are there");
    for stream in streams {
        let recording = Recording::open(&stream).expect("a recording");
        let mut follower = Follower::new(recording.block_size);
        let report = check(&recording, &mut follower);
        let name = stream.file_stem().expect("a name").to_string_lossy();
        println!("{name}: {} requests, {} with hits", report.requests, report.hits);
        // SGLang's default format omits `extra_key`, which separates blocks with equal tokens.
        if !recording.requests().any(|request| request.extra_key.is_some()) {
            assert!(report.different.is_empty(), "{name}: {:#?}", report.different);
            let from_the_start = recording.messages().next().is_some_and(|message| message.sequence == 0);
            assert!(follower.contradictions == 0 || !from_the_start, "{name}");
        }
        assert!(report.requests > 0 && report.hits > 0, "{name}: {} of {}", report.hits, report.requests);
        assert!(follower.has_secondary_groups || !name.contains("hybrid"), "{name}");
    }
}

#[test]
fn an_invalid_recording_is_rejected_with_its_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("recording.jsonl");
    let meta = "{\"kind\":\"meta\",\"engine\":\"none\"}";
    let rejection = |text: &str| {
        std::fs::write(&path, text).expect("a file");
        Recording::open(&path).expect_err("a broken recording").to_string()
    };
    let message = |frames: &str| rejection(&format!("{meta}\n{{\"kind\":\"msg\",\"t\":1.0,\"frames\":{frames}}}\n"));
    for error in
        [message("[\"6b\"]"), message("[\"6b\",\"00\",\"x\"]"), message("[\"6b\",\"0000000000000001\",\"c1\"]")]
    {
        assert!(error.starts_with("line 2 of "), "{error}");
    }
    assert!(rejection(meta).contains("stores no block"));
    assert!(rejection("{").starts_with("line 1 of "));
    assert!(Recording::open(&folder.path().join("absent")).is_err());
}
