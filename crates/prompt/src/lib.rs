//! The prompt pipeline: tokenizes texts and chats as inference engines do.
//!
//! A chat is changed as its engine changes it ([`flash_indexer_engine_chats`]), rendered with its model's template by the crate
//! [`chat_template`], and tokenized without further special tokens. Token ids equal those of `transformers` 5 with
//! `tokenizers` 0.23; `tests/tokenize/` compares them.
//!
//! | file in `tokenize/` | role |
//! |---|---|
//! | `pool.rs`, `options.rs`, `queue.rs`, `job.rs` | [`TokenizerPool`](tokenize::TokenizerPool): worker threads and their queue |
//! | `pieces/` | incremental tokenization: cuts of a text, and the cache of tokenized pieces |
//! | `prompt.rs`, `truncation.rs` | input and output of tokenization; truncation from the left |
//! | `models.rs` | cache of tokenizers and of missing models |
//! | `source.rs`, `sliced.rs` | [`TokenizerSource`](tokenize::TokenizerSource): the interface of sources; work in slices |
//! | `local/` | tokenizers from files: configured paths, and directories that are searched |
//! | `hub.rs` | tokenizers from the Hugging Face hub, with the feature `hub` |
//! | `service/` | tokenizers in another process, over gRPC |
//! | `error.rs`, `limits.rs`, `counters.rs` | errors and their reasons; limits that errors name; counters for metrics |

pub mod tokenize;
