//! Ten thousand tokens to keys, by each contract.

use flash_indexer_bench::keys::{CborFnvKeys, TokenProcessor, Xxh3Keys, Xxh64Keys};
use flash_indexer_core::hashing::{BlockSize, HashVariant, TokenWindow, local_hashes};
use flash_indexer_wire::Sha256CborChain;

use super::{BLOCK_TOKENS, Part, line, time};

const MODEL: &str = "llama-3-8b";

pub(super) fn measure(tokens: &[u32], rounds: usize) -> Part {
    let block_size = BlockSize::new(BLOCK_TOKENS).expect("blocks have tokens");
    let (mut xxh3, mut fnv) = (Xxh3Keys::new(HashVariant::default()), CborFnvKeys::new("", MODEL));
    let (mut xxh64, mut sha256) = (Xxh64Keys::new("", MODEL), Sha256CborChain::new("0"));
    let lines = vec![
        line(
            "XXH3 of each block: the local hashes of a query",
            time(rounds, || local_hashes(HashVariant::default(), tokens, block_size, TokenWindow::default())),
            None,
        ),
        line("XXH3 chain", time(rounds, || xxh3.keys(None, tokens, block_size)), None),
        line("cbor-fnv", time(rounds, || fnv.keys(None, tokens, block_size)), Some("193 µs (10,000 tokens)")),
        line("xxh64", time(rounds, || xxh64.keys(None, tokens, block_size)), Some("23.7 µs (10,000 tokens)")),
        line("sha256_cbor, as vLLM", time(rounds, || sha256.keys(None, tokens, block_size)), None),
    ];
    Part { title: "Keys of the same prompt".to_owned(), about: format!("{} tokens.", tokens.len()), lines }
}
