//! A router with the run index inside the process: no service, no sockets.
//!
//! One thread applies events, any number of threads query. Readers never block.

use flash_indexer_core::hashing::{BlockSize, HashVariant, TokenWindow, local_hashes};
use flash_indexer_core::run::RunIndex;
use flash_indexer_core::{Block, BlockEvent, DpRank, LocalHash, SequenceHash, SharedIndex, Tier, WorkerId, WorkerRank};

/// Tokens in a block of this fleet.
const BLOCK_TOKENS: u32 = 16;

/// The event of an engine that stored these blocks of a prompt in device memory. `first` is the engine's own hash of the
/// first block; engines choose block names freely, as long as a name identifies one prefix.
fn stored(locals: &[LocalHash], first: u64) -> BlockEvent {
    let block = |(at, &local): (usize, &LocalHash)| Block { sequence: SequenceHash(first + at as u64), local };
    BlockEvent::Stored {
        tier: Tier::Device,
        parent: None,
        blocks: locals.iter().enumerate().map(block).collect(),
        copies: 1,
    }
}

/// The instance that holds most leading blocks of a prompt, and the number of these tokens.
fn choose(index: &RunIndex, prompt: &[LocalHash]) -> Option<(WorkerId, u32)> {
    let scores = index.find(prompt);
    let best = scores.ranks.iter().max_by_key(|found| found.longest())?;
    Some((best.rank.worker, best.longest() * BLOCK_TOKENS))
}

fn main() {
    let block_size = BlockSize::new(BLOCK_TOKENS).expect("not zero");
    let hash = |tokens: &[u32]| local_hashes(HashVariant::default(), tokens, block_size, TokenWindow::Block);
    let index = RunIndex::default();

    // Instance 1 holds a system prompt of 64 tokens, instance 2 holds that prompt and the first turn of a session.
    let system: Vec<u32> = (0..64).collect();
    let session: Vec<u32> = (0..192).collect();
    for (instance, tokens) in [(1, &system), (2, &session)] {
        let rank = WorkerRank { worker: WorkerId(instance), dp_rank: DpRank(0) };
        index.apply(rank, &stored(&hash(tokens), instance * 1_000));
    }

    // Queries run concurrently with each other and with a thread that applies events.
    std::thread::scope(|scope| {
        let next_turn: Vec<u32> = (0..200).collect();
        let other: Vec<u32> = (0..64).chain(900..1_000).collect();
        for (name, prompt) in [("the session's next turn", next_turn), ("another session", other)] {
            let (index, locals) = (&index, hash(&prompt));
            scope.spawn(move || match choose(index, &locals) {
                Some((instance, tokens)) => println!("{name}: instance {} holds {tokens} tokens", instance.0),
                None => println!("{name}: no instance holds its first block"),
            });
        }
    });
}
