//! Filters on numbers, and `default`.

use minijinja::{Error, State, Value};

use crate::python::arguments::{bind, integer};
use crate::python::number::{Number, parse_float, parse_int, round as round_float};
use crate::python::operators::{int as int_value, negative};
use crate::python::text::plain;
use crate::python::values::{Kind, error, is_true, kind, kind_name, undefined};

pub(super) fn abs(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], []) = bind("abs", arguments, ["x"], [])?;
    match kind(&value) {
        Kind::Int(number) if number >= 0 => Ok(value),
        Kind::Int(_) => negative(state, &[value]),
        Kind::Bool(truth) => Ok(Value::from(i64::from(truth))),
        Kind::Float(number) => Ok(Value::from(number.abs())),
        Kind::Undefined => Err(undefined()),
        _ => Err(error(format!("bad operand type for abs(): '{}'", kind_name(&value)))),
    }
}

pub(super) fn default(_: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], [default, boolean]) = bind("default", arguments, ["value"], ["default_value", "boolean"])?;
    if value.is_undefined() || (boolean.as_ref().is_some_and(is_true) && !is_true(&value)) {
        return Ok(default.unwrap_or_else(|| Value::from("")));
    }
    Ok(value)
}

pub(super) fn int(_: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], [default, base]) = bind("int", arguments, ["value"], ["default", "base"])?;
    let base = base.map_or(Ok(10), |base| integer("int", &base))?;
    let base = u32::try_from(base).ok().filter(|base| (2..=36).contains(base));
    let number = match kind(&value) {
        Kind::Float(number) if number.is_infinite() => return Err(error("cannot convert infinity to integer".into())),
        Kind::Float(number) => truncated(number),
        Kind::Text(text) => {
            base.and_then(|base| parse_int(text, base)).or_else(|| parse_float(text).and_then(truncated))
        }
        Kind::Undefined => return Err(undefined()),
        other => other.integer(),
    };
    Ok(number.map_or_else(|| default.unwrap_or_else(|| Value::from(0)), int_value))
}

fn truncated(number: f64) -> Option<i128> {
    // minijinja has no larger integers.
    (number.abs() < 1e38).then_some(number.trunc() as i128)
}

pub(super) fn float(_: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], [default]) = bind("float", arguments, ["value"], ["default"])?;
    let number = match kind(&value) {
        Kind::Text(text) => parse_float(text),
        Kind::Undefined => return Err(undefined()),
        _ => Number::of(&value).map(Number::float),
    };
    Ok(number.map_or_else(|| default.unwrap_or_else(|| Value::from(0.0)), Value::from))
}

pub(super) fn round(_: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], [precision, method]) = bind("round", arguments, ["value"], ["precision", "method"])?;
    let precision = precision.map_or(Ok(0), |precision| integer("round", &precision))?;
    let method = method.map_or_else(|| "common".to_owned(), |method| plain(&method));
    let number = match Number::of(&value) {
        Some(Number::Int(number)) if method == "common" => return round_int(number, precision),
        Some(number) => number.float(),
        None if value.is_undefined() => return Err(undefined()),
        None => return Err(error(format!("type {} doesn't define __round__ method", kind_name(&value)))),
    };
    let unit = 10f64.powi(i32::try_from(precision).unwrap_or(i32::MAX));
    Ok(Value::from(match method.as_str() {
        "common" => round_float(number, precision),
        "ceil" => (number * unit).ceil() / unit,
        "floor" => (number * unit).floor() / unit,
        _ => return Err(error("method must be common, ceil or floor".into())),
    }))
}

fn round_int(number: i128, precision: i128) -> Result<Value, Error> {
    let unit = u32::try_from(precision.saturating_neg()).ok().map_or(Some(1), |digits| 10i128.checked_pow(digits));
    let Some(unit) = unit else {
        return Ok(Value::from(0));
    };
    let (below, rest) = (number.div_euclid(unit), number.rem_euclid(unit));
    let up = rest * 2 > unit || (rest * 2 == unit && below % 2 != 0);
    Ok(int_value((below + i128::from(up)) * unit))
}

pub(super) fn filesizeformat(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], [binary]) = bind("filesizeformat", arguments, ["value"], ["binary"])?;
    let binary = binary.as_ref().is_some_and(is_true);
    let value = float(state, &[value])?;
    let Kind::Float(bytes) = kind(&value) else {
        return Err(undefined());
    };
    let base: f64 = if binary { 1024.0 } else { 1000.0 };
    if bytes == 1.0 {
        return Ok(Value::from("1 Byte"));
    }
    if bytes < base {
        return Ok(Value::from(format!("{} Bytes", bytes.trunc())));
    }
    let letters = [if binary { 'K' } else { 'k' }, 'M', 'G', 'T', 'P', 'E', 'Z', 'Y'];
    let exponent = (1..letters.len()).find(|exponent| bytes < base.powi(*exponent as i32 + 1)).unwrap_or(letters.len());
    let number = base * bytes / base.powi(exponent as i32 + 1);
    let suffix = if binary { "iB" } else { "B" };
    Ok(Value::from(format!("{number:.1} {}{suffix}", letters[exponent - 1])))
}
