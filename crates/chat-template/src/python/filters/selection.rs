//! Filters that apply other filters or tests to each item.

use minijinja::{Error, State, Value};

use super::find;
use crate::python::arguments::{given, split};
use crate::python::attributes::get_path;
use crate::python::tests::passes;
use crate::python::text::plain;
use crate::python::values::{error, is_true, items, iterator, undefined};

pub(super) fn map(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let (positional, named) = split(arguments);
    let Some((value, rest)) = positional.split_first() else {
        return Err(undefined());
    };
    if !is_true(value) {
        return Ok(iterator(Vec::new()));
    }
    let mut mapped = Vec::new();
    if let ([], Some((_, attribute))) = (rest, named.iter().find(|(name, _)| name == "attribute")) {
        if let Some((name, _)) = named.iter().find(|(name, _)| name != "attribute" && name != "default") {
            return Err(error(format!("Unexpected keyword argument '{name}'")));
        }
        let default = named.iter().find(|(name, _)| name == "default").map(|(_, default)| default);
        for item in items(state, value)? {
            mapped.push(get_path_or(state, &item, attribute, default)?);
        }
        return Ok(iterator(mapped));
    }
    let Some((name, rest)) = rest.split_first() else {
        return Err(error("map requires a filter argument".into()));
    };
    let name = plain(name);
    let filter = find(&name).ok_or_else(|| error(format!("No filter named '{name}'.")))?;
    for item in items(state, value)? {
        let mut all = vec![item];
        all.extend_from_slice(rest);
        // Keyword arguments are the last value.
        all.extend(arguments.last().filter(|last| last.is_kwargs()).cloned());
        mapped.push(filter(state, &all)?);
    }
    Ok(iterator(mapped))
}

fn get_path_or(state: &mut State, item: &Value, path: &Value, default: Option<&Value>) -> Result<Value, Error> {
    let Some(default) = given(default) else {
        return get_path(state, item, path);
    };
    let mut value = item.clone();
    for part in plain(path).split('.') {
        value = get_path(state, &value, &Value::from(part))?;
        if value.is_undefined() {
            value = default.clone();
        }
    }
    Ok(value)
}

/// The value that a test is applied to.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Attribute {
    /// The item itself.
    None,
    /// The attribute that the first argument names.
    First,
}

/// The items for which a test has the wanted result.
pub(super) fn chosen(
    state: &mut State,
    arguments: &[Value],
    attribute: Attribute,
    wanted: bool,
) -> Result<Value, Error> {
    let Some((value, mut test)) = arguments.split_first() else {
        return Err(undefined());
    };
    if !is_true(value) {
        return Ok(iterator(Vec::new()));
    }
    let mut path = None;
    if attribute == Attribute::First {
        let Some((first, rest)) = test.split_first().filter(|(first, _)| !first.is_kwargs()) else {
            return Err(error("Missing parameter for attribute name".into()));
        };
        (path, test) = (Some(first), rest);
    }
    let mut chosen = Vec::new();
    for item in items(state, value)? {
        let tested = match path {
            Some(path) => get_path(state, &item, path)?,
            None => item.clone(),
        };
        if passes(state, &tested, test)? == wanted {
            chosen.push(item);
        }
    }
    Ok(iterator(chosen))
}
