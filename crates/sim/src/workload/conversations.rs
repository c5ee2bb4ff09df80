//! Synthetic conversations of many turns over a few shared system prompts.

use std::collections::VecDeque;
use std::ops::Range;

use super::Request;
use crate::random::{Random, token};

/// Options of the conversations. Lengths are in tokens.
#[derive(Debug, Clone)]
pub struct ConversationOptions {
    /// Number of system prompts.
    pub system_prompts: usize,
    /// Length of a system prompt.
    pub system_tokens: Range<usize>,
    /// Length of a user's message.
    pub message_tokens: Range<usize>,
    /// Length of an answer.
    pub answer_tokens: Range<usize>,
    /// Longest prompt; a conversation ends when its next prompt would exceed it.
    pub prompt_tokens_max: usize,
    /// Conversations that are open at the same time.
    pub open_conversations: usize,
    /// Time between requests, in milliseconds.
    pub interval_ms: u64,
}

impl Default for ConversationOptions {
    fn default() -> Self {
        Self {
            system_prompts: 8,
            system_tokens: 200..2_000,
            message_tokens: 10..300,
            answer_tokens: 20..400,
            prompt_tokens_max: 8_000,
            open_conversations: 256,
            interval_ms: 5,
        }
    }
}

/// An endless stream of requests, equal for equal options and seed.
#[derive(Debug)]
pub struct Conversations {
    options: ConversationOptions,
    random: Random,
    systems: Vec<Vec<u32>>,
    /// Tokens of each open conversation so far.
    open: VecDeque<Vec<u32>>,
    texts: u64,
    at_ms: u64,
}

impl Conversations {
    /// A stream that depends on `options` and `seed` alone.
    #[must_use]
    pub fn new(options: ConversationOptions, seed: u64) -> Self {
        let random = Random::new(seed);
        let mut stream =
            Self { options, random, systems: Vec::new(), open: VecDeque::new(), texts: seed << 32, at_ms: 0 };
        stream.systems = (0..stream.options.system_prompts.max(1))
            .map(|_| stream.text(stream.options.system_tokens.clone()))
            .collect();
        stream
    }

    /// Tokens of a new, unique text.
    fn text(&mut self, length: Range<usize>) -> Vec<u32> {
        self.texts += 1;
        let length = self.random.within(length) as u64;
        (0..length).map(|position| token(self.texts, position)).collect()
    }

    /// Tokens that the next request continues: an open conversation, or a system prompt.
    fn history(&mut self) -> Vec<u32> {
        let room = self.open.len() < self.options.open_conversations;
        if self.open.is_empty() || (room && self.random.one_in(3)) {
            let system = self.random.within(0..self.systems.len());
            return self.systems[system].clone();
        }
        let at = self.random.within(0..self.open.len());
        self.open.remove(at).expect("the index is in range")
    }
}

impl Iterator for Conversations {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        let mut prompt = self.history();
        prompt.extend(self.text(self.options.message_tokens.clone()));
        let output = self.text(self.options.answer_tokens.clone());
        if prompt.len() + output.len() + self.options.message_tokens.end < self.options.prompt_tokens_max {
            let mut conversation = prompt.clone();
            conversation.extend(&output);
            self.open.push_back(conversation);
        }
        let at_ms = self.at_ms;
        self.at_ms += self.options.interval_ms;
        Some(Request { at_ms, prompt, output })
    }
}
