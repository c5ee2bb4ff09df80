//! Cuts inside a text that has no added tokens.

/// Bytes of a piece before the first cut that is considered.
const PIECE_BYTES_MIN: usize = 1 << 10;
/// Size of a piece, in bytes, from which any possible cut is taken. A piece is longer only where no cut is possible.
const PIECE_BYTES_MAX: usize = 8 << 10;
/// Bytes before a cut that decide whether a piece ends there.
const WINDOW_BYTES: usize = 8;
/// One in this number of possible cuts is taken, as a power of two.
const CHOSEN_BITS: u32 = 6;

/// Where a text may be cut.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cuts {
    pub(super) rule: CutRule,
    /// Added tokens that are not cut.
    pub(super) uncut: Vec<String>,
}

/// Where a text may be cut: between a [letter or digit](is_word) and a separator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CutRule {
    /// The pre-tokenizer always splits between a word and one of the [separators](is_separator).
    Separators,
    /// The vocabulary has no token with a space after a letter or digit, and the model merges nothing across it.
    ///
    /// `is_prepended` if the normalizer puts a space before each text. The space at which a text is cut is left out then.
    Spaces { is_prepended: bool },
    /// The pre-tokenizer always splits before the space between two letters or digits and another one, or a second space,
    /// and the normalizer treats both sides alone.
    SpacesBetweenWords,
}

impl Cuts {
    /// The end of the piece that begins at `from`, and the start of the next one.
    ///
    /// Both depend on bytes near the cut only, so texts with a common part have common pieces.
    pub(super) fn next(&self, text: &str, from: usize) -> (usize, usize) {
        let first = from + PIECE_BYTES_MIN;
        // At least two bytes follow a cut: a space, and the text that it belongs to.
        for at in first..text.len().saturating_sub(1) {
            if !self.rule.allows(text, at) {
                continue;
            }
            let is_chosen = at - from >= PIECE_BYTES_MAX || is_chosen(&text.as_bytes()[at - WINDOW_BYTES..at]);
            if is_chosen && !self.uncut.iter().any(|token| is_inside(token, text, at)) {
                let skipped = usize::from(self.rule == CutRule::Spaces { is_prepended: true });
                return (at, at + skipped);
            }
        }
        (text.len(), text.len())
    }
}

impl Cuts {
    /// The last place of a text after `from` and before `end` that may be cut, regardless of what follows the text.
    pub(super) fn last(&self, text: &str, from: usize, end: usize) -> Option<usize> {
        // As in `next`, at least two bytes follow a cut.
        let is_cut =
            |at: &usize| self.rule.allows(text, *at) && !self.uncut.iter().any(|token| is_inside(token, text, *at));
        (from + 1..end.saturating_sub(1)).rev().find(is_cut)
    }
}

impl CutRule {
    /// Whether a cut could separate a token.
    pub(super) fn cuts_within(self, token: &str) -> bool {
        (1..token.len()).any(|at| self.allows(token, at))
    }

    pub(super) fn allows(self, text: &str, at: usize) -> bool {
        let is_separated = match self {
            Self::Separators => is_separator(&text.as_bytes()[at..]),
            Self::Spaces { .. } | Self::SpacesBetweenWords => text.as_bytes()[at] == b' ',
        };
        // A separator begins a character, so the text can be split there.
        let mut before = text[..if is_separated { at } else { 0 }].chars().rev();
        let follows_word = before.next().is_some_and(is_word);
        match self {
            // Two of these characters are two graphemes, and neither is one with the space.
            Self::SpacesBetweenWords if follows_word => {
                let is_space_alone = |next: char| next == ' ' || is_word(next);
                before.next().is_some_and(is_word) && text[at + 1..].chars().next().is_some_and(is_space_alone)
            }
            _ => follows_word,
        }
    }
}

/// Whether a place of a text is inside an occurrence of a token.
fn is_inside(token: &str, text: &str, at: usize) -> bool {
    let starts = at.saturating_sub(token.len() - 1)..at;
    starts.into_iter().any(|start| text.as_bytes()[start..].starts_with(token.as_bytes()))
}

/// Whether the text begins with a separator: ASCII that is printable or a tab or a newline, and no letter, digit or apostrophe,
/// or one of three CJK punctuation marks. Normalization to NFC changes no separator and composes it with no character before it.
pub(super) fn is_separator(text: &[u8]) -> bool {
    match text[0] {
        b'\'' => false,
        b'\t' | b'\n' | b' '..=b'~' => !text[0].is_ascii_alphanumeric(),
        0xe3 => text.starts_with("、".as_bytes()) || text.starts_with("。".as_bytes()),
        0xef => text.starts_with("，".as_bytes()),
        _ => false,
    }
}

/// Whether a character has the Unicode category letter, or is an ASCII digit. Covers the common letters of the largest
/// scripts, which have been letters in every version of Unicode that a regular expression may know.
pub(super) fn is_word(character: char) -> bool {
    matches!(character,
        'a'..='z' | 'A'..='Z' | '0'..='9'
        | 'À'..='Ö' | 'Ø'..='ö' | 'ø'..='ÿ'
        | 'α'..='ω' | 'А'..='я' | 'א'..='ת'
        | '\u{621}'..='\u{63a}' | '\u{641}'..='\u{64a}'
        | '\u{905}'..='\u{939}' | '\u{e01}'..='\u{e2e}'
        | 'ぁ'..='ゔ' | 'ァ'..='ヺ' | '\u{4e00}'..='\u{9fa5}' | '가'..='힣')
}

/// Chooses cuts by the bytes before them.
fn is_chosen(window: &[u8]) -> bool {
    let mut bytes = [0; WINDOW_BYTES];
    bytes.copy_from_slice(window);
    (u64::from_le_bytes(bytes).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - CHOSEN_BITS)) == 0
}
