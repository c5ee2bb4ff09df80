//! A chat of ten thousand tokens, from the request to depths.

use std::path::Path;

use anyhow::{Context, Result, bail};
use chat_template::{ChatRequest, ChatTemplates};
use flash_indexer_bench::{Backend, Contender, DesignContender, MatchTotals, Setup, WorkerEvent};
use flash_indexer_core::hashing::{BlockSize, HashVariant, TokenWindow, local_hashes, sequence_hashes};
use flash_indexer_core::{Block, BlockEvent, DpRank, LocalHash, Tier, WorkerId, WorkerRank};
use flash_indexer_designs::Design;
use flash_indexer_prompt::tokenize::{
    ModelDirectory, ModelDirectoryOptions, PoolOptions, Prompt, TokenizerPool, TokenizerSource,
};

use super::{BLOCK_TOKENS, PROMPT_TOKENS, Part, line, time, time_prepared};

/// Number of pods. All of them hold the whole prompt.
const PODS: usize = 40;
/// Words of one message.
const MESSAGE_WORDS: usize = 200;

/// The figures, and the prompt's tokens.
pub(super) fn measure(tokenizers: &Path, rounds: usize) -> Result<(Part, Vec<u32>)> {
    let directory = ModelDirectory::new(tokenizers.to_owned(), ModelDirectoryOptions::default());
    let Some((model, path)) = directory.models().into_iter().next() else {
        bail!("no tokenizer.json in or below {}", tokenizers.display());
    };
    let templates = ChatTemplates::read(&path)?.with_context(|| format!("{} has no chat template", path.display()))?;
    let sources: Vec<Box<dyn TokenizerSource>> = vec![Box::new(directory)];
    let pool = TokenizerPool::start(sources, &PoolOptions::default())?;
    let tokens_of = |request: &ChatRequest| pool.tokenize(&model, Prompt::Chat(Box::new(request.clone().into())));

    let request = chat_of_length(|request| Ok(tokens_of(request)?.ids.len()))?;
    let text = templates.render(&request)?;
    let tokens = tokens_of(&request)?.ids;
    let locals = hash(&tokens);
    let backend = held_by_all(&locals);
    let mut finder = backend.finder();
    let mut ask = |locals: &[LocalHash]| {
        finder.load(locals);
        finder.find();
        finder.totals()
    };
    let expected = MatchTotals { workers: PODS as u64, blocks: (PODS * locals.len()) as u64 };
    if ask(&locals) != expected {
        bail!("the index does not find the stored prompt");
    }

    let lines = vec![
        line("rendering the template", time(rounds, || templates.render(&request)), None),
        line(
            "tokenizing the text, through the pool",
            time_prepared(rounds, || text.clone(), |text| pool.tokenize(&model, Prompt::Text(text))),
            None,
        ),
        line("hashing the tokens", time(rounds, || hash(&tokens)), None),
        line("looking up the hashes", time(rounds, || ask(&locals)), None),
        line(
            "total",
            time_prepared(
                rounds,
                || request.clone(),
                |request| {
                    pool.tokenize(&model, Prompt::Chat(Box::new(request.into())))
                        .map(|tokenized| ask(&hash(&tokenized.ids)))
                },
            ),
            None,
        ),
    ];
    let about = format!(
        "A chat of {} tokens ({} messages) and {PODS} pods that hold all of it: BERT's word pieces, whose tokenizer is in `testdata/`. \
         The request's thread submits to the pool and waits.",
        tokens.len(),
        request.messages.len()
    );
    Ok((Part { title: "A chat, end to end".to_owned(), about, lines }, tokens))
}

fn hash(tokens: &[u32]) -> Vec<LocalHash> {
    let block_size = BlockSize::new(BLOCK_TOKENS).expect("blocks have tokens");
    local_hashes(HashVariant::default(), tokens, block_size, TokenWindow::default())
}

/// A chat with at least the required number of tokens, with messages of synthetic sentences.
fn chat_of_length(tokens: impl Fn(&ChatRequest) -> Result<usize>) -> Result<ChatRequest> {
    const WORDS: [&str; 24] = [
        "router",
        "cache",
        "prefix",
        "the",
        "of",
        "block",
        "holds",
        "longest",
        "engine",
        "answers",
        "while",
        "question",
        "token",
        "a",
        "memory",
        "worker",
        "that",
        "was",
        "evicted",
        "again",
        "and",
        "seldom",
        "throughput",
        "is",
    ];
    let mut chosen = 7_usize;
    let mut sentence = || {
        let words = (0..MESSAGE_WORDS).map(|_| {
            chosen = chosen.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            WORDS[(chosen >> 33) % WORDS.len()]
        });
        words.collect::<Vec<_>>().join(" ")
    };
    let mut messages = vec![serde_json::json!({"role": "system", "content": sentence()})];
    loop {
        let request: ChatRequest = serde_json::from_value(serde_json::json!({"messages": messages}))?;
        if tokens(&request)? >= PROMPT_TOKENS {
            return Ok(request);
        }
        let role = if messages.len() % 2 == 1 { "user" } else { "assistant" };
        messages.push(serde_json::json!({"role": role, "content": sentence()}));
    }
}

fn held_by_all(locals: &[LocalHash]) -> Box<dyn Backend> {
    let backend = DesignContender(Design::DEFAULT).build(Setup { workers: PODS, event_threads: 1 });
    let blocks = locals.iter().zip(sequence_hashes(locals));
    let blocks: Vec<Block> = blocks.map(|(&local, sequence)| Block { sequence, local }).collect();
    let event = |pod: usize| WorkerEvent {
        rank: WorkerRank { worker: WorkerId(pod as u64), dp_rank: DpRank(0) },
        event: BlockEvent::Stored { tier: Tier::Device, parent: None, blocks: blocks.clone(), copies: 1 },
    };
    let events: Vec<WorkerEvent> = (0..PODS).map(event).collect();
    let mut lane = backend.lane(events.iter().collect());
    lane.apply(events.len());
    lane.settle();
    drop(lane);
    backend
}
