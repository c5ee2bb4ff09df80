//! Arithmetic and concatenation.

use std::fmt::Write;

use minijinja::{Error, State, Value};

use super::arguments::count;
use super::format::printf;
use super::limits::{WORK_MAX, spend, spend_items};
use super::number::Number;
use super::text::{Str, escaped, plain};
use super::values::{Form, Kind, error, kind, kind_name, sequence, undefined};

/// `left OPERATOR right OPERATOR right …`, evaluated from the left.
pub(super) fn math(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let Some((first, rest)) = arguments.split_first() else {
        return Err(undefined());
    };
    let mut value = first.clone();
    for step in rest.chunks_exact(2) {
        value = operate(state, &value, step[0].as_str().unwrap_or_default(), &step[1])?;
    }
    Ok(value)
}

/// `-value`
pub(super) fn negative(_: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    match signed(arguments, '-')? {
        Number::Int(number) => number.checked_neg().map(int).ok_or_else(too_large),
        Number::Float(number) => Ok(Value::from(-number)),
    }
}

/// `+value`
pub(super) fn positive(_: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    match signed(arguments, '+')? {
        Number::Int(number) => Ok(int(number)),
        Number::Float(number) => Ok(Value::from(number)),
    }
}

/// The operand of a sign.
fn signed(arguments: &[Value], sign: char) -> Result<Number, Error> {
    let value = arguments.first().filter(|value| !value.is_undefined()).ok_or_else(undefined)?;
    Number::of(value).ok_or_else(|| error(format!("bad operand type for unary {sign}: '{}'", kind_name(value))))
}

/// `a ~ b ~ …`
pub(super) fn concat(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let mut text = String::new();
    for value in arguments {
        match kind(value) {
            Kind::Text(part) => text.push_str(part),
            // Writing to a string cannot fail.
            _ => drop(write!(text, "{}", Str(value))),
        }
    }
    spend(state, text.len())?;
    Ok(Value::from(text))
}

/// An integer value, in 64 bits where it fits.
pub(super) fn int(number: i128) -> Value {
    i64::try_from(number).map_or_else(|_| Value::from(number), Value::from)
}

fn too_large() -> Error {
    error("an integer of more than 127 bits is not supported".to_owned())
}

fn operate(state: &mut State, left: &Value, operator: &str, right: &Value) -> Result<Value, Error> {
    if let Kind::Text(format) = kind(left)
        && operator == "%"
    {
        return printf(state, format, right).map(Value::from);
    }
    if let (Some(left), Some(right)) = (Number::of(left), Number::of(right)) {
        return numbers(left, operator, right);
    }
    match (kind(left), operator, kind(right)) {
        (Kind::Undefined, ..) | (.., Kind::Undefined) => Err(undefined()),
        (Kind::Text(left_text), "+", Kind::Text(right_text)) => {
            spend(state, left_text.len() + right_text.len())?;
            if left.is_safe() || right.is_safe() {
                return Ok(Value::from_safe_string(markup(left) + &markup(right)));
            }
            Ok(Value::from([left_text, right_text].concat()))
        }
        (Kind::Sequence(left), "+", Kind::Sequence(right))
            if left.form == right.form && matches!(left.form, Form::List | Form::Tuple) =>
        {
            spend_items(state, left.items.len() + right.items.len())?;
            sequence(left.form, [&left.items[..], &right.items[..]].concat())
        }
        (Kind::Text(text), "*", times) | (times, "*", Kind::Text(text)) if times.integer().is_some() => {
            let times = count(times.integer().unwrap_or(0));
            spend(state, bounded_product(text.len(), times))?;
            Ok(Value::from(text.repeat(times)))
        }
        (Kind::Sequence(items), "*", times) | (times, "*", Kind::Sequence(items))
            if times.integer().is_some() && matches!(items.form, Form::List | Form::Tuple) =>
        {
            let times = count(times.integer().unwrap_or(0));
            spend_items(state, bounded_product(items.items.len(), times))?;
            sequence(items.form, std::iter::repeat_n(&items.items, times).flatten().cloned().collect())
        }
        _ => {
            let (left, right) = (kind_name(left), kind_name(right));
            Err(error(format!("unsupported operand types for {operator}: '{left}' and '{right}'")))
        }
    }
}

/// The text that a string contributes to a concatenation with a safe string: Python escapes an unsafe one.
fn markup(value: &Value) -> String {
    let text = plain(value);
    if value.is_safe() { text } else { escaped(&text) }
}

/// A product, capped at [`WORK_MAX`], which always exceeds the remaining work.
fn bounded_product(size: usize, times: usize) -> usize {
    size.saturating_mul(times).min(WORK_MAX as usize)
}

fn numbers(left: Number, operator: &str, right: Number) -> Result<Value, Error> {
    if let (Number::Int(left), Number::Int(right)) = (left, right)
        && operator != "/"
    {
        return integers(left, operator, right);
    }
    let (left, right) = (left.float(), right.float());
    if right == 0.0 && matches!(operator, "/" | "//" | "%") {
        return Err(error("division by zero".to_owned()));
    }
    Ok(Value::from(match operator {
        "+" => left + right,
        "-" => left - right,
        "*" => left * right,
        "/" => left / right,
        "//" => floor_division(left, right).0,
        "%" => floor_division(left, right).1,
        _ if left == 0.0 && right < 0.0 => {
            return Err(error("0.0 cannot be raised to a negative power".to_owned()));
        }
        _ if left < 0.0 && right.fract() != 0.0 => return Err(error("complex numbers are not supported".to_owned())),
        _ => left.powf(right),
    }))
}

fn integers(left: i128, operator: &str, right: i128) -> Result<Value, Error> {
    let result = match operator {
        "+" => left.checked_add(right),
        "-" => left.checked_sub(right),
        "*" => left.checked_mul(right),
        "//" | "%" if right == 0 => return Err(error("integer division or modulo by zero".to_owned())),
        "//" => left.checked_div(right).map(|quotient| {
            let inexact = left.wrapping_rem(right) != 0;
            quotient - i128::from(inexact && (left < 0) != (right < 0))
        }),
        "%" => {
            left.checked_rem(right).map(|rest| if rest != 0 && (rest < 0) != (right < 0) { rest + right } else { rest })
        }
        _ if right < 0 => return numbers(Number::Float(left as f64), operator, Number::Int(right)),
        _ if matches!(left, 0 | 1) => Some(if right == 0 { 1 } else { left }),
        _ => u32::try_from(right).ok().and_then(|exponent| left.checked_pow(exponent)),
    };
    result.map(int).ok_or_else(too_large)
}

/// Quotient and remainder, with the sign of the divisor, computed as CPython does.
fn floor_division(left: f64, right: f64) -> (f64, f64) {
    let mut rest = left % right;
    let mut quotient = (left - rest) / right;
    if rest != 0.0 {
        if (right < 0.0) != (rest < 0.0) {
            rest += right;
            quotient -= 1.0;
        }
    } else {
        rest = 0f64.copysign(right);
    }
    if quotient == 0.0 {
        return (0f64.copysign(left / right), rest);
    }
    let floor = quotient.floor();
    (if quotient - floor > 0.5 { floor + 1.0 } else { floor }, rest)
}
