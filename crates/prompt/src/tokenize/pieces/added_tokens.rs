//! Splits a text at a tokenizer's added tokens, exactly as the `tokenizers` crate does.

use std::collections::VecDeque;
use std::ops::Range;

use aho_corasick::{AhoCorasick, Input, MatchKind};
use tokenizers::AddedToken;

/// A part of a text: an added token, or the text between two.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Segment {
    Text(Range<usize>),
    Token(u32),
}

/// Added tokens of one kind: tokens that match the text itself, or tokens that match the normalized text.
pub(super) struct AddedTokens {
    /// `None` if there are no tokens.
    automaton: Option<AhoCorasick>,
    rules: Vec<Rule>,
}

struct Rule {
    id: u32,
    /// Whether the token takes the whitespace before it.
    lstrip: bool,
    /// Whether the token takes the whitespace after it.
    rstrip: bool,
}

/// Position in a text.
#[derive(Debug, Default, Clone)]
pub(super) struct ScanPosition {
    /// End of the last match of a token.
    pub(super) searched: usize,
    /// End of the last segment.
    taken: usize,
    /// A token that follows the last segment.
    token: Option<u32>,
}

/// Special tokens at known places of a text. Text elsewhere that spells out a token stays text.
pub(super) struct PlacedTokens {
    /// Places and ids. An empty place separates two texts.
    tokens: VecDeque<(Range<usize>, u32)>,
    /// End of the last segment.
    taken: usize,
}

impl PlacedTokens {
    /// Tokens by place, in the order of their places.
    pub(super) fn new(tokens: VecDeque<(Range<usize>, u32)>) -> Self {
        Self { tokens, taken: 0 }
    }

    /// The next segment of a text. Segments of text are not empty.
    pub(super) fn next(&mut self, text: &str) -> Option<Segment> {
        loop {
            let end = self.tokens.front().map_or(text.len(), |(place, _)| place.start);
            if end > self.taken {
                return Some(Segment::Text(std::mem::replace(&mut self.taken, end)..end));
            }
            let (place, id) = self.tokens.pop_front()?;
            self.taken = place.end;
            if !place.is_empty() {
                return Some(Segment::Token(id));
            }
        }
    }
}

impl AddedTokens {
    /// Tokens with their ids and the texts that they match.
    ///
    /// # Errors
    ///
    /// If a token matches whole words only. Whether it matches depends on characters that the crate classifies.
    pub(super) fn new<'t>(tokens: impl Iterator<Item = (u32, &'t str, &'t AddedToken)>) -> Result<Self, String> {
        let (mut rules, mut texts) = (Vec::new(), Vec::new());
        for (id, text, token) in tokens {
            if token.single_word {
                return Err(format!("the added token {:?} matches single words only", token.content));
            }
            rules.push(Rule { id, lstrip: token.lstrip, rstrip: token.rstrip });
            texts.push(text);
        }
        let automaton = match texts.is_empty() {
            true => None,
            false => Some(
                AhoCorasick::builder()
                    .match_kind(MatchKind::LeftmostLongest)
                    .build(texts)
                    .map_err(|error| format!("the added tokens cannot be searched for: {error}"))?,
            ),
        };
        Ok(Self { automaton, rules })
    }

    /// The next segment of a text. Segments of text are not empty.
    pub(super) fn next(&self, text: &str, position: &mut ScanPosition) -> Option<Segment> {
        if let Some(id) = position.token.take() {
            return Some(Segment::Token(id));
        }
        let rest = Input::new(text).range(position.searched..);
        let found = self.automaton.as_ref().and_then(|automaton| automaton.find(rest));
        let Some(found) = found else {
            position.searched = text.len();
            let last = std::mem::replace(&mut position.taken, text.len())..text.len();
            return (!last.is_empty()).then_some(Segment::Text(last));
        };
        let Rule { id, lstrip, rstrip } = self.rules[found.pattern()];
        let (mut start, mut end) = (found.start(), found.end());
        if lstrip {
            start = text[..start].trim_end().len().max(position.taken);
        }
        if rstrip {
            end = text.len() - text[end..].trim_start().len();
        }
        position.searched = found.end();
        let before = std::mem::replace(&mut position.taken, end)..start;
        if before.is_empty() {
            return Some(Segment::Token(id));
        }
        position.token = Some(id);
        Some(Segment::Text(before))
    }
}
