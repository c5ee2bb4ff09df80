//! Recorded streams: an index that receives their messages predicts the cached tokens that the engine reported.

use std::time::Instant;

use flash_indexer_core::hashing::HashVariant;
use flash_indexer_core::{DpRank, Tier, WorkerId, WorkerRank};
use flash_indexer_embed::{EmbeddedIndex, EngineOptions};
use flash_indexer_sim::{RecordedLine, RecordedRequest, Recording, reusable_blocks};
use flash_indexer_test_support::testdata;

const ENGINE: WorkerId = WorkerId(7);

/// Prompt tokens that the rank can reuse. An engine always computes the last token.
fn predict(index: &EmbeddedIndex, request: &RecordedRequest, dp_rank: DpRank) -> usize {
    let variant = HashVariant::new(request.lora_name.as_deref(), request.cache_salt.as_deref());
    let found = index.find_tokens(variant, &request.prompt, None).expect("an answer");
    let rank = WorkerRank { worker: ENGINE, dp_rank };
    let depth = found.iter().find(|found| found.rank == rank).map_or(0, |found| found.blocks[Tier::External]) as usize;
    depth.min(reusable_blocks(request.prompt.len(), index.block_size())) * index.block_size().token_count()
}

/// Number of requests, number of requests with hits, and the requests whose prediction differs.
fn check(recording: &Recording) -> (usize, usize, Vec<String>) {
    let index = EmbeddedIndex::new(recording.block_size);
    index.register(ENGINE, EngineOptions::default()).expect("registered");
    let (mut requests, mut hits, mut different) = (0, 0, Vec::new());
    let (mut own_messages, mut after_reset) = (Vec::new(), false);
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
            let predicted = predict(&index, request, dp_rank);
            requests += 1;
            hits += usize::from(predicted > 0);
            if predicted != request.cached_tokens {
                different.push(format!("{}: {predicted} predicted, {} cached", request.id, request.cached_tokens));
            }
        }
        after_reset = matches!(line, RecordedLine::Reset);
        for message in own_messages.drain(..) {
            let stream = WorkerRank { worker: ENGINE, dp_rank: message.dp_rank };
            let report = index.apply_payload(stream, message.sequence, &message.payload, Instant::now());
            let report = report.expect("applied");
            assert_eq!((report.messages, report.rejections), (1, vec![]), "message {}", message.sequence);
        }
    }
    (requests, hits, different)
}

#[test]
fn every_reported_hit_follows_from_the_messages() {
    let folder = std::fs::read_dir(testdata().join("engines")).expect("the folder of streams");
    let mut streams: Vec<_> = folder.map(|entry| entry.expect("an entry").path()).collect();
    streams.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    assert!(streams.len() >= 6, "the recorded streams are there");
    for path in streams {
        let recording = Recording::open(&path).expect("a recording");
        let (requests, hits, different) = check(&recording);
        assert!(requests > 0 && hits > 0, "{}: {hits} of {requests}", path.display());
        // SGLang's default format omits `extra_key`, which separates blocks with equal tokens.
        if !recording.requests().any(|request| request.extra_key.is_some()) {
            assert!(different.is_empty(), "{}: {different:#?}", path.display());
        }
    }
}
