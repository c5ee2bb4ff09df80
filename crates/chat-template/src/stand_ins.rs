//! Texts that stand for values that no prompt can have.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;

use super::error::ChatError;
use super::python::limits::NESTING_MAX;

/// Maximum nesting of a text. The lists and objects around it, such as those of messages, need the rest of the limit.
pub(crate) const DEPTH_MAX: usize = NESTING_MAX as usize - 10;

/// Stands for a value that is nested too deeply. A prompt that contains it is an error; a prompt that ignores the value is not.
pub(crate) static TOO_DEEP: LazyLock<String> = LazyLock::new(random_digits);
/// Stands for a lone surrogate, which Python keeps in a text. No tokenizer takes it.
pub(crate) static LONE_SURROGATE: LazyLock<String> = LazyLock::new(random_digits);

/// Digits that no text has by chance, and no filter of a template changes.
pub(crate) fn random_digits() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:020}{:020}", random(), random())
}

/// Checks that a rendered text contains no stand-in for a value.
///
/// # Errors
///
/// If a value in the text is nested too deeply, or is a lone surrogate.
pub fn check_rendered(text: &str) -> Result<(), ChatError> {
    if text.contains(TOO_DEEP.as_str()) {
        return Err(ChatError::Request(format!("the prompt has a value that is nested more than {DEPTH_MAX} deep")));
    }
    if text.contains(LONE_SURROGATE.as_str()) {
        return Err(ChatError::Request(
            "the prompt has a lone surrogate, such as \\ud800, which no tokenizer takes; send pairs of them".to_owned(),
        ));
    }
    Ok(())
}

/// A text with `deep` in place of a value that is nested too deeply, and U+FFFD for lone surrogates. `None` if it has neither.
pub(crate) fn shown_text(text: &str, deep: &str) -> Option<String> {
    check_rendered(text)
        .is_err()
        .then(|| text.replace(TOO_DEEP.as_str(), deep).replace(LONE_SURROGATE.as_str(), "\u{fffd}"))
}
