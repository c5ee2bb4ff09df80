//! Filters on sequences and dicts.

use std::cmp::Ordering;

use minijinja::{Error, State, Value};

use super::ignoring_case;
use crate::python::arguments::{bind, count, given, integer};
use crate::python::attributes::{attribute, get_path, item};
use crate::python::compare::{equal, order};
use crate::python::limits::{spend, spend_items};
use crate::python::operators::math;
use crate::python::sequences;
use crate::python::text::plain;
use crate::python::values::{self, Form, Kind, error, is_hashable, is_true, items, iterator, kind, kind_name, tuple};

pub(super) fn length(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], []) = bind("length", arguments, ["obj"], [])?;
    sequences::length(state, &value).map(Value::from)
}

pub(super) fn list(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], []) = bind("list", arguments, ["value"], [])?;
    let items = items(state, &value)?;
    values::list(items)
}

pub(super) fn first(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], []) = bind("first", arguments, ["seq"], [])?;
    match kind(&value) {
        Kind::Iterator(iterator) => Ok(iterator.next().unwrap_or(Value::UNDEFINED)),
        Kind::Text(text) => Ok(text.chars().next().map_or(Value::UNDEFINED, |c| Value::from(c.to_string()))),
        _ => Ok(items(state, &value)?.into_iter().next().unwrap_or(Value::UNDEFINED)),
    }
}

pub(super) fn last(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], []) = bind("last", arguments, ["seq"], [])?;
    match kind(&value) {
        Kind::Iterator(_) => Err(error("'generator' object is not reversible: make a list of it".into())),
        Kind::Text(text) => Ok(text.chars().next_back().map_or(Value::UNDEFINED, |c| Value::from(c.to_string()))),
        _ => Ok(items(state, &value)?.pop().unwrap_or(Value::UNDEFINED)),
    }
}

pub(super) fn reverse(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], []) = bind("reverse", arguments, ["value"], [])?;
    if let Kind::Text(text) = kind(&value) {
        spend(state, text.len())?;
        return Ok(Value::from(text.chars().rev().collect::<String>()));
    }
    let mut items = items(state, &value)?;
    items.reverse();
    Ok(iterator(items))
}

pub(super) fn attr(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value, name], []) = bind("attr", arguments, ["obj", "name"], [])?;
    match kind(&value) {
        // The attributes of these types are their methods; items are not attributes.
        Kind::Dict(_) | Kind::Text(_) | Kind::Sequence(_) => {
            let found = attribute(state, &[value.clone(), name.clone()])?;
            Ok(if found.as_object().is_some() && matches!(kind(&found), Kind::Other) {
                found
            } else {
                Value::UNDEFINED
            })
        }
        _ => item(state, &[value, name]),
    }
}

pub(super) fn pairs(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], []) = bind("items", arguments, ["value"], [])?;
    match kind(&value) {
        Kind::Undefined => Ok(iterator(Vec::new())),
        Kind::Dict(dict) => {
            spend_items(state, dict.len())?;
            let pairs = dict.pairs().into_iter().map(|(key, value)| tuple(vec![key, value]));
            Ok(iterator(pairs.collect::<Result<_, _>>()?))
        }
        _ => Err(error("Can only get item pairs from a mapping.".into())),
    }
}

pub(super) fn dictsort(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], [case_sensitive, by, reverse]) =
        bind("dictsort", arguments, ["value"], ["case_sensitive", "by", "reverse"])?;
    let Kind::Dict(dict) = kind(&value) else {
        return Err(error(format!("'{}' object has no attribute 'items'", kind_name(&value))));
    };
    let place = match by.map_or_else(|| "key".to_owned(), |by| plain(&by)).as_str() {
        "key" => 0,
        "value" => 1,
        _ => return Err(error("You can only sort by either \"key\" or \"value\"".into())),
    };
    let folds = !case_sensitive.as_ref().is_some_and(is_true);
    let keyed = dict.pairs().into_iter().map(|(key, value)| {
        let by = if place == 0 { key.clone() } else { value.clone() };
        Ok((if folds { ignoring_case(by) } else { by }, tuple(vec![key, value])?))
    });
    let keyed = keyed.collect::<Result<_, Error>>()?;
    sorted(state, keyed, reverse.as_ref().is_some_and(is_true))
}

pub(super) fn sort(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], [reverse, case_sensitive, attribute]) =
        bind("sort", arguments, ["value"], ["reverse", "case_sensitive", "attribute"])?;
    let folds = !case_sensitive.as_ref().is_some_and(is_true);
    let mut keyed = Vec::new();
    for item in items(state, &value)? {
        let mut key = |attribute: Option<&Value>| key(state, &item, attribute, folds);
        let keys = match attribute.as_ref().and_then(Value::as_str) {
            Some(paths) => paths.split(',').map(|path| key(Some(&Value::from(path)))).collect::<Result<_, _>>()?,
            None => vec![key(attribute.as_ref())?],
        };
        // A list: equal keys then have an order, even if their values have none.
        keyed.push((values::list(keys)?, item));
    }
    sorted(state, keyed, reverse.as_ref().is_some_and(is_true))
}

/// Sorts values by their keys. The sort is stable, also in reverse.
fn sorted(state: &mut State, mut keyed: Vec<(Value, Value)>, reverse: bool) -> Result<Value, Error> {
    let mut failure = None;
    keyed.sort_by(|(left, _), (right, _)| {
        if failure.is_some() {
            return Ordering::Equal;
        }
        let found = spend_items(state, 1).and_then(|()| order(state, left, right, "<"));
        match found.map(|found| found.unwrap_or(Ordering::Equal)) {
            Ok(found) if reverse => found.reverse(),
            Ok(found) => found,
            Err(error) => {
                failure = Some(error);
                Ordering::Equal
            }
        }
    });
    match failure {
        Some(error) => Err(error),
        None => values::list(keyed.into_iter().map(|(_, value)| value).collect()),
    }
}

