//! Ids of one piece.

use tokenizers::models::ModelWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{Model, NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizer, Tokenizer};

use super::added_tokens::{AddedTokens, ScanPosition, Segment};
use super::analysis::{Normalization, components, normalization, normalize};

/// Encoding of a piece to its ids.
pub(super) enum Encoder {
    /// The steps of the `tokenizers` crate. The pre-tokenizer is that of pieces that do not begin the text, if it differs.
    Steps { later: Option<PreTokenizerWrapper> },
    /// The same ids for a pre-tokenizer of regular expressions that writes bytes as letters, without the crate's record
    /// of where each byte comes from.
    Bytes { is_normalized: bool, patterns: usize, normalized_tokens: AddedTokens, letters: Box<[char; 256]> },
}

impl Encoder {
    pub(super) fn of(tokenizer: &Tokenizer) -> Self {
        let later = tokenizer.get_pre_tokenizer().and_then(|first| {
            let mut later = first.clone();
            (prepends_first(&mut later)).then_some(later)
        });
        bytes(tokenizer).unwrap_or(Self::Steps { later })
    }

    /// Whether the ids of a piece at the start of a text differ from those of the same piece elsewhere.
    pub(super) fn depends_on_place(&self) -> bool {
        matches!(self, Self::Steps { later: Some(_) })
    }

    /// Appends the ids of a piece that has no added tokens except normalized ones.
    pub(super) fn encode(
        &self,
        tokenizer: &Tokenizer,
        piece: &str,
        is_first: bool,
        ids: &mut Vec<u32>,
    ) -> tokenizers::Result<()> {
        match self {
            Self::Steps { later } => {
                let later = later.as_ref().filter(|_| !is_first);
                encode_in_steps(tokenizer, later.or(tokenizer.get_pre_tokenizer()), piece, ids)
            }
            Self::Bytes { is_normalized, patterns, normalized_tokens, letters } => {
                let mut normalized = None;
                if *is_normalized && !piece.chars().all(is_nfc_alone) {
                    let mut string = NormalizedString::from(piece);
                    tokenizer.get_normalizer().map_or(Ok(()), |normalizer| normalizer.normalize(&mut string))?;
                    normalized = Some(string);
                }
                let text = normalized.as_ref().map_or(piece, NormalizedString::get);
                let mut words = Words { model: tokenizer.get_model(), letters, word: String::new(), ids };
                let splits = &components(tokenizer.get_pre_tokenizer())[..*patterns];
                let mut position = ScanPosition::default();
                while let Some(segment) = normalized_tokens.next(text, &mut position) {
                    match segment {
                        Segment::Token(id) => words.ids.push(id),
                        Segment::Text(range) => words.encode(splits, &text[range])?,
                    }
                }
                Ok(())
            }
        }
    }
}

/// Removes the prefix of pieces that begin a text. False if there is none.
fn prepends_first(pre_tokenizer: &mut PreTokenizerWrapper) -> bool {
    match pre_tokenizer {
        PreTokenizerWrapper::Metaspace(metaspace) if metaspace.get_prepend_scheme() == PrependScheme::First => {
            metaspace.set_prepend_scheme(PrependScheme::Never);
            true
        }
        PreTokenizerWrapper::Sequence(sequence) => {
            sequence.as_mut().iter_mut().fold(false, |found, part| prepends_first(part) | found)
        }
        _ => false,
    }
}

fn encode_in_steps(
    tokenizer: &Tokenizer,
    pre_tokenizer: Option<&PreTokenizerWrapper>,
    piece: &str,
    ids: &mut Vec<u32>,
) -> tokenizers::Result<()> {
    let mut splits = tokenizer.get_added_vocabulary().extract_and_normalize(tokenizer.get_normalizer(), piece);
    if let Some(pre_tokenizer) = pre_tokenizer {
        pre_tokenizer.pre_tokenize(&mut splits)?;
    }
    splits.tokenize(|split| tokenizer.get_model().tokenize(split.get()))?;
    for (_, _, tokens) in splits.get_splits(OffsetReferential::Normalized, OffsetType::None) {
        ids.extend(tokens.iter().flatten().map(|token| token.id));
    }
    Ok(())
}

