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

/// Binds arguments to parameters. The first `required` parameters must have an argument.
pub(super) fn bind<const N: usize>(
    function: &str,
    arguments: &[Value],
    parameters: [&str; N],
    required: usize,
) -> Result<[Option<Value>; N], Error> {
    let (positional, named) = split(arguments);
    if positional.len() > N {
        return Err(error(format!("{function}() takes at most {N} arguments, {} were given", positional.len())));
    }
    let mut bound = [const { None }; N];
    for (place, value) in bound.iter_mut().zip(positional) {
        *place = Some(value.clone());
    }
    for (name, value) in named {
        let Some(at) = parameters.iter().position(|parameter| *parameter == name) else {
            return Err(error(format!("{function}() has no argument named '{name}'")));
        };
        if bound[at].is_some() {
            return Err(error(format!("{function}() got several values for the argument '{name}'")));
        }
        bound[at] = Some(value);
    }
    if let Some(missing) = bound.iter().take(required).position(Option::is_none) {
        return Err(error(format!("{function}() misses the argument '{}'", parameters[missing])));
    }
    Ok(bound)
}

/// The value of a required parameter.
pub(super) fn required(value: Option<Value>) -> Value {
    value.unwrap_or(Value::UNDEFINED)
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
    match value {
        None => Ok(None),
        Some(value) if value.is_none() => Ok(None),
        Some(value) => text(function, value).map(|text| Some(text.to_owned())),
    }
}

/// An argument that must be an integer.
pub(super) fn integer(function: &str, value: &Value) -> Result<i128, Error> {
    match kind(value) {
        Kind::Int(number) => Ok(number),
        Kind::Bool(truth) => Ok(i128::from(truth)),
        _ => Err(error(format!("{function}() needs an integer, not {}", kind_name(value)))),
    }
}

/// An argument that is an integer, `None` or missing.
pub(super) fn optional_integer(function: &str, value: Option<&Value>) -> Result<Option<i128>, Error> {
    match value {
        None => Ok(None),
        Some(value) if value.is_none() => Ok(None),
        Some(value) => integer(function, value).map(Some),
    }
}

/// An integer as a count. A negative integer counts as zero.
pub(super) fn count(number: i128) -> usize {
    usize::try_from(number.max(0)).unwrap_or(usize::MAX)
}
