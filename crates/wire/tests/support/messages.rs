//! Arbitrary bytes as messages of engines, and the invariants of each decoded message.
//!
//! ```text
//!  input:    kind (8) | content
//!  batch:    a MessagePack payload
//!  pulled:   block size (8) | JSON responses of the pull API, each ended by a zero byte
//!  frames:   frames, each ended by a zero byte
//! ```

use flash_indexer_core::groups::RankEvent;
use flash_indexer_core::hashing::BlockSize;
use flash_indexer_core::run::RunIndex;
use flash_indexer_core::{DpRank, RemovedCopies, SharedIndex, Tier, WorkerId, WorkerRank};
use flash_indexer_wire::{
    Batch, BatchOutline, BlockRemoved, BlockStored, Encoding, EngineAdapter, EngineEvent, EventError, ExtraKey,
    LiveMessage, PullReader, ReplayReply, SkippedBlocks, TokenIds, TopicNames, Translator, TranslatorOptions,
    decode_batch, encode_batch,
};

/// Decodes bytes as messages; panics if one of them is not decoded as it should be.
pub(crate) fn play(bytes: &[u8]) {
    match bytes {
        [kind, pulled @ ..] if kind % 4 == 1 => check_pulled(pulled),
        [kind, frames @ ..] if kind % 4 == 2 => check_frames(frames),
        [_, payload @ ..] => check_batch(payload),
        [] => {}
    }
}

/// Checks a payload.
pub(crate) fn check_batch(payload: &[u8]) {
    let outline = match (BatchOutline::of(payload), decode_batch(payload)) {
        (Ok(outline), Ok(batch)) => {
            let (of_outline, of_batch) = (outline.batch(payload, EngineAdapter::Detect), batch);
            assert_eq!(of_outline.timestamp.to_bits(), of_batch.timestamp.to_bits());
            assert_eq!((of_outline.dp_rank, of_outline.events), (of_batch.dp_rank, of_batch.events));
            outline
        }
        (outline, batch) => return assert_eq!(outline.err(), batch.err(), "both reject the payload for one reason"),
    };
    for adapter in [EngineAdapter::Detect, EngineAdapter::Vllm, EngineAdapter::Sglang, EngineAdapter::TensorRtLlm] {
        check_events(payload, outline, adapter);
    }
    let batch = outline.batch(payload, EngineAdapter::Detect);
    for event in batch.events.clone().flatten() {
        for encoding in [Encoding::Map, Encoding::Array] {
            check_encoding(&event, (batch.timestamp, batch.dp_rank), encoding);
        }
    }
    check_translation(&batch);
}

/// Each event is decoded alike from the start and from its own position on, and has no more elements than bytes.
fn check_events(payload: &[u8], outline: BatchOutline, adapter: EngineAdapter) {
    let mut events = outline.batch(payload, adapter).events;
    let whole: Vec<_> = events.clone().collect();
    for expected in whole {
        let start = events.offset();
        let resumed = outline.of_rest(&events).batch(payload, adapter).events.next();
        let event = events.next().expect("as many events as before");
        assert_eq!((Some(&event), &event), (resumed.as_ref(), &expected));
        let bytes = events.offset() - start;
        assert!(bytes > 0 && events.offset() <= payload.len(), "{bytes} bytes of {event:?}");
        if let Ok(event) = event {
            assert!(elements(&event) <= bytes, "{} elements in {bytes} bytes: {event:?}", elements(&event));
        }
    }
    assert!(events.is_empty());
}

/// Elements of an event's lists.
fn elements(event: &EngineEvent<'_>) -> usize {
    let tokens = |tokens: &TokenIds| match tokens {
        TokenIds::Plain(tokens) => tokens.len(),
        TokenIds::Bigrams(pairs) => 2 * pairs.len(),
        TokenIds::Hashed(hashed) => hashed.local_hashes.len(),
    };
    let keys = |keys: &Option<Vec<Option<Vec<ExtraKey<'_>>>>>| {
        keys.iter().flatten().map(|keys| keys.as_ref().map_or(1, |keys| keys.len().max(1))).sum::<usize>()
    };
    match event {
        EngineEvent::Stored(event) => {
            let lookahead = event.lookahead_token_ids.iter().flatten().map(|tokens| 1 + tokens.len()).sum::<usize>();
            let skipped =
                event.skipped.as_ref().map_or(0, |skipped| tokens(&skipped.token_ids) + keys(&skipped.extra_keys));
            event.block_hashes.len() + tokens(&event.token_ids) + keys(&event.extra_keys) + lookahead + skipped
        }
        EngineEvent::Removed(event) => {
            event.block_hashes.len() + event.remaining_copy_counts.as_ref().map_or(0, Vec::len)
        }
        EngineEvent::Transferred(event) => event.block_hashes.len(),
        EngineEvent::Inactive(event) => event.block_hashes.len(),
        EngineEvent::Cleared | EngineEvent::ClearedScope(_) => 0,
    }
}

