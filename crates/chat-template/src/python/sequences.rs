//! Slices and lengths.

use minijinja::{Error, State, Value};

use super::arguments::optional_integer;
use super::limits::{spend, spend_items};
use super::values::{Form, Kind, error, kind, kind_name, sequence, undefined};

/// `value[start:stop:step]`
pub(super) fn slice(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let [value, bounds @ ..] = arguments else {
        return Err(undefined());
    };
    match kind(value) {
        Kind::Text(text) => {
            spend(state, text.len())?;
            if text.is_ascii() {
                let bytes = text.as_bytes();
                let places = places(bounds, bytes.len())?;
                return Ok(Value::from(places.map(|at| char::from(bytes[at])).collect::<String>()));
            }
            let chars: Vec<char> = text.chars().collect();
            Ok(Value::from(places(bounds, chars.len())?.map(|at| chars[at]).collect::<String>()))
        }
        Kind::Sequence(items) if !matches!(items.form, Form::View(_)) => {
            spend_items(state, items.items.len())?;
            let form = if items.form == Form::Tuple { Form::Tuple } else { Form::List };
            sequence(form, places(bounds, items.items.len())?.map(|at| items.items[at].clone()).collect())
        }
        Kind::Undefined => Err(undefined()),
        _ => Err(error(format!("'{}' object cannot be sliced", kind_name(value)))),
    }
}

/// `len(value)`
pub(super) fn length(state: &mut State, value: &Value) -> Result<usize, Error> {
    match kind(value) {
        Kind::Undefined => Ok(0),
        Kind::Text(text) => {
            spend(state, text.len() / 8)?;
            Ok(text.chars().count())
        }
        Kind::Sequence(sequence) => Ok(sequence.items.len()),
        Kind::Dict(dict) => Ok(dict.len()),
        Kind::Other if value.len().is_some() && !value.is_kwargs() => Ok(value.len().unwrap_or(0)),
        _ => Err(error(format!("object of type '{}' has no len()", kind_name(value)))),
    }
}

/// The indexes of a slice's items, in order.
fn places(bounds: &[Value], length: usize) -> Result<Box<dyn Iterator<Item = usize>>, Error> {
    let bound = |at: usize| match bounds.get(at) {
        Some(value) if value.is_undefined() => Err(undefined()),
        bound => optional_integer("a slice", bound),
    };
    let step = bound(2)?.unwrap_or(1);
    if step == 0 {
        return Err(error("slice step cannot be zero".to_owned()));
    }
    let length = length as i128;
    let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let place = |bound: i128| (if bound < 0 { bound.saturating_add(length) } else { bound }).clamp(low, high);
    let start = bound(0)?.map_or(if step > 0 { low } else { high }, place);
    let stop = bound(1)?.map_or(if step > 0 { high } else { low }, place);
    let distance = if step > 0 { stop - start } else { start - stop };
    let count = if distance <= 0 { 0 } else { (distance - 1) / step.saturating_abs() + 1 };
    // Every index is between 0 and the length.
    Ok(Box::new((0..count).map(move |nth| (start + nth * step) as usize)))
}
