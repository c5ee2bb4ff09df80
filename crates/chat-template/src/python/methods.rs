//! Methods of strings, dicts, lists and tuples.

use minijinja::{Error, ErrorKind, State, Value};

use super::arguments::{bind, optional_integer};
use super::compare::equal;
use super::limits::spend_items;
use super::text_methods;
use super::values::{Dict, Form, Kind, Sequence, dict, error, kind, kind_name, list, sequence, tuple, undefined};

/// Methods that change a value, which Jinja2's immutable sandbox does not offer.
const MUTATING_METHODS: [&str; 12] = [
    "append",
    "clear",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "reverse",
    "setdefault",
    "sort",
    "update",
    "__setitem__",
];

/// Whether calling a method of this name would change a list or a dict.
pub(super) fn is_mutating(name: &str) -> bool {
    MUTATING_METHODS.contains(&name)
}

/// Calls a method of a value. For an unknown method, minijinja tries an item of that name.
pub(super) fn call(state: &mut State, receiver: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    match kind(receiver) {
        Kind::Undefined => Err(undefined()),
        Kind::Text(text) => text_methods::call(state, text, name, arguments),
        Kind::Dict(_) | Kind::Sequence(Sequence { form: Form::List, .. }) if is_mutating(name) => {
            let type_name = kind_name(receiver);
            Err(error(format!(
                "{type_name}.{name}() would change a value, which templates must not; build a new value"
            )))
        }
        Kind::Dict(map) => dict_method(state, receiver, map, name, arguments),
        Kind::Sequence(sequence) if !matches!(sequence.form, Form::View(_)) => {
            sequence_method(state, receiver, sequence, name, arguments)
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn dict_method(
    state: &mut State,
    receiver: &Value,
    map: &Dict,
    name: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    match name {
        "get" => {
            let ([key], [default]) = bind("get", arguments, ["key"], ["default"])?;
            Ok(map.get(&key).or(default).unwrap_or(Value::from(())))
        }
        "items" | "keys" | "values" => {
            let ([], []) = bind(name, arguments, [], [])?;
            spend_items(state, map.len())?;
            match name {
                "items" => {
                    let pairs = map.pairs().into_iter().map(|(key, value)| tuple(vec![key, value]));
                    sequence(Form::View("dict_items"), pairs.collect::<Result<_, _>>()?)
                }
                "keys" => sequence(Form::View("dict_keys"), map.keys()),
                _ => sequence(Form::View("dict_values"), map.pairs().into_iter().map(|(_, value)| value).collect()),
            }
        }
        "copy" => {
            let ([], []) = bind("copy", arguments, [], [])?;
            Ok(receiver.clone())
        }
        "fromkeys" => {
            let ([keys], [value]) = bind("fromkeys", arguments, ["iterable"], ["value"])?;
            let value = value.unwrap_or(Value::from(()));
            let keys = super::values::items(state, &keys)?;
            dict(keys.into_iter().map(|key| (key, value.clone())).collect())
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn sequence_method(
    state: &mut State,
    receiver: &Value,
    sequence: &Sequence,
    name: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    match name {
        "count" => {
            let ([wanted], []) = bind("count", arguments, ["value"], [])?;
            let mut count = 0;
            spend_items(state, sequence.items.len())?;
            for item in &sequence.items {
                count += i64::from(equal(state, item, &wanted)?);
            }
            Ok(Value::from(count))
        }
        "index" => {
            let ([wanted], [start, stop]) = bind("index", arguments, ["value"], ["start", "stop"])?;
            let length = sequence.items.len() as i128;
            let place = |bound: i128| if bound < 0 { (bound + length).max(0) } else { bound };
            let start = place(optional_integer("index", start.as_ref())?.unwrap_or(0));
            let stop = place(optional_integer("index", stop.as_ref())?.unwrap_or(length));
            spend_items(state, sequence.items.len())?;
            for (at, item) in sequence.items.iter().enumerate() {
                if (start..stop).contains(&(at as i128)) && equal(state, item, &wanted)? {
                    return Ok(Value::from(at));
                }
            }
            Err(error("the value is not in the list".to_owned()))
        }
        "copy" if sequence.form == Form::List => {
            let ([], []) = bind("copy", arguments, [], [])?;
            if sequence.items.is_empty() { list(Vec::new()) } else { Ok(receiver.clone()) }
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}
