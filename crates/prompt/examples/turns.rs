//! Measures the turns of a session: `cargo run --release -p flash-indexer-prompt --example turns -- MODELS MODEL`.
//!
//! `MODELS` is a directory of models as for `--tokenizer-dir`. The session grows from about 27,000 to 91,000 tokens in 20 turns of
//! a system prompt, questions, tool output and answers. Each turn's prompt is rendered as ChatML. The ids of every turn are
//! compared with those of the tokenizer library for the whole prompt. Times are processor time.

use std::fs;
use std::hint::black_box;
use std::path::PathBuf;
use std::time::Duration;

use flash_indexer_prompt::tokenize::{
    ModelDirectory, ModelDirectoryOptions, PoolOptions, Prompt, PromptOptions, SpecialTokens, TokenizerPool,
    TokenizerSource,
};
use tokenizers::Tokenizer;

const TURNS: usize = 20;
const FIRST_TOKENS: usize = 27_000;
const TURN_TOKENS: usize = 3_370;
/// Bytes of the cache.
const CACHE_BYTES: usize = 128 << 20;
const SESSIONS: usize = 4;
const THREADS: usize = 2;
/// Number of times that the throughput measurement sends each session's last turn, each time with a new end.
const ROUNDS: usize = 150;

/// Bytes of a long text whose memory is measured.
const LONG_BYTES: usize = 5_000_000;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(models), Some(model)) = (arguments.next().map(PathBuf::from), arguments.next()) else {
        eprintln!("usage: turns MODELS MODEL");
        std::process::exit(2);
    };
    let file = ModelDirectory::new(models.clone(), ModelDirectoryOptions::default()).models();
    let mut whole = Tokenizer::from_file(file[&model].join("tokenizer.json")).expect("a tokenizer");
    whole.with_truncation(None).expect("no truncation").with_padding(None);
    let pool = |workers| {
        let sources: Vec<Box<dyn TokenizerSource>> =
            vec![Box::new(ModelDirectory::new(models.clone(), ModelDirectoryOptions::default()))];
        let options = PoolOptions { workers, cached_bytes_max: CACHE_BYTES, ..PoolOptions::default() };
        TokenizerPool::start(sources, &options).expect("threads")
    };
    let options = PromptOptions { special_tokens: SpecialTokens::Omitted, ..PromptOptions::default() };
    let one = pool(1);
    one.tokenize_with(&model, Prompt::Text("warm".to_owned()), options).expect("tokens");

    println!("| turn | tokens | text bytes | whole text, ms | new text only, ms | the same prompt again, ms |");
    println!("| ---: | ---: | ---: | ---: | ---: | ---: |");
    let session = session(&whole, 0);
    for (turn, prompt) in session.iter().enumerate() {
        let (expected, whole_time) = time(|| whole.encode_fast(prompt.as_str(), false).expect("tokens"));
        let ours = || one.tokenize_with(&model, Prompt::Text(prompt.clone()), options).expect("tokens").ids;
        let (ids, new_time) = time(ours);
        let (again, again_time) = time(ours);
        assert!(ids == expected.get_ids() && again == ids, "turn {turn}: other ids than the whole text");
        if [0, 9, TURNS - 1].contains(&turn) {
            let ms = |time: Duration| format!("{:.2}", time.as_secs_f64() * 1e3);
            let (tokens, bytes, turn) = (ids.len(), prompt.len(), turn + 1);
            println!("| {turn} | {tokens} | {bytes} | {} | {} | {} |", ms(whole_time), ms(new_time), ms(again_time));
        }
    }
    let pieces = one.statistics().pieces;
    println!("\ncache: {} pieces, {} bytes of {}", pieces.entries, pieces.bytes, pieces.bytes_max);

    let pool = pool(THREADS);
    let prompts: Vec<String> =
        (0..SESSIONS).map(|seed| self::session(&whole, seed as u64).pop().expect("turns")).collect();
    for prompt in &prompts {
        pool.tokenize_with(&model, Prompt::Text(prompt.clone()), options).expect("tokens");
    }
    let ((), processors) = time(|| {
        std::thread::scope(|scope| {
            for (session, prompt) in (0_u64..).zip(&prompts) {
                let (pool, model) = (&pool, &model);
                scope.spawn(move || {
                    for round in 0..ROUNDS as u64 {
                        let turn = format!("{prompt}{}", question((1 << 40) + (session << 20) + round, 40));
                        black_box(pool.tokenize_with(model, Prompt::Text(turn), options).expect("tokens"));
                    }
                });
            }
        });
    });
    let each = processors.as_secs_f64() / (SESSIONS * ROUNDS) as f64;
    let requests = THREADS as f64 / each;
    println!(
        "{SESSIONS} sessions at turn {TURNS}: {:.2} ms of processor time each, {requests:.0} requests/s on {THREADS} processors",
        each * 1e3
    );

    let mut long: String = (0..).map(|number| question((1 << 50) + number, 300)).take(LONG_BYTES / 1_000).collect();
    long.truncate(LONG_BYTES);
    let bytes = long.len();
    let ours = peak_memory(|| drop(pool.tokenize_with(&model, Prompt::Text(long.clone()), options).expect("tokens")));
    let whole = peak_memory(|| drop(whole.encode_fast(long.as_str(), false).expect("tokens")));
    let per_byte = |memory: u64| memory as f64 / bytes as f64;
    println!(
        "peak memory for each byte of a text of {bytes} bytes: {:.1} bytes, whole text {:.1} bytes",
        per_byte(ours),
        per_byte(whole)
    );
}

