//! Equality, order and membership.

use std::cmp::Ordering;

use minijinja::{Error, State, Value};

use super::limits::spend;
use super::number::Number;
use super::values::{Form, Kind, error, items, kind, kind_name, undefined};

/// Python's `==`. Cost: the size of the smaller operand.
pub(super) fn equal(state: &mut State, left: &Value, right: &Value) -> Result<bool, Error> {
    if let (Some(left), Some(right)) = (Number::of(left), Number::of(right)) {
        return Ok(compare_numbers(left, right) == Some(Ordering::Equal));
    }
    Ok(match (kind(left), kind(right)) {
        (Kind::Text(left), Kind::Text(right)) => {
            spend(state, left.len().min(right.len()))?;
            left == right
        }
        (Kind::Undefined, Kind::Undefined) | (Kind::None, Kind::None) => true,
        (Kind::Sequence(left), Kind::Sequence(right)) => {
            if std::mem::discriminant(&left.form) != std::mem::discriminant(&right.form)
                || left.items.len() != right.items.len()
            {
                return Ok(false);
            }
            if left.form == Form::View("dict_values") {
                return Ok(std::ptr::eq(left, right));
            }
            for (left, right) in left.items.iter().zip(&right.items) {
                if !equal(state, left, right)? {
                    return Ok(false);
                }
            }
            true
        }
        (Kind::Dict(left), Kind::Dict(right)) => {
            if left.len() != right.len() {
                return Ok(false);
            }
            for (key, left) in left.pairs() {
                let Some(right) = right.get(&key) else {
                    return Ok(false);
                };
                if !equal(state, &left, &right)? {
                    return Ok(false);
                }
            }
            true
        }
        (Kind::BigInt(left), Kind::BigInt(right)) => left == right,
        (Kind::Other | Kind::Iterator(_), Kind::Other | Kind::Iterator(_)) => left == right,
        _ => false,
    })
}

/// The order of two values. `None` if a number is NaN.
pub(super) fn order(state: &mut State, left: &Value, right: &Value, sign: &str) -> Result<Option<Ordering>, Error> {
    if let (Some(left), Some(right)) = (Number::of(left), Number::of(right)) {
        return Ok(compare_numbers(left, right));
    }
    match (kind(left), kind(right)) {
        (Kind::Undefined, _) | (_, Kind::Undefined) => Err(undefined()),
        (Kind::Text(left), Kind::Text(right)) => {
            spend(state, left.len().min(right.len()))?;
            Ok(Some(left.cmp(right)))
        }
        (Kind::Sequence(left), Kind::Sequence(right))
            if left.form == right.form && matches!(left.form, Form::List | Form::Tuple) =>
        {
            for (left, right) in left.items.iter().zip(&right.items) {
                if !equal(state, left, right)? {
                    return order(state, left, right, sign);
                }
            }
            Ok(Some(left.items.len().cmp(&right.items.len())))
        }
        _ => {
            let (left, right) = (kind_name(left), kind_name(right));
            Err(error(format!("'{sign}' not supported between instances of '{left}' and '{right}'")))
        }
    }
}

/// Python's `item in container`.
pub(super) fn contains(state: &mut State, container: &Value, item: &Value) -> Result<bool, Error> {
    match kind(container) {
        Kind::Text(text) => match kind(item) {
            Kind::Text(part) => {
                spend(state, text.len())?;
                Ok(text.contains(part))
            }
            Kind::Undefined => Err(undefined()),
            _ => {
                let message = format!("'in <string>' requires string as left operand, not {}", kind_name(item));
                Err(error(message))
            }
        },
        Kind::Dict(dict) => {
            if !super::values::is_hashable(item) {
                return Err(error(format!("unhashable type: '{}'", kind_name(item))));
            }
            Ok(dict.get(item).is_some())
        }
        Kind::None | Kind::Bool(_) | Kind::Int(_) | Kind::BigInt(_) | Kind::Float(_) => {
            Err(error(format!("argument of type '{}' is not iterable", kind_name(container))))
        }
        _ => {
            for candidate in items(state, container)? {
                if equal(state, &candidate, item)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}

fn compare_numbers(left: Number, right: Number) -> Option<Ordering> {
    match (left, right) {
        (Number::Int(left), Number::Int(right)) => Some(left.cmp(&right)),
        _ => left.float().partial_cmp(&right.float()),
    }
}
