//! Sessions of coding agents: many requests each. Nearly the whole prompt of a request was in the previous one.
//!
//! A session starts with a system prompt that it shares with others, or with the prompt of the session that forked it
//! as a sub-agent. Each request appends what happened since: the last output, tool results, a message. A session whose
//! prompt would become too long is compacted: it keeps the system prompt and replaces the rest by a summary. Some
//! sessions drop each output's reasoning from their history, so the next prompt leaves the cached chain where the
//! output began.
//!
//! Blocks have 64 tokens. The quantiles below, in blocks, tokens and requests, describe published measurements of such
//! traffic; `tests/it/workloads.rs` checks the generator against them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::GeneratedPrompt;
use super::quantiles::{Quantiles, uniform};
use crate::random::Random;

/// Requests of a session.
const REQUESTS: Quantiles =
    Quantiles(&[(0.0, 2.0), (0.1, 7.5), (0.3, 21.0), (0.5, 46.5), (0.7, 92.0), (0.9, 180.0), (1.0, 400.0)]);
/// Blocks of a session's first prompt.
const FIRST_BLOCKS: Quantiles = Quantiles(&[
    (0.0, 205.0),
    (0.1, 226.0),
    (0.3, 290.0),
    (0.5, 375.0),
    (0.6, 520.0),
    (0.7, 900.0),
    (0.8, 1_800.0),
    (0.9, 3_690.0),
    (1.0, 3_950.0),
]);
/// Blocks of a prompt that the previous prompt of its session did not have.
const NEW_BLOCKS: Quantiles = Quantiles(&[
    (0.0, 1.6),
    (0.1, 3.3),
    (0.3, 6.2),
    (0.5, 11.5),
    (0.6, 18.0),
    (0.7, 27.0),
    (0.8, 42.0),
    (0.9, 62.0),
    (0.93, 150.0),
    (0.96, 480.0),
    (0.99, 1_430.0),
    (1.0, 2_000.0),
]);
/// Tokens of an output.
const OUTPUT_TOKENS: Quantiles =
    Quantiles(&[(0.0, 40.0), (0.1, 105.0), (0.5, 225.0), (0.7, 460.0), (0.9, 932.0), (1.0, 4_000.0)]);
/// Blocks of a prompt after compaction.
const COMPACTED_BLOCKS: Quantiles = Quantiles(&[(0.0, 600.0), (1.0, 900.0)]);
/// Blocks of a system prompt.
const SYSTEM_BLOCKS: Quantiles = Quantiles(&[(0.0, 100.0), (1.0, 180.0)]);
/// A prompt that would be longer is compacted.
const PROMPT_BLOCKS_MAX: usize = 4_250;
/// Of steps with more new blocks than this, this percentage replaces the end of the prompt instead of extending it.
const LARGE_STEP_BLOCKS: usize = 150;
const LARGE_STEPS_REPLACING_PERCENT: u64 = 50;
/// Tokens of a block.
const BLOCK_TOKENS: usize = 64;
/// Percentage of steps that are like the session's others.
const LIKE_STEPS_PERCENT: u64 = 60;
/// Time between two requests of a session, in milliseconds; it varies by half of it.
const INTERVAL_MS: usize = 18_000;

/// Options of the sessions.
#[derive(Debug, Clone)]
pub struct AgenticOptions {
    /// Sessions that are open at the same time.
    pub open_sessions: usize,
    /// Number of system prompts.
    pub system_prompts: usize,
    /// Percentage of sessions whose prompts repeat the outputs in full; the others drop each output's reasoning.
    pub whole_outputs_percent: u64,
    /// Percentage of sessions that are sub-agents of an open session and share the start of its prompt.
    pub sub_agents_percent: u64,
}

impl Default for AgenticOptions {
    fn default() -> Self {
        Self { open_sessions: 96, system_prompts: 8, whole_outputs_percent: 50, sub_agents_percent: 15 }
    }
}

/// An endless stream of prompts, equal for equal options and seed.
#[derive(Debug)]
pub struct AgenticSessions {
    options: AgenticOptions,
    random: Random,
    systems: Vec<Vec<u64>>,
    /// Open sessions; a session that ends makes room for a new one.
    open: Vec<Session>,
    /// When each open session sends its next prompt, earliest first.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    sessions: u64,
    blocks: u64,
    /// Start of the sequences of [`AgenticSessions::spread`].
    offsets: [f64; 3],
}

#[derive(Debug, Default)]
struct Session {
    number: u64,
    is_started: bool,
    requests_left: usize,
    /// Blocks of the first prompt.
    first_blocks: usize,
    /// Blocks of the last prompt; before the first one, the blocks that it shares.
    prompt: Vec<u64>,
    /// Blocks of the start that compaction keeps.
    system: usize,
    /// Complete blocks of the last output.
    output: Vec<u64>,
    keeps_outputs: bool,
    /// How busy its steps are, as a quantile.
    pace: f64,
    /// Quantile of the next step: a long answer precedes much new text.
    next_step: f64,
}

