//! Normalizers that treat both sides of a space between words alone.

use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::normalizers::precompiled::Precompiled;

use super::cuts::is_word;

/// Effects of a local normalizer on separators.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LocalNormalization {
    /// The [separators](super::cuts) stay separators, and nothing is made one with the character before it.
    pub(super) keeps_separators: bool,
    /// Spaces may become `▁`.
    pub(super) makes_signs: bool,
}

/// Whether components normalize the text before and after a place of
/// [`CutRule::SpacesBetweenWords`](super::cuts::CutRule::SpacesBetweenWords) independently: the two results in sequence are the
/// normalized text, and the second one begins with a space or its sign.
///
/// A space is a starter that composes with nothing before it, and a separate grapheme there. So a component that works by
/// character, by grapheme or by decomposition is local. One that looks at runs of spaces, or strips the end, is local if the text
/// before the place cannot end with a space: no other component may then turn the end of a word into a space.
pub(super) fn local(components: &[NormalizerWrapper]) -> Option<LocalNormalization> {
    use NormalizerWrapper::{
        BertNormalizer, Lowercase, NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Replace, StripAccents, StripNormalizer,
    };
    let mut local = LocalNormalization { keeps_separators: true, makes_signs: false };
    let (mut sees_runs, mut may_end_with_space) = (false, false);
    for (number, component) in components.iter().enumerate() {
        match component {
            Lowercase(_) | StripAccents(_) | NFD(_) => {}
            // It puts spaces around Chinese characters.
            BertNormalizer(_) => may_end_with_space = true,
            NFC(_) | NFKC(_) | NFKD(_) | Nmt(_) => local.keeps_separators = false,
            Precompiled(map) => {
                if map.transform(" ").is_some_and(|space| space != " ") {
                    return None;
                }
                local.keeps_separators = false;
                may_end_with_space |= number > 0 || !keeps_words(map);
            }
            StripNormalizer(strip) if !strip.strip_left => {
                local.keeps_separators = false;
                sees_runs = true;
            }
            Replace(_) => {
                local.keeps_separators = false;
                match replacement(component)? {
                    Replacement::Run { by_sign } => {
                        sees_runs = true;
                        local.makes_signs |= by_sign;
                    }
                    Replacement::Punctuation => {}
                }
            }
            _ => return None,
        }
    }
    (!sees_runs || !may_end_with_space).then_some(local)
}

/// A replacement that is known to be local.
enum Replacement {
    /// Two or more spaces become one space or its sign.
    Run { by_sign: bool },
    /// Replaces ASCII punctuation, which no word has.
    Punctuation,
}

fn replacement(normalizer: &NormalizerWrapper) -> Option<Replacement> {
    // The pattern of a replacement is not public, its JSON is.
    let value = serde_json::to_value(normalizer).ok()?;
    let (pattern, content) = (&value["pattern"], value["content"].as_str()?);
    match (pattern["Regex"].as_str(), pattern["String"].as_str()) {
        (Some(" {2,}"), None) if matches!(content, " " | "▁") => Some(Replacement::Run { by_sign: content == "▁" }),
        (None, Some(text)) if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_punctuation()) => {
            Some(Replacement::Punctuation)
        }
        _ => None,
    }
}

/// Whether a map turns the characters of words into letters and digits.
fn keeps_words(map: &Precompiled) -> bool {
    let mut buffer = [0; 4];
    ('\0'..=char::MAX).filter(|character| is_word(*character)).all(|character| {
        let mapped = map.transform(character.encode_utf8(&mut buffer));
        mapped.is_none_or(|mapped| !mapped.is_empty() && mapped.chars().all(char::is_alphanumeric))
    })
}
