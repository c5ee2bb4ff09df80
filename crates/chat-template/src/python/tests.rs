//! Jinja tests: the names that may follow `is`.

use std::cmp::Ordering;

use minijinja::{Error, State, Value};

use super::arguments::bind;
use super::compare::{contains, equal, order};
use super::filters;
use super::operators::math;
use super::text::plain;
use super::values::{Form, Kind, error, is_true, kind};

/// A test and its name.
pub(super) type Test = fn(&mut State, &[Value]) -> Result<bool, Error>;

/// All tests with their names.
pub(super) const TESTS: [(&str, Test); 39] = [
    ("odd", |state, arguments| remainder(state, arguments, "odd", 1)),
    ("even", |state, arguments| remainder(state, arguments, "even", 0)),
    ("divisibleby", divisible),
    ("defined", |_, arguments| one(arguments, |value| !value.is_undefined())),
    ("undefined", |_, arguments| one(arguments, Value::is_undefined)),
    ("filter", |_, arguments| one(arguments, |value| filters::find(&plain(value)).is_some())),
    ("test", |_, arguments| one(arguments, |value| find(&plain(value)).is_some())),
    ("none", |_, arguments| one(arguments, Value::is_none)),
    ("boolean", |_, arguments| one(arguments, |value| matches!(kind(value), Kind::Bool(_)))),
    ("false", |_, arguments| one(arguments, |value| matches!(kind(value), Kind::Bool(false)))),
    ("true", |_, arguments| one(arguments, |value| matches!(kind(value), Kind::Bool(true)))),
    ("integer", |_, arguments| one(arguments, |value| matches!(kind(value), Kind::Int(_) | Kind::BigInt(_)))),
    ("float", |_, arguments| one(arguments, |value| matches!(kind(value), Kind::Float(_)))),
    ("lower", |_, arguments| one(arguments, |value| is_cased(value, char::is_lowercase, char::is_uppercase))),
    ("upper", |_, arguments| one(arguments, |value| is_cased(value, char::is_uppercase, char::is_lowercase))),
    ("string", |_, arguments| one(arguments, |value| matches!(kind(value), Kind::Text(_)))),
    ("mapping", |_, arguments| one(arguments, |value| matches!(kind(value), Kind::Dict(_)))),
    ("number", |_, arguments| {
        one(arguments, |value| matches!(kind(value), Kind::Int(_) | Kind::BigInt(_) | Kind::Float(_) | Kind::Bool(_)))
    }),
    ("sequence", |_, arguments| one(arguments, is_sequence)),
    ("iterable", |_, arguments| one(arguments, is_iterable)),
    ("callable", |_, arguments| one(arguments, |value| matches!(kind(value), Kind::Other | Kind::Undefined))),
    ("sameas", |_, arguments| two(arguments, |value, other| Ok(minijinja::tests::is_sameas(value, other)))),
    ("escaped", |_, arguments| one(arguments, |_| false)),
    ("in", |state, arguments| two(arguments, |value, other| contains(state, other, value))),
    ("==", is_equal),
    ("eq", is_equal),
    ("equalto", is_equal),
    ("!=", is_unequal),
    ("ne", is_unequal),
    (">", |state, arguments| ordered(state, arguments, ">", |found| found == Ordering::Greater)),
    ("gt", |state, arguments| ordered(state, arguments, ">", |found| found == Ordering::Greater)),
    ("greaterthan", |state, arguments| ordered(state, arguments, ">", |found| found == Ordering::Greater)),
    (">=", |state, arguments| ordered(state, arguments, ">=", |found| found != Ordering::Less)),
    ("ge", |state, arguments| ordered(state, arguments, ">=", |found| found != Ordering::Less)),
    ("<", |state, arguments| ordered(state, arguments, "<", |found| found == Ordering::Less)),
    ("lt", |state, arguments| ordered(state, arguments, "<", |found| found == Ordering::Less)),
    ("lessthan", |state, arguments| ordered(state, arguments, "<", |found| found == Ordering::Less)),
    ("<=", |state, arguments| ordered(state, arguments, "<=", |found| found != Ordering::Greater)),
    ("le", |state, arguments| ordered(state, arguments, "<=", |found| found != Ordering::Greater)),
];

/// Finds a test by name.
pub(super) fn find(name: &str) -> Option<Test> {
    TESTS.iter().find(|(known, _)| *known == name).map(|(_, test)| *test)
}

/// `left < right` and the other ordering operators.
pub(super) fn ordered(
    state: &mut State,
    arguments: &[Value],
    sign: &str,
    holds: fn(Ordering) -> bool,
) -> Result<bool, Error> {
    two(arguments, |left, right| Ok(order(state, left, right, sign)?.is_some_and(holds)))
}

/// `left == right`
pub(super) fn is_equal(state: &mut State, arguments: &[Value]) -> Result<bool, Error> {
    two(arguments, |left, right| equal(state, left, right))
}

/// `left != right`
pub(super) fn is_unequal(state: &mut State, arguments: &[Value]) -> Result<bool, Error> {
    Ok(!is_equal(state, arguments)?)
}

/// A test of one value without further arguments.
fn one(arguments: &[Value], test: impl FnOnce(&Value) -> bool) -> Result<bool, Error> {
    let ([value], []) = bind("a test", arguments, ["value"], [])?;
    Ok(test(&value))
}

fn two(arguments: &[Value], test: impl FnOnce(&Value, &Value) -> Result<bool, Error>) -> Result<bool, Error> {
    let ([value, other], []) = bind("a test", arguments, ["value", "other"], [])?;
    test(&value, &other)
}

fn remainder(state: &mut State, arguments: &[Value], name: &str, rest: i64) -> Result<bool, Error> {
    let ([value], []) = bind(name, arguments, ["value"], [])?;
    let found = math(state, &[value, Value::from("%"), Value::from(2)])?;
    equal(state, &found, &Value::from(rest))
}

fn divisible(state: &mut State, arguments: &[Value]) -> Result<bool, Error> {
    let ([value, divisor], []) = bind("divisibleby", arguments, ["value", "num"], [])?;
    let found = math(state, &[value, Value::from("%"), divisor])?;
    equal(state, &found, &Value::from(0))
}

fn is_cased(value: &Value, wanted: fn(char) -> bool, unwanted: fn(char) -> bool) -> bool {
    let text = plain(value);
    text.chars().any(wanted) && !text.chars().any(unwanted)
}

/// Whether a value has a length and items. Strings, dicts and undefined values do.
fn is_sequence(value: &Value) -> bool {
    match kind(value) {
        Kind::Undefined | Kind::Text(_) | Kind::Dict(_) => true,
        Kind::Sequence(sequence) => !matches!(sequence.form, Form::View(_)),
        _ => false,
    }
}

fn is_iterable(value: &Value) -> bool {
    matches!(kind(value), Kind::Undefined | Kind::Text(_) | Kind::Dict(_) | Kind::Sequence(_) | Kind::Iterator(_))
}

/// Whether a value passes the test that the arguments name, or is true if they name no test.
pub(super) fn passes(state: &mut State, value: &Value, test: &[Value]) -> Result<bool, Error> {
    let Some((name, arguments)) = test.split_first().filter(|(name, _)| !name.is_kwargs()) else {
        return Ok(is_true(value));
    };
    let name = plain(name);
    let test = find(&name).ok_or_else(|| error(format!("No test named '{name}'.")))?;
    let mut all = vec![value.clone()];
    all.extend_from_slice(arguments);
    test(state, &all)
}