impl AgenticSessions {
    /// A stream that depends on `options` and `seed` alone.
    #[must_use]
    pub fn new(options: AgenticOptions, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let offsets = [(); 3].map(|()| uniform(&mut random));
        let (systems, open, due) = (Vec::new(), Vec::new(), BinaryHeap::new());
        let mut sessions = Self { options, random, systems, open, due, sessions: 0, blocks: 0, offsets };
        for _ in 0..sessions.options.system_prompts.max(1) {
            let length = SYSTEM_BLOCKS.draw(&mut sessions.random);
            let system = sessions.new_blocks(length);
            sessions.systems.push(system);
        }
        for at in 0..sessions.options.open_sessions.max(1) {
            let session = sessions.start();
            sessions.open.push(session);
            let due = sessions.random.within(0..INTERVAL_MS) as u64;
            sessions.due.push(Reverse((due, at)));
        }
        sessions
    }

    fn new_blocks(&mut self, count: usize) -> Vec<u64> {
        self.blocks += count as u64;
        (self.blocks - count as u64..self.blocks).collect()
    }

    /// A session that has sent no request yet. Its prompt is the blocks that it shares.
    fn start(&mut self) -> Session {
        let number = self.sessions;
        self.sessions += 1;
        let is_sub_agent = !self.open.is_empty() && self.percent(self.options.sub_agents_percent);
        let (shared, system) = match is_sub_agent {
            true => {
                let parent = self.random.within(0..self.open.len());
                (self.open[parent].prompt.clone(), self.open[parent].system)
            }
            false => {
                let system = self.random.within(0..self.systems.len());
                (self.systems[system].clone(), self.systems[system].len())
            }
        };
        Session {
            number,
            is_started: false,
            requests_left: REQUESTS.at(self.spread(number, 0)),
            first_blocks: FIRST_BLOCKS.at(self.spread(number, 1)),
            prompt: shared,
            system,
            output: Vec::new(),
            keeps_outputs: self.percent(self.options.whole_outputs_percent),
            pace: self.spread(number, 2),
            next_step: 0.0,
        }
    }

    /// A quantile of a session in one of three dimensions, spread evenly over the sessions: a few hundred of them already
    /// have the distributions.
    fn spread(&self, session: u64, dimension: usize) -> f64 {
        // Powers of the inverse root of x⁴ = x + 1: Roberts's sequence, the golden ratio's in three dimensions.
        let steps = [0.819_172_513_396_164_5, 0.671_043_606_703_789_3, 0.549_700_477_901_970_3];
        (self.offsets[dimension] + (session + 1) as f64 * steps[dimension]).fract()
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.random.next() % 100 < percent
    }

    /// The blocks of a session's next prompt.
    fn prompt(&mut self, session: &Session) -> Vec<u64> {
        let mut prompt = session.prompt.clone();
        if !session.is_started {
            let length = session.first_blocks;
            // A sub-agent has its own task.
            prompt.truncate(length - length / 16);
            prompt.extend(self.new_blocks(length - prompt.len()));
            return prompt;
        }
        let new = NEW_BLOCKS.at(session.next_step).max(1);
        let replaces = new > LARGE_STEP_BLOCKS && self.percent(LARGE_STEPS_REPLACING_PERCENT);
        if replaces || prompt.len() + new > PROMPT_BLOCKS_MAX {
            // Other content replaces the prompt's end, or everything after the system prompt.
            let kept = prompt.len().checked_sub(new).filter(|&kept| kept > session.system);
            let (kept, appended) = match kept.filter(|_| replaces || self.random.one_in(2)) {
                Some(kept) => (kept, new),
                None => (session.system, COMPACTED_BLOCKS.draw(&mut self.random) - session.system),
            };
            prompt.truncate(kept);
            prompt.extend(self.new_blocks(appended));
            return prompt;
        }
        if session.keeps_outputs {
            prompt.extend(&session.output);
        }
        prompt.extend(self.new_blocks((session.prompt.len() + new).saturating_sub(prompt.len())));
        prompt
    }

    /// Quantile of a session's next step. Most steps are like the session's others; over all sessions every quantile is
    /// equally likely.
    fn step_of(&mut self, pace: f64) -> f64 {
        let step = uniform(&mut self.random);
        if !self.percent(LIKE_STEPS_PERCENT) {
            return step;
        }
        let near = (pace + 0.3 * (step - 0.5)).abs();
        if near > 1.0 { 2.0 - near } else { near }
    }
}

impl Iterator for AgenticSessions {
    type Item = GeneratedPrompt;

    fn next(&mut self) -> Option<GeneratedPrompt> {
        let Reverse((at_ms, at)) = self.due.pop()?;
        let mut session = std::mem::take(&mut self.open[at]);
        session.prompt = self.prompt(&session);
        session.is_started = true;
        session.next_step = self.step_of(session.pace);
        let output_tokens = OUTPUT_TOKENS.at(session.next_step);
        // The prompt's last tokens do not fill a block; the output completes it.
        let begun = self.random.within(0..BLOCK_TOKENS);
        session.output = self.new_blocks((begun + output_tokens) / BLOCK_TOKENS);
        session.requests_left = session.requests_left.saturating_sub(1);
        let prompt = GeneratedPrompt {
            at_ms,
            session: session.number,
            hash_ids: session.prompt.clone(),
            output_ids: session.output.clone(),
            output_tokens,
        };
        let is_over = session.requests_left == 0;
        self.open[at] = session;
        if is_over {
            self.open[at] = self.start();
        }
        let pause = self.random.within(INTERVAL_MS / 2..INTERVAL_MS * 3 / 2);
        self.due.push(Reverse((at_ms + pause as u64, at)));
        Some(prompt)
    }
}
