//! `value.name` and `value[key]`. An attribute of the type takes precedence in the first, an item in the second.

use std::fmt;
use std::sync::Arc;

use jinja_syntax::method_names::{DICT_METHODS, LIST_METHODS, TEXT_METHODS, TUPLE_METHODS};
use minijinja::value::{Object, ObjectRepr};
use minijinja::{Error, State, Value};

use super::methods::{self, is_mutating};
use super::values::{Form, Kind, kind, undefined};

/// A bound method: a method that was looked up and not called.
struct BoundMethod {
    receiver: Value,
    name: String,
}

/// `value.name`, for a name that is a method of some type.
pub(super) fn attribute(_: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let [value, name] = arguments else {
        return Err(undefined());
    };
    method(value, name.as_str().unwrap_or_default()).map_or_else(|| get_item(value, name), Ok)
}

/// `value[key]`
pub(super) fn item(_: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let [value, key] = arguments else {
        return Err(undefined());
    };
    let found = get_item(value, key)?;
    if found.is_undefined()
        && let Kind::Text(name) = kind(key)
    {
        return Ok(method(value, name).unwrap_or(found));
    }
    Ok(found)
}

/// The item at a key or an index, undefined if there is none.
pub(super) fn get_item(value: &Value, key: &Value) -> Result<Value, Error> {
    let place = |length: usize| {
        let index = kind(key).integer()?;
        let index = if index < 0 { index + length as i128 } else { index };
        usize::try_from(index).ok().filter(|index| *index < length)
    };
    Ok(match kind(value) {
        Kind::Undefined => return Err(undefined()),
        Kind::Text(text) if text.is_ascii() => {
            place(text.len()).map_or(Value::UNDEFINED, |at| Value::from(&text[at..=at]))
        }
        Kind::Text(text) => place(text.chars().count())
            .and_then(|at| text.chars().nth(at))
            .map_or(Value::UNDEFINED, |c| Value::from(c.to_string())),
        Kind::Sequence(sequence) if sequence.form == Form::Group && key.as_str().is_some() => {
            value.get_item(key).unwrap_or(Value::UNDEFINED)
        }
        Kind::Sequence(sequence) if !matches!(sequence.form, Form::View(_)) => {
            place(sequence.items.len()).map_or(Value::UNDEFINED, |at| sequence.items[at].clone())
        }
        Kind::Dict(dict) => dict.get(key).unwrap_or(Value::UNDEFINED),
        Kind::Other => value.get_item(key).unwrap_or(Value::UNDEFINED),
        _ => Value::UNDEFINED,
    })
}

/// The value at a path such as `user.name`. A number in the path is an index.
pub(super) fn get_path(state: &mut State, value: &Value, path: &Value) -> Result<Value, Error> {
    let Kind::Text(path) = kind(path) else {
        return item(state, &[value.clone(), path.clone()]);
    };
    let mut value = value.clone();
    for part in path.split('.') {
        let digits = !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
        let key = if digits { part.parse::<i64>().map_or(Value::from(part), Value::from) } else { Value::from(part) };
        value = item(state, &[value, key])?;
    }
    Ok(value)
}

fn method(value: &Value, name: &str) -> Option<Value> {
    let names = match kind(value) {
        Kind::Text(_) => &TEXT_METHODS[..],
        Kind::Dict(_) => &DICT_METHODS,
        Kind::Sequence(sequence) => match sequence.form {
            Form::List => &LIST_METHODS[..],
            Form::Tuple | Form::Group | Form::Range { .. } => &TUPLE_METHODS,
            Form::View(_) => &[],
        },
        _ => &[],
    };
    if !names.contains(&name) {
        return None;
    }
    let method = BoundMethod { receiver: value.clone(), name: name.to_owned() };
    Some(if is_mutating(name) { Value::UNDEFINED } else { Value::from_object(method) })
}

impl fmt::Debug for BoundMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<built-in method {}>", self.name)
    }
}

impl Object for BoundMethod {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
        methods::call(state, &self.receiver, &self.name, arguments)
    }
}
