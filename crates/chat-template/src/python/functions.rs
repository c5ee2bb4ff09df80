//! The minijinja environment: functions that operators are translated to, and functions that templates call.

use std::cmp::Ordering;

use minijinja::value::{Rest, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use thiserror::Error;

use super::arguments::{Callable, bind, integer, split};
use super::compare::contains;
use super::filters::FILTERS;
use super::limits::{spend, spend_items};
use super::strftime::{Clock, strftime};
use super::tests::{TESTS, is_equal, is_unequal, ordered};
use super::text::{Str, plain};
use super::values::{Form, Kind, check_namespace_value, dict, error, items, kind, list, sequence, tuple, undefined};
use super::{attributes, methods, operators, sequences};

/// Maximum length of a range, as in Jinja2's sandbox.
const RANGE_MAX: i128 = 100_000;

/// The message that a template passed to `raise_exception`.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct TemplateException(pub(crate) String);

/// Functions that operations are translated to, see [`jinja_syntax`], and functions that templates call.
const FUNCTIONS: [(&str, Callable); 26] = [
    ("__math", operators::math),
    ("__concat", operators::concat),
    ("__negative", operators::negative),
    ("__positive", operators::positive),
    ("__infinity", |_, _| Ok(Value::from(f64::INFINITY))),
    ("__eq", |state, arguments| is_equal(state, arguments).map(Value::from)),
    ("__ne", |state, arguments| is_unequal(state, arguments).map(Value::from)),
    ("__lt", |state, arguments| ordered(state, arguments, "<", |found| found == Ordering::Less).map(Value::from)),
    ("__le", |state, arguments| ordered(state, arguments, "<=", |found| found != Ordering::Greater).map(Value::from)),
    ("__gt", |state, arguments| ordered(state, arguments, ">", |found| found == Ordering::Greater).map(Value::from)),
    ("__ge", |state, arguments| ordered(state, arguments, ">=", |found| found != Ordering::Less).map(Value::from)),
    ("__in", |state, arguments| is_in(state, arguments).map(Value::from)),
    ("__not_in", |state, arguments| is_in(state, arguments).map(|is_in| Value::from(!is_in))),
    ("__attribute", attributes::attribute),
    ("__item", attributes::item),
    ("__slice", sequences::slice),
    ("__list", |_, arguments| list(arguments.to_vec())),
    ("__tuple", |_, arguments| tuple(arguments.to_vec())),
    ("__dict", |_, arguments| dict(arguments.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())),
    ("__iterable", iterable),
    ("__namespace_value", namespace_value),
    ("__cycle", cycle),
    ("range", range),
    ("dict", dict_function),
    ("namespace", namespace),
    ("raise_exception", raise),
];

/// Creates an environment in which translated templates have Python's semantics.
pub(crate) fn environment(clock: Clock) -> Environment<'static> {
    let mut environment = Environment::empty();
    for (name, function) in FUNCTIONS {
        environment.add_function(name, move |state: &mut State, arguments: Rest<ValueOrKwargs>| {
            function(state, &arguments.into_values())
        });
    }
    for (name, filter) in FILTERS {
        environment.add_filter(name, move |state: &mut State, arguments: Rest<ValueOrKwargs>| {
            filter(state, &arguments.into_values())
        });
    }
    for (name, test) in TESTS {
        environment.add_test(name, move |state: &mut State, arguments: Rest<ValueOrKwargs>| {
            test(state, &arguments.into_values())
        });
    }
    environment.add_function("strftime_now", move |_: &mut State, arguments: Rest<ValueOrKwargs>| {
        let ([format], []) = bind("strftime_now", &arguments.into_values(), ["format"], [])?;
        Ok::<_, Error>(Value::from(strftime(&plain(&format), clock())))
    });
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|out, state, value| {
        let printed = match kind(value) {
            Kind::Undefined => return Ok(()),
            Kind::Text(text) => {
                spend(state, text.len())?;
                out.write_str(text)
            }
            _ => write!(out, "{}", Str(value)),
        };
        printed.map_err(|_| Error::from(ErrorKind::WriteFailure))
    });
    environment
}