/// The peak of the memory that some work adds to this process, in bytes, by Linux's count of resident memory.
fn peak_memory(work: impl FnOnce()) -> u64 {
    let read = |field: &str| {
        let status = fs::read_to_string("/proc/self/status").expect("Linux");
        let line = status.lines().find(|line| line.starts_with(field)).expect("a field");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") << 10
    };
    // Resets the peak.
    fs::write("/proc/self/clear_refs", "5").expect("Linux");
    let before = read("VmRSS");
    work();
    read("VmHWM").saturating_sub(before)
}

/// The processor time of some work, in all threads. Other programs on the machine hardly change it.
fn time<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let begun = processor_time();
    let result = work();
    (result, processor_time() - begun)
}

/// The processor time of this process so far, from Linux's statistics of its threads.
fn processor_time() -> Duration {
    let threads = fs::read_dir("/proc/self/task").expect("Linux").flatten();
    let nanoseconds = threads.filter_map(|thread| {
        let statistics = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        statistics.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanoseconds.sum())
}

/// The prompts of a session, turn by turn.
fn session(tokenizer: &Tokenizer, seed: u64) -> Vec<String> {
    let length = |text: &str| tokenizer.encode_fast(text, false).expect("tokens").len();
    let mut text = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n".to_owned();
    let mut message = seed << 32;
    let (mut prompts, mut tokens) = (Vec::new(), length(&text));
    for turn in 0..TURNS {
        let wanted = FIRST_TOKENS + turn * TURN_TOKENS;
        while tokens < wanted {
            let next = question(message, 300);
            tokens += length(&next);
            text.push_str(&next);
            message += 1;
        }
        prompts.push(format!("{text}<|im_start|>assistant\n"));
    }
    prompts
}

/// A message of words, code and numbers, and another one that answers it.
fn question(number: u64, words: usize) -> String {
    const WORDS: [&str; 24] = [
        "the", "longest", "prefix", "of", "a", "request", "is", "held", "by", "worker", "blocks", "cache", "let",
        "mut", "index", "=", "tokens", "(", ");", "router", "sends", "to", "evicted", "answer",
    ];
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678;
    let mut next = |limit: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize % limit
    };
    let mut say = |role: &str, words: usize| {
        let mut text = format!("<|im_start|>{role}\n");
        for word in 0..words {
            match next(40) {
                0 => text.push_str(&format!(" {}", next(100_000))),
                1 => text.push_str(".\n"),
                2 => text.push_str(&format!(" item_{}x{}", next(5_000), next(900))),
                _ if word == 0 => text.push_str("Then"),
                _ => text.push_str(&format!(" {}", WORDS[next(WORDS.len())])),
            }
        }
        text + "<|im_end|>\n"
    };
    say("user", words) + &say("assistant", words / 2)
}
