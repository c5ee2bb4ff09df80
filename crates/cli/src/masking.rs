//! Errors of the command line without secrets.

use std::borrow::Cow;

use clap::error::{ContextKind, ContextValue};
use clap::{Command, Error};
use flash_indexer_types::{MASK, masked_url, without_users};

/// Texts of a wrong command line that may have secrets, each with the text that an error shows in its place.
pub(crate) struct Masks(Vec<(String, String)>);

impl Masks {
    /// Masks the value that an error names. A value of an option that may have a password shows its hosts at most.
    pub(crate) fn apply(error: &mut Error, command: &Command) -> Self {
        let is_secret = match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::String(option)) => may_have_password(command, option),
            _ => false,
        };
        let mut masks = Vec::new();
        for kind in [ContextKind::InvalidValue, ContextKind::InvalidArg, ContextKind::InvalidSubcommand] {
            let Some(ContextValue::String(given)) = error.get(kind) else { continue };
            // The form in which parsers of URLs repeat it.
            let given = given.trim().trim_end_matches('/').to_owned();
            let is_url = is_secret || given.contains('@') || given.contains("://");
            match if is_url { masked_url(&given) } else { Cow::Borrowed(given.as_str()) } {
                Cow::Owned(masked) => {
                    error.insert(kind, ContextValue::String(masked.clone()));
                    masks.push((given, masked));
                }
                Cow::Borrowed(_) if is_secret && kind == ContextKind::InvalidValue => {
                    error.insert(kind, ContextValue::String(MASK.to_owned()));
                }
                Cow::Borrowed(_) => {}
            }
        }
        Self(masks)
    }

    /// The text of an error and its cause, with the masks and without the users of other URLs.
    pub(crate) fn within(&self, text: &str) -> String {
        let masked = self.0.iter().fold(text.to_owned(), |text, (given, masked)| text.replace(given, masked));
        without_users(&masked)
    }
}

/// Whether an option of `serve`, as an error names it, may have a password.
fn may_have_password(command: &Command, option: &str) -> bool {
    let name = option.trim_start_matches('-').split([' ', '=']).next();
    let serve = command.find_subcommand("serve");
    let mut arguments = serve.into_iter().flat_map(Command::get_arguments);
    arguments.any(|arg| arg.get_long() == name && arg.is_hide_env_values_set())
}
