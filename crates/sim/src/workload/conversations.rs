//! Conversations of many turns over a few shared system prompts.

use std::collections::VecDeque;
use std::ops::Range;

use super::Request;
use crate::random::{Random, token};

/// Shape of the conversations. Lengths are in tokens.
#[derive(Debug, Clone)]
pub struct ConversationOptions {
    /// Different system prompts.
    pub system_prompts: usize,
    /// How long they are.
    pub system_tokens: Range<usize>,
    /// How long a user's message is.
    pub message_tokens: Range<usize>,
    /// How long an answer is.
    pub answer_tokens: Range<usize>,
    /// A conversation ends when its next prompt would be longer.
    pub prompt_tokens_max: usize,
    /// Conversations that go on at the same time.
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

/// An endless stream of requests, the same for the same seed.
#[derive(Debug)]
pub struct Conversations {
    options: ConversationOptions,
    random: Random,
    systems: Vec<Vec<u32>>,
    /// What each open conversation has said so far.
    open: VecDeque<Vec<u32>>,
    texts: u64,
    at_ms: u64,
}

impl Conversations {
    /// A stream that depends on nothing but its options and `seed`.
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

    /// Tokens that nobody has said before.
    fn text(&mut self, length: Range<usize>) -> Vec<u32> {
        self.texts += 1;
        let length = self.random.within(length) as u64;
        (0..length).map(|position| token(self.texts, position)).collect()
    }

    /// What the next request continues: an open conversation, or a system prompt.
    fn history(&mut self) -> Vec<u32> {
        let room = self.open.len() < self.options.open_conversations;
        if self.open.is_empty() || (room && self.random.one_in(3)) {
            let system = self.random.within(0..self.systems.len());
            return self.systems[system].clone();
        }
        let at = self.random.within(0..self.open.len());
        self.open.remove(at).expect("the place is inside")
    }
}

impl Iterator for Conversations {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        let mut prompt = self.history();
        prompt.extend(self.text(self.options.message_tokens.clone()));
        let output = self.text(self.options.answer_tokens.clone());
        if prompt.len() + output.len() + self.options.message_tokens.end < self.options.prompt_tokens_max {
            let mut said = prompt.clone();
            said.extend(&output);
            self.open.push_back(said);
        }
        let at_ms = self.at_ms;
        self.at_ms += self.options.interval_ms;
        Some(Request { at_ms, prompt, output })
    }
}
