//! Questions about long documents that many prompts share.

use std::ops::Range;

use super::GeneratedPrompt;
use super::quantiles::uniform;
use crate::random::Random;

/// Blocks of a document: 240 on average, and a question brings a prompt to 244.
const DOCUMENT_BLOCKS: Range<usize> = 120..361;
/// Blocks of a question.
const QUESTION_BLOCKS: Range<usize> = 2..7;
/// Time between prompts, in milliseconds.
const INTERVAL_MS: u64 = 50;

/// An endless stream of prompts about `documents` documents, equal for equal numbers of documents and seeds. A few
/// documents are asked about most.
#[derive(Debug)]
pub struct DocumentPrompts {
    random: Random,
    /// First block id and length of each document.
    documents: Vec<(u64, usize)>,
    prompts: u64,
    blocks: u64,
}

impl DocumentPrompts {
    /// A stream that depends on `documents`, at least one, and `seed` alone.
    #[must_use]
    pub fn new(documents: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut blocks = 0;
        let document = |_| {
            let length = random.within(DOCUMENT_BLOCKS);
            blocks += length as u64;
            (blocks - length as u64, length)
        };
        let documents = (0..documents.max(1)).map(document).collect();
        Self { random, documents, prompts: 0, blocks }
    }
}

impl Iterator for DocumentPrompts {
    type Item = GeneratedPrompt;

    fn next(&mut self) -> Option<GeneratedPrompt> {
        let popularity = uniform(&mut self.random);
        let chosen = (popularity * popularity * self.documents.len() as f64) as usize;
        let (first, length) = self.documents[chosen.min(self.documents.len() - 1)];
        let question = self.random.within(QUESTION_BLOCKS) as u64;
        let own = self.blocks..self.blocks + question;
        self.blocks = own.end;
        let session = self.prompts;
        self.prompts += 1;
        let hash_ids = (first..first + length as u64).chain(own).collect();
        Some(GeneratedPrompt {
            at_ms: session * INTERVAL_MS,
            session,
            hash_ids,
            output_ids: Vec::new(),
            output_tokens: 0,
        })
    }
}
