//! A simulated engine's events are exact: an index that applies them predicts every hit.

use flash_indexer_core::groups::RankEvent;
use flash_indexer_core::hashing::{BlockSize, HashVariant, TokenWindow, local_hashes};
use flash_indexer_core::{DpRank, PrefixIndex, RemovedCopies, Tier, WorkerId, WorkerRank};
use flash_indexer_designs::RadixTree;
use flash_indexer_sim::workload::{ConversationOptions, Conversations, MooncakeTrace};
use flash_indexer_sim::{EngineOptions, Request, RequestTooLarge, SimulatedEngine};
use flash_indexer_wire::{Encoding, EngineEvent, Translator, TranslatorOptions, decode_batch};

const RANK: WorkerRank = WorkerRank { worker: WorkerId(1), dp_rank: DpRank(0) };

fn block_size() -> BlockSize {
    BlockSize::new(16).expect("sixteen")
}

fn options(blocks: usize) -> EngineOptions {
    EngineOptions {
        block_size: block_size(),
        blocks,
        dp_rank: DpRank(0),
        hash_seed: "0".to_owned(),
        encoding: Encoding::Map,
    }
}

fn conversations(seed: u64) -> Conversations {
    Conversations::new(ConversationOptions { open_conversations: 12, ..ConversationOptions::default() }, seed)
}

/// Cached tokens that the index predicts, limited to the tokens that an engine can reuse.
fn predicted(index: &RadixTree, request: &Request) -> usize {
    let locals = local_hashes(HashVariant::default(), &request.prompt, block_size(), TokenWindow::Block);
    let usable = (request.prompt.len() - 1) / block_size().token_count();
    let found = index.find(&locals).get(RANK).map_or(0, |found| found.blocks[Tier::Device] as usize);
    found.min(usable) * block_size().token_count()
}

#[test]
fn an_index_fed_by_the_engine_predicts_every_hit() {
    let mut engine = SimulatedEngine::new(options(700));
    let mut translator = Translator::new(TranslatorOptions {
        block_size: block_size(),
        lora_name: None,
        removed_copies: RemovedCopies::One,
        cache_tier: None,
    });
    let mut index = RadixTree::default();
    let (mut hits, mut duplicates, mut removals, mut sequence) = (0, 0, 0, 0);
    for request in conversations(3).take(600) {
        // A repeated prompt of whole blocks stores a second copy of its last block.
        let whole = request.prompt.len() / 16 * 16;
        let repeated = Request { prompt: request.prompt[..whole].to_vec(), output: vec![1], ..request.clone() };
        for request in [request, repeated.clone(), repeated] {
            let expected = predicted(&index, &request);
            let served = engine.serve(&request, 1.0).expect("the cache is large enough");
            assert_eq!(served.cached_tokens, expected);
            hits += expected;
            for batch in served.batches {
                assert_eq!(batch.sequence, sequence);
                sequence += 1;
                let decoded = decode_batch(&batch.payload).expect("a batch");
                for event in decoded.events {
                    let event = event.expect("a good event");
                    removals += usize::from(matches!(event, EngineEvent::Removed(_)));
                    for event in translator.translate(&event).expect("a usable event") {
                        let RankEvent::Primary(event) = event else { panic!("another cache group: {event:?}") };
                        let applied = index.apply(RANK, &event);
                        assert_eq!((applied.waiting, applied.moved, applied.unknown), (0, 0, 0));
                        duplicates += applied.duplicate;
                    }
                }
            }
        }
    }
    assert!(hits > 0 && duplicates > 0 && removals > 0, "{hits} {duplicates} {removals}");
    let copies: u32 = index.held(RANK).iter().map(|block| block.copies[Tier::Device]).sum();
    assert_eq!(copies as usize, engine.cache().cached_blocks());
}

#[test]
fn the_least_recently_used_ends_of_sequences_are_evicted_first() {
    let mut engine = SimulatedEngine::new(options(6));
    let request =
        |start: u32, blocks: u32| Request { at_ms: 0, prompt: (start..start + 16 * blocks).collect(), output: vec![] };
    let mut cached = |request: &Request| engine.serve(request, 0.0).expect("it fits").cached_tokens;
    let (long, other) = (request(0, 4), request(1_000, 4));
    assert_eq!(cached(&long), 0);
    assert_eq!(cached(&other), 0, "takes the two unused blocks and the last two of the first");
    // 16 more tokens: not even a fully cached prompt is used to its last token.
    assert_eq!(cached(&Request { prompt: (0..48).collect(), ..long.clone() }), 32);
}

#[test]
fn a_request_larger_than_the_cache_is_rejected_and_changes_nothing() {
    let mut engine = SimulatedEngine::new(options(4));
    let request = |tokens| Request { at_ms: 0, prompt: (0..tokens).collect(), output: vec![7; 17] };
    assert_eq!(engine.serve(&request(64), 0.0), Err(RequestTooLarge { needed: 5, capacity: 4 }));
    assert_eq!(engine.last_sequence(), None);
    assert!(engine.serve(&request(48), 0.0).is_ok());
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let run = |seed| {
        let mut engine = SimulatedEngine::new(options(2_000));
        let requests = conversations(seed).take(40);
        requests.flat_map(|request| engine.serve(&request, 1.0).expect("it fits").batches).collect::<Vec<_>>()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn a_trace_gives_equal_tokens_for_equal_hash_ids() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.jsonl");
    let lines = "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 3, \"hash_ids\": [4, 9]}\n\
                 {\"timestamp\": 27, \"input_length\": 1024, \"output_length\": 1, \"hash_ids\": [4, 5]}\n";
    std::fs::write(&path, lines).expect("a file");
    let trace = MooncakeTrace::open(&path).expect("a trace");
    let requests: Vec<Request> = trace.requests(1).collect();
    assert_eq!(requests.iter().map(|request| request.prompt.len()).collect::<Vec<_>>(), [600, 1024]);
    assert_eq!(requests[0].prompt[..512], requests[1].prompt[..512]);
    assert_ne!(requests[0].prompt[512..600], requests[1].prompt[512..600]);
    assert_eq!((requests[1].at_ms, requests[0].output.len()), (27, 3));

    std::fs::write(&path, "{\"timestamp\": 0}\n").expect("a file");
    let error = MooncakeTrace::open(&path).expect_err("no request");
    assert!(error.to_string().starts_with("line 1 of "), "{error}");
    std::fs::write(&path, lines.replace("600", "1600")).expect("a file");
    assert!(MooncakeTrace::open(&path).is_err(), "too few hash ids");
}