fn bytes(tokenizer: &Tokenizer) -> Option<Encoder> {
    let is_normalized = match normalization(tokenizer.get_normalizer())? {
        Normalization::Unchanged => false,
        Normalization::Nfc => true,
        Normalization::SpaceSigns { .. } | Normalization::Local(_) => return None,
    };
    let (last, splits) = components(tokenizer.get_pre_tokenizer()).split_last()?;
    let PreTokenizerWrapper::ByteLevel(level) = last else { return None };
    if level.add_prefix_space || level.use_regex || !splits.iter().all(|split| isolating(split).is_some()) {
        return None;
    }
    let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
    let normalized: Vec<_> = added.iter().filter(|(_, token)| token.normalized).collect();
    let contents: Vec<_> = normalized.iter().map(|(_, token)| normalize(tokenizer, &token.content)).collect();
    let tokens = normalized.iter().zip(&contents).map(|((id, token), content)| (**id, content.as_str(), *token));
    let normalized_tokens = AddedTokens::new(tokens).ok()?;
    Some(Encoder::Bytes { is_normalized, patterns: splits.len(), normalized_tokens, letters: Box::new(letters()) })
}

/// A split whose matches and the text between them are words.
fn isolating(part: &PreTokenizerWrapper) -> Option<&Split> {
    let PreTokenizerWrapper::Split(split) = part else { return None };
    let is_regex = matches!(split.pattern, SplitPattern::Regex(_));
    (is_regex && split.behavior == SplitDelimiterBehavior::Isolated && !split.invert).then_some(split)
}

/// The letter that stands for each byte, as in GPT-2: printable Latin-1 stands for itself, other bytes are counted from 256.
pub(in crate::tokenize) fn letters() -> [char; 256] {
    let mut others = 256..;
    std::array::from_fn(|byte| {
        let is_itself = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let code = if is_itself { byte as u32 } else { others.next().unwrap_or_default() };
        char::from_u32(code).unwrap_or_default()
    })
}

/// Whether a text of such characters is its own NFC: each is a starter that composes with nothing before it.
fn is_nfc_alone(character: char) -> bool {
    matches!(character,
        '\0'..='\u{2ff}' | '\u{400}'..='\u{482}' | '\u{2010}'..='\u{2027}' | '\u{2190}'..='\u{21ff}'
        | '\u{2500}'..='\u{25ff}' | '\u{3001}'..='\u{3029}' | 'ぁ'..='ゔ' | 'ァ'..='ヺ' | '\u{4e00}'..='\u{9fff}'
        | '가'..='힣' | '！'..='～' | '\u{1f300}'..='\u{1faff}')
}

/// Collects the ids of words.
struct Words<'a> {
    model: &'a ModelWrapper,
    letters: &'a [char; 256],
    word: String,
    ids: &'a mut Vec<u32>,
}

impl Words<'_> {
    /// Appends the ids of a text, split by each of the patterns in turn.
    fn encode(&mut self, splits: &[PreTokenizerWrapper], text: &str) -> tokenizers::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let Some((split, others)) = splits.split_first() else { return self.encode_word(text) };
        let Some(split) = isolating(split) else { return Err("a pre-tokenizer that is not a split".into()) };
        let mut end = 0;
        for (start, next_end) in split.regex.find_iter(text) {
            self.encode(others, &text[end..start])?;
            self.encode(others, &text[start..next_end])?;
            end = next_end;
        }
        self.encode(others, &text[end..])
    }

    fn encode_word(&mut self, text: &str) -> tokenizers::Result<()> {
        self.word.clear();
        self.word.extend(text.bytes().map(|byte| self.letters[usize::from(byte)]));
        self.ids.extend(self.model.tokenize(&self.word)?.iter().map(|token| token.id));
        Ok(())
    }
}
