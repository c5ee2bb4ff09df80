//! Arguments of filters, tests, methods and functions, bound as Python binds them.

use minijinja::{Error, Value};

use super::values::{Kind, error, kind, kind_name};

/// A function that templates call. Keyword arguments, if there are any, are the last value.
pub(super) type Callable = fn(&mut minijinja::State, &[Value]) -> Result<Value, Error>;

/// Splits arguments into positional and keyword arguments.
pub(super) fn split(arguments: &[Value]) -> (&[Value], Vec<(String, Value)>) {
    match arguments.split_last() {
        Some((last, rest)) if last.is_kwargs() => {
            let pairs = last.as_object().and_then(|named| named.try_iter_pairs()).into_iter().flatten();
            (rest, pairs.map(|(name, value)| (name.to_string(), value)).collect())
        }
        _ => (arguments, Vec::new()),
    }
}

/// Binds arguments to parameters: the required ones, then the optional ones.
pub(super) fn bind<const R: usize, const O: usize>(
    function: &str,
    arguments: &[Value],
    required: [&str; R],
    optional: [&str; O],
) -> Result<([Value; R], [Option<Value>; O]), Error> {
    let (positional, named) = split(arguments);
    if positional.len() > R + O {
        return Err(error(format!("{function}() takes at most {} arguments, {} were given", R + O, positional.len())));
    }
    let (mut values, mut options) = ([const { None }; R], [const { None }; O]);
    for (place, value) in values.iter_mut().chain(&mut options).zip(positional) {
        *place = Some(value.clone());
    }
    for (name, value) in named {
        let mut places = required.iter().chain(&optional).zip(values.iter_mut().chain(&mut options));
        let Some((_, place)) = places.find(|(parameter, _)| **parameter == name) else {
            return Err(error(format!("{function}() has no argument named '{name}'")));
        };
        if place.is_some() {
            return Err(error(format!("{function}() got several values for the argument '{name}'")));
        }
        *place = Some(value);
    }
    if let Some(missing) = values.iter().position(Option::is_none) {
        return Err(error(format!("{function}() misses the argument '{}'", required[missing])));
    }
    Ok((values.map(Option::unwrap_or_default), options))
}

/// An argument that is neither missing nor `None`.
pub(super) fn given(argument: Option<&Value>) -> Option<&Value> {
    argument.filter(|value| !value.is_none())
}

/// An argument that must be a string.
pub(super) fn text<'v>(function: &str, value: &'v Value) -> Result<&'v str, Error> {
    match kind(value) {
        Kind::Text(text) => Ok(text),
        _ => Err(error(format!("{function}() needs a string, not {}", kind_name(value)))),
    }
}

/// An argument that is a string, `None` or missing.
pub(super) fn optional_text(function: &str, value: Option<&Value>) -> Result<Option<String>, Error> {
    given(value).map(|value| text(function, value).map(str::to_owned)).transpose()
}

/// An argument that must be an integer.
pub(super) fn integer(function: &str, value: &Value) -> Result<i128, Error> {
    let integer = kind(value).integer();
    integer.ok_or_else(|| error(format!("{function}() needs an integer, not {}", kind_name(value))))
}

/// An argument that is an integer, `None` or missing.
pub(super) fn optional_integer(function: &str, value: Option<&Value>) -> Result<Option<i128>, Error> {
    given(value).map(|value| integer(function, value)).transpose()
}

/// An integer as a count. A negative integer counts as zero.
pub(super) fn count(number: i128) -> usize {
    usize::try_from(number.max(0)).unwrap_or(usize::MAX)
}