pub(super) fn extreme(state: &mut State, arguments: &[Value], wanted: Ordering) -> Result<Value, Error> {
    let ([value], [case_sensitive, attribute]) = bind("min", arguments, ["value"], ["case_sensitive", "attribute"])?;
    let folds = !case_sensitive.as_ref().is_some_and(is_true);
    let mut best: Option<(Value, Value)> = None;
    let sign = if wanted == Ordering::Less { "<" } else { ">" };
    for item in items(state, &value)? {
        let key = key(state, &item, attribute.as_ref(), folds)?;
        let better = match &best {
            None => true,
            Some((best, _)) => order(state, &key, best, sign)? == Some(wanted),
        };
        if better {
            best = Some((key, item));
        }
    }
    Ok(best.map_or(Value::UNDEFINED, |(_, item)| item))
}

/// The item, or its value at the path that `attribute` gives. If `folds`, a text is in lower case.
pub(super) fn key(state: &mut State, item: &Value, attribute: Option<&Value>, folds: bool) -> Result<Value, Error> {
    let key = match given(attribute) {
        Some(attribute) => get_path(state, item, attribute)?,
        None => item.clone(),
    };
    Ok(if folds { ignoring_case(key) } else { key })
}

pub(super) fn unique(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], [case_sensitive, attribute]) = bind("unique", arguments, ["value"], ["case_sensitive", "attribute"])?;
    let folds = !case_sensitive.as_ref().is_some_and(is_true);
    let mut seen = std::collections::HashSet::new();
    let mut kept = Vec::new();
    for item in items(state, &value)? {
        let key = key(state, &item, attribute.as_ref(), folds)?;
        if !is_hashable(&key) {
            return Err(error(format!("unhashable type: '{}'", kind_name(&key))));
        }
        // `True` and 1 are equal keys.
        let key = if let Kind::Bool(truth) = kind(&key) { Value::from(i64::from(truth)) } else { key };
        if seen.insert(key) {
            kept.push(item);
        }
    }
    Ok(iterator(kept))
}

pub(super) fn sum(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], [attribute, start]) = bind("sum", arguments, ["iterable"], ["attribute", "start"])?;
    let mut sum = start.unwrap_or_else(|| Value::from(0));
    if let Kind::Text(_) = kind(&sum) {
        return Err(error("sum() can't sum strings: use join".into()));
    }
    for item in items(state, &value)? {
        let item = key(state, &item, attribute.as_ref(), false)?;
        sum = math(state, &[sum, Value::from("+"), item])?;
    }
    Ok(sum)
}

pub(super) fn batch(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value, size], [fill]) = bind("batch", arguments, ["value", "linecount"], ["fill_with"])?;
    let size = count(integer("batch", &size)?);
    let items = items(state, &value)?;
    let mut batches = Vec::new();
    for chunk in items.chunks(size.max(1)) {
        let mut batch = chunk.to_vec();
        if let Some(fill) = given(fill.as_ref()) {
            spend_items(state, size)?;
            batch.resize(size.max(batch.len()), fill.clone());
        }
        batches.push(values::list(batch)?);
    }
    if size == 0 && !batches.is_empty() {
        // Jinja2 checks whether a batch is full before it adds the first item.
        batches.insert(0, values::list(Vec::new())?);
    }
    Ok(iterator(batches))
}

pub(super) fn slices(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value, number], [fill]) = bind("slice", arguments, ["value", "slices"], ["fill_with"])?;
    let number = integer("slice", &number)?;
    if number == 0 {
        return Err(error("integer division or modulo by zero".into()));
    }
    let number = count(number);
    let items = items(state, &value)?;
    spend_items(state, number)?;
    let (each, longer) = (items.len() / number.max(1), items.len() % number.max(1));
    let mut slices = Vec::new();
    let mut at = 0;
    for nth in 0..number {
        let size = each + usize::from(nth < longer);
        let mut slice = items[at..at + size].to_vec();
        at += size;
        if let Some(fill) = given(fill.as_ref())
            && nth >= longer
        {
            slice.push(fill.clone());
        }
        slices.push(values::list(slice)?);
    }
    Ok(iterator(slices))
}

pub(super) fn groupby(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value, attribute], [default, case_sensitive]) =
        bind("groupby", arguments, ["value", "attribute"], ["default", "case_sensitive"])?;
    let folds = !case_sensitive.as_ref().is_some_and(is_true);
    let mut keyed = Vec::new();
    for item in items(state, &value)? {
        let mut key = get_path(state, &item, &attribute)?;
        if key.is_undefined()
            && let Some(default) = &default
        {
            key = default.clone();
        }
        let by = if folds { ignoring_case(key.clone()) } else { key.clone() };
        keyed.push((by, tuple(vec![key, item])?));
    }
    let sorted = sorted(state, keyed, false)?;
    let mut groups: Vec<(Value, Value, Vec<Value>)> = Vec::new();
    for pair in items(state, &sorted)? {
        let Kind::Sequence(pair) = kind(&pair) else { continue };
        let [key, item] = &pair.items[..] else { continue };
        let by = if folds { ignoring_case(key.clone()) } else { key.clone() };
        match groups.last_mut() {
            Some((last, _, members)) if equal(state, last, &by)? => members.push(item.clone()),
            _ => groups.push((by, key.clone(), vec![item.clone()])),
        }
    }
    let groups =
        groups.into_iter().map(|(_, key, members)| values::sequence(Form::Group, vec![key, values::list(members)?]));
    values::list(groups.collect::<Result<_, _>>()?)
}