fn is_in(state: &mut State, arguments: &[Value]) -> Result<bool, Error> {
    match arguments {
        [item, container] => contains(state, container, item),
        _ => Err(undefined()),
    }
}

/// `__iterable(value)`: the items of a loop, collected because a loop needs its length.
fn iterable(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], []) = bind("loop", arguments, ["iterable"], [])?;
    match kind(&value) {
        Kind::Sequence(_) => Ok(value),
        _ => list(items(state, &value)?),
    }
}

/// `__namespace_value(value)`: the value, if a namespace may hold it.
fn namespace_value(_: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let value = arguments.first().cloned().unwrap_or(Value::UNDEFINED);
    check_namespace_value(&value)?;
    Ok(value)
}

/// `loop.cycle(…)`
fn cycle(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    match arguments {
        [] => Err(undefined()),
        // minijinja would divide by zero.
        [_] => Err(error("no items for cycling given".into())),
        [receiver, choices @ ..] => receiver.call_method(state, "cycle", choices),
    }
}

fn range(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let numbers = arguments.iter().map(|value| integer("range", value)).collect::<Result<Vec<_>, _>>()?;
    let (start, stop, step) = match numbers[..] {
        [stop] => (0, stop, 1),
        [start, stop] => (start, stop, 1),
        [start, stop, step] => (start, stop, step),
        _ => return Err(error(format!("range expected 1 to 3 arguments, got {}", numbers.len()))),
    };
    if step == 0 {
        return Err(error("range() arg 3 must not be zero".into()));
    }
    let distance = if step > 0 { stop.saturating_sub(start) } else { start.saturating_sub(stop) };
    let count = if distance <= 0 { 0 } else { (distance - 1) / step.saturating_abs() + 1 };
    if count > RANGE_MAX {
        return Err(error(format!("a range has at most {RANGE_MAX} numbers")));
    }
    spend_items(state, usize::try_from(count).unwrap_or(0))?;
    let numbers = (0..count).map(|nth| operators::int(start.wrapping_add(nth.wrapping_mul(step)))).collect();
    sequence(Form::Range { start, stop, step }, numbers)
}

fn dict_function(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    dict(entries(state, arguments, |count| format!("dict expected at most 1 argument, got {count}"))?)
}

/// The entries of an optional dict or iterable of pairs, and the keyword arguments.
fn entries(
    state: &mut State,
    arguments: &[Value],
    too_many: fn(usize) -> String,
) -> Result<Vec<(Value, Value)>, Error> {
    let (positional, named) = split(arguments);
    let mut entries = match positional {
        [] => Vec::new(),
        [value] => pairs(state, value)?,
        _ => return Err(error(too_many(positional.len()))),
    };
    entries.extend(named.into_iter().map(|(name, value)| (Value::from(name), value)));
    Ok(entries)
}

/// The pairs of a dict or of an iterable of pairs.
fn pairs(state: &mut State, value: &Value) -> Result<Vec<(Value, Value)>, Error> {
    if let Kind::Dict(dict) = kind(value) {
        spend_items(state, dict.len())?;
        return Ok(dict.pairs());
    }
    let mut pairs = Vec::new();
    for pair in items(state, value)? {
        let [key, value] = &items(state, &pair)?[..] else {
            return Err(error("dictionary update sequence elements must have two items".into()));
        };
        pairs.push((key.clone(), value.clone()));
    }
    Ok(pairs)
}

fn namespace(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let attributes = entries(state, arguments, |_| "namespace() takes one dict at most".into())?;
    for (name, value) in &attributes {
        check_namespace_value(value)?;
        if name.as_str().is_some_and(|name| name.starts_with('_')) {
            return Err(error(format!("a namespace's attribute cannot start with `_`: rename {name:?}")));
        }
    }
    Value::from_function(minijinja::functions::namespace).call(state, &[Value::from_pairs(attributes)])
}

fn raise(_: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([message], []) = bind("raise_exception", arguments, ["message"], [])?;
    let message = plain(&message);
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(TemplateException(message)))
}
