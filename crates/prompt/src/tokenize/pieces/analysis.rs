//! Where the texts of a tokenizer may be cut.

use tokenizers::models::ModelWrapper;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{Model, NormalizedString, Normalizer, Tokenizer};

use super::cuts::{CutRule, Cuts, is_separator, is_word};
use super::local_normalization::{LocalNormalization, local};

/// Where the texts of a tokenizer are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cutting {
    /// Nowhere: a component of the tokenizer may look across any cut.
    Nowhere,
    /// Around added tokens.
    AddedTokens,
    /// Around added tokens, and between words.
    Words,
}

impl Cutting {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Nowhere, Self::AddedTokens, Self::Words];

    /// The name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nowhere => "nowhere",
            Self::AddedTokens => "added_tokens",
            Self::Words => "words",
        }
    }
}

/// Changes to a text before its pre-tokenizer runs, as far as they matter for cuts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Normalization {
    Unchanged,
    Nfc,
    /// Spaces become `▁`.
    SpaceSigns {
        is_prepended: bool,
    },
    /// Both sides of a space between words are normalized alone.
    Local(LocalNormalization),
}

/// The sign that stands for a space.
const SPACE_SIGN: &str = "▁";

/// Why a tokenizer's texts cannot be cut at all. `None` if they can be cut around added tokens: the `tokenizers` crate
/// normalizes, splits and tokenizes the text between two added tokens without the rest. The
/// [encoder](super::encoder::Encoder) handles the one exception.
pub(super) fn obstacle(tokenizer: &Tokenizer) -> Option<String> {
    let is_random = matches!(tokenizer.get_model(), ModelWrapper::BPE(model) if model.dropout.is_some());
    if is_random {
        return Some("the model drops merges at random".to_owned());
    }
    let is_adjusted = tokenizer.get_truncation().is_some() || tokenizer.get_padding().is_some();
    let ignores_special_tokens = tokenizer.get_encode_special_tokens();
    (is_adjusted || ignores_special_tokens).then(|| "it truncates, pads or ignores special tokens".to_owned())
}

/// Cuts between words that cannot change an id.
///
/// # Errors
///
/// The component that is not known to allow them.
pub(super) fn cuts(tokenizer: &Tokenizer) -> Result<Cuts, String> {
    let normalization = normalization(tokenizer.get_normalizer())
        .ok_or_else(|| "the normalizer is not known to treat words alone".to_owned())?;
    let rule = cut_rule(tokenizer, normalization)?;
    let mut uncut = Vec::new();
    for token in tokenizer.get_added_vocabulary().get_added_tokens_decoder().values().filter(|token| token.normalized) {
        let sees_more = token.lstrip || token.rstrip || token.single_word;
        let is_cuttable = match normalization {
            Normalization::Local(_) => has_separator(&normalize(tokenizer, &token.content)),
            _ => rule.cuts_within(&token.content) || token.content.contains(SPACE_SIGN),
        };
        if sees_more || (is_cuttable && normalization != Normalization::Unchanged) {
            return Err(format!("the added token {:?} matches the normalized text", token.content));
        }
        if is_cuttable {
            uncut.push(token.content.clone());
        }
    }
    Ok(Cuts { rule, uncut })
}

/// Whether a text has a separator or a sign for a space after its first byte.
fn has_separator(text: &str) -> bool {
    text.contains(SPACE_SIGN) || (1..text.len()).any(|at| is_separator(&text.as_bytes()[at..]))
}

fn cut_rule(tokenizer: &Tokenizer, normalization: Normalization) -> Result<CutRule, String> {
    let (pre_tokenizer, model) = (tokenizer.get_pre_tokenizer(), tokenizer.get_model());
    if let Some(rule) = cut_rule_of_splits(pre_tokenizer, normalization) {
        return Ok(rule);
    }
    match (normalization, pre_tokenizer) {
        (Normalization::SpaceSigns { is_prepended }, None) => {
            merges_no_words(model).map(|()| CutRule::Spaces { is_prepended })
        }
        // It splits at spaces. The normalizer leaves no spaces.
        (Normalization::SpaceSigns { is_prepended }, Some(PreTokenizerWrapper::Split(split)))
            if split.pattern == SplitPattern::String(" ".to_owned()) =>
        {
            merges_no_words(model).map(|()| CutRule::Spaces { is_prepended })
        }
        (Normalization::SpaceSigns { .. }, Some(_)) => {
            Err("the pre-tokenizer is not known to treat words alone".to_owned())
        }
        // Spaces become signs here. A piece after a cut begins with one, so none is put before it.
        (Normalization::Unchanged, Some(PreTokenizerWrapper::Metaspace(metaspace))) => {
            let is_split = metaspace.get_split();
            let is_known = metaspace.get_replacement() == '▁';
            match (is_known, is_split) {
                (true, true) => Ok(CutRule::Spaces { is_prepended: false }),
                (true, false) => merges_no_words(model).map(|()| CutRule::Spaces { is_prepended: false }),
                (false, _) => Err("the pre-tokenizer has an unknown sign for spaces".to_owned()),
            }
        }
        (Normalization::Unchanged | Normalization::Nfc, _) => splits_at_separators(pre_tokenizer),
        (Normalization::Local(_), _) => Err("the pre-tokenizer is not known to split at every space".to_owned()),
    }
}