/// An event that is encoded decodes to the same one, without the fields that the encoding does not have.
fn check_encoding(event: &EngineEvent<'_>, (timestamp, dp_rank): (f64, Option<DpRank>), encoding: Encoding) {
    let encoded = encode_batch(timestamp, std::slice::from_ref(event), dp_rank, encoding);
    let batch = EngineAdapter::Vllm.batch(&encoded).expect("an encoded batch");
    assert_eq!((batch.timestamp.to_bits(), batch.dp_rank), (timestamp.to_bits(), dp_rank));
    let decoded: Vec<_> = batch.events.collect();
    let expected = match encoding {
        Encoding::Map => in_map(event.clone()),
        Encoding::Array => in_array(event.clone()),
    };
    assert_eq!(decoded, [Ok(expected)], "{encoding:?} of {event:?}");
}

/// The event as a map has it: skipped blocks are not written.
fn in_map(event: EngineEvent<'_>) -> EngineEvent<'_> {
    let EngineEvent::Stored(mut stored) = event else { return event };
    let parent = stored.skipped.and_then(|skipped| skipped.parent_block_hash);
    stored.skipped =
        parent.map(|parent| Box::new(SkippedBlocks { parent_block_hash: Some(parent), ..SkippedBlocks::default() }));
    EngineEvent::Stored(stored)
}

/// The event as an array of vLLM 0.23 has it.
fn in_array(event: EngineEvent<'_>) -> EngineEvent<'_> {
    match event {
        EngineEvent::Stored(stored) => EngineEvent::Stored(BlockStored {
            token_ids: match stored.token_ids {
                TokenIds::Hashed(_) => TokenIds::default(),
                tokens => tokens,
            },
            cache_salt: None,
            locality: None,
            ownership: None,
            session_id: None,
            lookahead_token_ids: None,
            skipped: None,
            origin: None,
            components: None,
            ..stored
        }),
        EngineEvent::Removed(removed) => EngineEvent::Removed(BlockRemoved {
            locality: None,
            ownership: None,
            remaining_copy_counts: None,
            reason: None,
            ..removed
        }),
        event => event,
    }
}

/// Nothing is left in an index after the rank is cleared, whatever its events were.
fn check_translation(batch: &Batch<'_>) {
    let index = RunIndex::default();
    let rank = WorkerRank { worker: WorkerId(1), dp_rank: batch.dp_rank.unwrap_or_default() };
    for (removed_copies, cache_tier) in [(RemovedCopies::One, None), (RemovedCopies::All, Some(Tier::External))] {
        let block_size = BlockSize::new(2).expect("two");
        let mut translator =
            Translator::new(TranslatorOptions { block_size, lora_name: None, removed_copies, cache_tier });
        for event in batch.events.clone().flatten() {
            for change in translator.translate(&event).into_iter().flatten() {
                if let RankEvent::Primary(event) = &change {
                    index.apply(rank, event);
                }
            }
        }
        index.clear_rank(rank);
        assert_eq!((index.memory().runs, index.memory().domains), (0, 0));
    }
}

/// Checks responses of one engine: each numbered event becomes one message, whose batch has only events that the decoder
/// accepts, or stands for one that is left out.
fn check_pulled(bytes: &[u8]) {
    let Some((block_size, responses)) = bytes.split_first() else { return };
    let mut reader = PullReader::new(BlockSize::new(u32::from(block_size % 5) + 1).expect("not zero"));
    for response in responses.split(|&byte| byte == 0) {
        let Ok(pulled) = reader.read(response, 1.5) else { continue };
        let mut left_out = pulled.left_out.iter();
        for message in &pulled.messages {
            let batch = decode_batch(&message.payload).expect("a batch");
            let (timestamp, dp_rank) = (batch.timestamp, batch.dp_rank);
            match batch.events.clone().collect::<Result<Vec<_>, _>>() {
                Ok(events) => {
                    assert_eq!(message.payload, encode_batch(timestamp, &events, dp_rank, Encoding::Map));
                }
                Err(EventError::LeftOut { reason, .. }) => {
                    assert_eq!(left_out.next().map(|error| error.reason()), Some(reason));
                }
                Err(error) => panic!("{error}: {message:?}"),
            }
            check_batch(&message.payload);
        }
        assert_eq!(left_out.next(), None, "each event that is left out has a message");
        let steps_back = pulled.messages.windows(2).filter(|pair| {
            pair[1].sequence < pair[0].sequence || (pair[1].sequence == pair[0].sequence && pair[0].sequence < u64::MAX)
        });
        assert!(steps_back.count() <= 1, "a response is of one process, and shows one restart: {:?}", pulled.messages);
    }
}

/// Checks frames of one message, live and replayed.
fn check_frames(bytes: &[u8]) {
    let frames: Vec<&[u8]> = bytes.split(|&byte| byte == 0).collect();
    let (live, replayed) = (LiveMessage::from_frames(&frames), ReplayReply::from_frames(&frames));
    if let Ok(live) = live {
        assert_eq!(Some(&live.payload), frames.last());
        assert_eq!(live.sequence.is_some(), frames.len() == 3);
        if let Ok(names) = TopicNames::of(live.topic) {
            assert!(names.pod.len() + names.model.map_or(0, str::len) <= live.topic.len());
        }
    }
    if let (Ok(LiveMessage { sequence: Some(number), payload: of_live, .. }), Ok(reply)) = (live, replayed) {
        match reply {
            ReplayReply::Message { sequence, payload, .. } => assert_eq!((sequence, payload), (number, of_live)),
            ReplayReply::End => assert_eq!((number, of_live), (u64::MAX, &[][..])),
        }
    }
    check_batch(frames.last().expect("a split has a part"));
}
