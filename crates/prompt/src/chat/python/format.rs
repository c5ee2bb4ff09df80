//! `%` formatting and `str.format`.

use minijinja::formatting::{FormatStyle, format};
use minijinja::{Error, State, Value};

use super::limits::spend;
use super::values::{Form, Kind, error, kind};

/// Python's `format % value`.
pub(super) fn printf(state: &mut State, template: &str, value: &Value) -> Result<String, Error> {
    let arguments = match kind(value) {
        Kind::Sequence(sequence) if sequence.form == Form::Tuple => sequence.items.clone(),
        _ => vec![value.clone()],
    };
    check_widths(template)?;
    let text = format(FormatStyle::Printf, template, &arguments)?;
    spend(state, text.len())?;
    Ok(text)
}

/// Python's `template.format(…)`.
pub(super) fn format_method(state: &mut State, template: &str, arguments: &[Value]) -> Result<String, Error> {
    check_widths(template)?;
    let text = format(FormatStyle::StrFormat, template, arguments)?;
    spend(state, text.len())?;
    Ok(text)
}

/// Widths that would make a text of many megabytes out of nothing.
fn check_widths(template: &str) -> Result<(), Error> {
    let longest = template.split(|c: char| !c.is_ascii_digit()).map(str::len).max().unwrap_or(0);
    if longest > 6 { Err(error("widths of more than six digits are not supported".to_owned())) } else { Ok(()) }
}