/// The cut rule of a pre-tokenizer that splits at every space, regardless of the text around it. Its later components see each split alone.
fn cut_rule_of_splits(pre_tokenizer: Option<&PreTokenizerWrapper>, normalization: Normalization) -> Option<CutRule> {
    use PreTokenizerWrapper::{BertPreTokenizer, Digits, Metaspace, Punctuation, Whitespace, WhitespaceSplit};
    let local = match normalization {
        Normalization::Unchanged => LocalNormalization { keeps_separators: true, makes_signs: false },
        Normalization::Nfc => LocalNormalization::default(),
        Normalization::Local(local) => local,
        Normalization::SpaceSigns { .. } => return None,
    };
    let splits_at_signs = |part: &PreTokenizerWrapper| match part {
        Metaspace(metaspace) => metaspace.get_replacement() == '▁' && metaspace.get_split(),
        _ => false,
    };
    match components(pre_tokenizer) {
        [BertPreTokenizer(_)] if local.keeps_separators => Some(CutRule::Separators),
        [last] | [WhitespaceSplit(_), last] if splits_at_signs(last) => Some(CutRule::SpacesBetweenWords),
        [BertPreTokenizer(_) | Whitespace(_) | WhitespaceSplit(_), others @ ..] if !local.makes_signs => {
            let is_known = |part: &PreTokenizerWrapper| {
                let splits = matches!(
                    part,
                    BertPreTokenizer(_) | Whitespace(_) | WhitespaceSplit(_) | Digits(_) | Punctuation(_)
                );
                splits || splits_at_signs(part)
            };
            others.iter().all(is_known).then_some(CutRule::SpacesBetweenWords)
        }
        _ => None,
    }
}

/// The components of a pre-tokenizer.
pub(super) fn components(pre_tokenizer: Option<&PreTokenizerWrapper>) -> &[PreTokenizerWrapper] {
    match pre_tokenizer {
        Some(PreTokenizerWrapper::Sequence(sequence)) => sequence.as_ref(),
        Some(one) => std::slice::from_ref(one),
        None => &[],
    }
}

/// A text, normalized. A text that the normalizer rejects stays as it is.
pub(super) fn normalize(tokenizer: &Tokenizer, text: &str) -> String {
    let mut string = NormalizedString::from(text);
    match tokenizer.get_normalizer().map(|normalizer| normalizer.normalize(&mut string)) {
        Some(Err(_)) => text.to_owned(),
        _ => string.get().to_owned(),
    }
}

pub(super) fn normalization(normalizer: Option<&NormalizerWrapper>) -> Option<Normalization> {
    let Some(normalizer) = normalizer else { return Some(Normalization::Unchanged) };
    let parts = match normalizer {
        NormalizerWrapper::Sequence(sequence) => sequence.as_ref(),
        one => std::slice::from_ref(one),
    };
    match parts {
        [] => Some(Normalization::Unchanged),
        [NormalizerWrapper::NFC(_)] => Some(Normalization::Nfc),
        [replace] if replaces_spaces(replace) => Some(Normalization::SpaceSigns { is_prepended: false }),
        [NormalizerWrapper::Prepend(prepend), replace] if prepend.prepend == SPACE_SIGN && replaces_spaces(replace) => {
            Some(Normalization::SpaceSigns { is_prepended: true })
        }
        parts => local(parts).map(Normalization::Local),
    }
}

fn replaces_spaces(normalizer: &NormalizerWrapper) -> bool {
    // The pattern of a replacement is not public, its JSON is.
    let known = serde_json::json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE_SIGN});
    serde_json::to_value(normalizer).is_ok_and(|value| value == known)
}

/// Whether a BPE model merges nothing across a space after a letter or digit. Every merge makes a token of the vocabulary.
/// The merges on both sides are then independent, because the model applies them by rank, and by position among equals.
fn merges_no_words(model: &ModelWrapper) -> Result<(), String> {
    let ModelWrapper::BPE(model) = model else { return Err("the model is not known to treat words alone".to_owned()) };
    let is_empty = |affix: &Option<String>| affix.as_deref().unwrap_or_default().is_empty();
    if model.ignore_merges || !is_empty(&model.continuing_subword_prefix) || !is_empty(&model.end_of_word_suffix) {
        return Err("the model treats whole texts or the ends of words in its own way".to_owned());
    }
    if model.token_to_id(SPACE_SIGN).is_none() {
        return Err("the vocabulary has no sign for a space".to_owned());
    }
    let ends_word = |text: &str| {
        // A character that the vocabulary lacks becomes bytes, such as `<0xE4>`.
        let is_byte = text.ends_with('>') && text.len() >= 6 && text.as_bytes()[text.len() - 6..].starts_with(b"<0x");
        is_byte || text.chars().next_back().is_some_and(is_word)
    };
    let joins_words = |token: &String| token.match_indices(SPACE_SIGN).any(|(at, _)| ends_word(&token[..at]));
    match model.get_vocab().into_keys().find(joins_words) {
        Some(token) => Err(format!("the token {token:?} has a space after a word")),
        None => Ok(()),
    }
}

/// Whether a pre-tokenizer always splits between a word and a separator.
fn splits_at_separators(pre_tokenizer: Option<&PreTokenizerWrapper>) -> Result<CutRule, String> {
    let parts = components(pre_tokenizer);
    let unknown = |what: String| format!("the pre-tokenizer is not known to split at every word: {what}");
    let mut split_by = Splits::default();
    for part in parts {
        match part {
            PreTokenizerWrapper::Split(split) => match &split.pattern {
                SplitPattern::Regex(pattern) if split.behavior == SplitDelimiterBehavior::Isolated && !split.invert => {
                    for alternative in alternatives(pattern) {
                        split_by.add(known(alternative).ok_or_else(|| unknown(format!("{alternative:?}")))?);
                    }
                }
                _ => return Err(unknown("a split that is not isolated".to_owned())),
            },
            PreTokenizerWrapper::ByteLevel(bytes) if !bytes.add_prefix_space => {
                if bytes.use_regex {
                    alternatives(GPT_2).filter_map(known).for_each(|splits| split_by.add(splits));
                }
            }
            PreTokenizerWrapper::Digits(_) => split_by.add(Splits { digits: true, ..Splits::default() }),
            _ => return Err(unknown("an unknown component".to_owned())),
        }
    }
    match split_by {
        Splits { lower: true, upper: true, digits: true } => Ok(CutRule::Separators),
        _ => Err(unknown("no pattern for letters, or none for digits".to_owned())),
    }
}

/// The pattern that the component `ByteLevel` has built in.
const GPT_2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Characters that are always part of a match, if only as a match of one character.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Splits {
    /// Letters that are not upper case.
    lower: bool,
    /// Letters that are not lower case.
    upper: bool,
    /// ASCII digits.
    digits: bool,
}

impl Splits {
    fn add(&mut self, other: Self) {
        self.lower |= other.lower;
        self.upper |= other.upper;
        self.digits |= other.digits;
    }
}

/// The alternatives of a regular expression.
fn alternatives(pattern: &str) -> impl Iterator<Item = &str> {
    let (mut depth, mut in_class, mut is_escaped) = (0_u32, false, false);
    pattern.split(move |character: char| {
        if std::mem::take(&mut is_escaped) {
            return false;
        }
        match character {
            '\\' => is_escaped = true,
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class => depth += 1,
            ')' if !in_class => depth = depth.saturating_sub(1),
            '|' => return depth == 0 && !in_class,
            _ => {}
        }
        false
    })
}

/// The known alternatives. Each has two properties, which the whole pattern then has:
///
/// * No match has a separator after a word character. So a match that has a word character before a separator ends there.
/// * Whether and how far it matches before such a place does not depend on what follows: the pattern examines the next
///   character only in a loop, or for an apostrophe, which no separator continues.
///
/// The value has the characters that a pattern always matches. Such a character is never in a gap between matches.
fn known(alternative: &str) -> Option<Splits> {
    const NONE: Splits = Splits { lower: false, upper: false, digits: false };
    const LETTERS: Splits = Splits { lower: true, upper: true, digits: false };
    const DIGITS: Splits = Splits { lower: false, upper: false, digits: true };
    Some(match alternative {
        // Contractions.
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)" | "'s" | "'t" | "'re" | "'ve" | "'m" | "'ll" | "'d" => NONE,
        r"'(?i:[sdmt]|ll|ve|re)" | r"(?i:[sdmt]|ll|ve|re)" => NONE,
        // Words.
        r" ?\p{L}+" | r"[^\r\n\p{L}\p{N}]?\p{L}+" | r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+" => LETTERS,
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+" => LETTERS,
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        | r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" => {
            Splits { lower: true, ..NONE }
        }
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        | r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" => {
            Splits { upper: true, ..NONE }
        }
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"## | "[一-龥぀-ゟ゠-ヿ]+" => NONE,
        // Numbers.
        r"\p{N}" | r"\p{N}+" | r"\p{N}{1,3}" | r" ?\p{N}+" => DIGITS,
        // Punctuation.
        r" ?[^\s\p{L}\p{N}]+" | r" ?[^\s\p{L}\p{N}]+[\r\n]*" | r" ?[^\s\p{L}\p{N}]+[\r\n/]*" => NONE,
        r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" | r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n/]*" => NONE,
        " ?[\\p{P}\\p{S}]+[\\r\\n]*" | " ?[\\p{P}\\p{S}]+[\r\n]*" => NONE,
        // Whitespace.
        r"\s*[\r\n]+" | r"\s*[\r\n]" | r"\s+(?!\S)" | r"\s+" | "\\s*[\r\n]+" => NONE,
        // The same with the line breaks themselves in the pattern.
        "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+" => LETTERS,
        _ => return None,
    })
}
