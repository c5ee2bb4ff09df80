//! Python's lists, tuples, dicts and iterators as minijinja values.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use minijinja::value::{ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::limits::{NESTING_MAX, spend_items};

/// A list, a tuple, a range, or a view that a dict's `items()`, `keys()` or `values()` returns.
pub(crate) struct Sequence {
    pub(crate) form: Form,
    pub(crate) items: Vec<Value>,
    nesting: Nesting,
}

/// The Python type of a [`Sequence`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Form {
    List,
    Tuple,
    /// `dict_items`, `dict_keys` or `dict_values`. Has a length, and is not a sequence in Python.
    View(&'static str),
    Range {
        start: i128,
        stop: i128,
        step: i128,
    },
    /// An item of `groupby`: a tuple whose items are also attributes, `grouper` and `list`.
    Group,
}

/// A dict, in insertion order.
pub(crate) struct Dict {
    map: Value,
    nesting: Nesting,
}

/// An iterator that filters such as `map` and `select` return. It yields each item once.
pub(crate) struct PyIterator {
    items: Mutex<VecDeque<Value>>,
}

/// An integer beyond 128 bits. Filters and operators take no such number.
#[derive(PartialEq)]
pub(crate) struct BigInt {
    pub(crate) digits: Box<str>,
}

/// Nesting depth of a value, and whether it contains a mutable value.
#[derive(Debug, Clone, Copy, Default)]
struct Nesting {
    depth: u32,
    holds_mutable: bool,
}

/// A value, by its Python type.
pub(crate) enum Kind<'v> {
    Undefined,
    None,
    Bool(bool),
    Int(i128),
    /// An integer beyond 128 bits. Templates can use its digits only.
    BigInt(&'v BigInt),
    Float(f64),
    Text(&'v str),
    Sequence(&'v Sequence),
    Dict(&'v Dict),
    Iterator(&'v PyIterator),
    /// Macros, functions, namespaces, loops.
    Other,
}

impl Kind<'_> {
    /// The integer, if the value is one. A truth value is 0 or 1.
    pub(crate) fn integer(&self) -> Option<i128> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Bool(truth) => Some(i128::from(*truth)),
            _ => None,
        }
    }
}

/// Classifies a value by its Python type.
pub(crate) fn kind(value: &Value) -> Kind<'_> {
    match value.kind() {
        ValueKind::Undefined => Kind::Undefined,
        ValueKind::None => Kind::None,
        ValueKind::Bool => Kind::Bool(value.is_true()),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).map_or(Kind::Other, Kind::Int),
        ValueKind::Number => f64::try_from(value.clone()).map_or(Kind::Other, Kind::Float),
        ValueKind::String => value.as_str().map_or(Kind::Other, Kind::Text),
        _ => {
            if let Some(sequence) = value.downcast_object_ref::<Sequence>() {
                Kind::Sequence(sequence)
            } else if let Some(dict) = value.downcast_object_ref::<Dict>() {
                Kind::Dict(dict)
            } else if let Some(iterator) = value.downcast_object_ref::<PyIterator>() {
                Kind::Iterator(iterator)
            } else if let Some(number) = value.downcast_object_ref::<BigInt>() {
                Kind::BigInt(number)
            } else {
                Kind::Other
            }
        }
    }
}

/// The name of a value's type in Python's messages.
pub(crate) fn kind_name(value: &Value) -> &'static str {
    match kind(value) {
        Kind::Undefined => "Undefined",
        Kind::None => "NoneType",
        Kind::Bool(_) => "bool",
        Kind::Int(_) | Kind::BigInt(_) => "int",
        Kind::Float(_) => "float",
        Kind::Text(_) => "str",
        Kind::Sequence(sequence) => match sequence.form {
            Form::List => "list",
            Form::Tuple | Form::Group => "tuple",
            Form::View(name) => name,
            Form::Range { .. } => "range",
        },
        Kind::Dict(_) => "dict",
        Kind::Iterator(_) => "generator",
        Kind::Other => "object",
    }
}

/// An integer beyond 128 bits, by its digits.
pub(crate) fn big_int(digits: &str) -> Value {
    Value::from_object(BigInt { digits: digits.into() })
}

/// A list. Cost: one pass over the items.
pub(crate) fn list(items: Vec<Value>) -> Result<Value, Error> {
    sequence(Form::List, items)
}

/// A tuple. Cost: one pass over the items.
pub(crate) fn tuple(items: Vec<Value>) -> Result<Value, Error> {
    sequence(Form::Tuple, items)
}

/// A sequence of a given form. Cost: one pass over the items.
pub(crate) fn sequence(form: Form, items: Vec<Value>) -> Result<Value, Error> {
    let nesting = Nesting::around(items.iter())?;
    Ok(Value::from_object(Sequence { form, items, nesting }))
}

/// A dict. Equal keys have the position of the first and the value of the last.
pub(crate) fn dict(pairs: Vec<(Value, Value)>) -> Result<Value, Error> {
    let nesting = Nesting::around(pairs.iter().map(|(_, value)| value))?;
    if let Some((key, _)) = pairs.iter().find(|(key, _)| !is_hashable(key)) {
        return Err(error(format!("unhashable type: '{}'", kind_name(key))));
    }
    Ok(Value::from_object(Dict { map: Value::from_pairs(pairs), nesting }))
}

/// An iterator over these items.
pub(crate) fn iterator(items: Vec<Value>) -> Value {
    Value::from_object(PyIterator { items: Mutex::new(items.into()) })
}

/// Whether a value can be a dict's key.
pub(crate) fn is_hashable(value: &Value) -> bool {
    match kind(value) {
        Kind::Sequence(sequence) => match sequence.form {
            Form::Tuple | Form::Group => sequence.items.iter().all(is_hashable),
            Form::Range { .. } => true,
            Form::List | Form::View(_) => false,
        },
        Kind::Dict(_) => false,
        _ => true,
    }
}

/// The items that Python's `iter` yields for a value. An undefined value yields none.
pub(crate) fn items(state: &mut State, value: &Value) -> Result<Vec<Value>, Error> {
    let items = match kind(value) {
        Kind::Undefined => Vec::new(),
        Kind::Text(text) => {
            let mut buffer = [0; 4];
            text.chars().map(|c| Value::from(&*c.encode_utf8(&mut buffer))).collect()
        }
        Kind::Sequence(sequence) => sequence.items.clone(),
        Kind::Dict(dict) => dict.keys(),
        Kind::Iterator(iterator) => iterator.drain(),
        Kind::Other if is_native_sequence(value) => value.try_iter()?.collect(),
        _ => return Err(error(format!("'{}' object is not iterable", kind_name(value)))),
    };
    spend_items(state, items.len())?;
    Ok(items)
}

/// Whether a value is a list or an iterator of minijinja's own, such as a macro's `arguments`.
fn is_native_sequence(value: &Value) -> bool {
    value.as_object().is_some_and(|object| matches!(object.repr(), ObjectRepr::Seq | ObjectRepr::Iterable))
}

/// Whether a value is true in a condition.
pub(crate) fn is_true(value: &Value) -> bool {
    match kind(value) {
        Kind::Other => true,
        _ => value.is_true(),
    }
}

/// Rejects a value that a namespace must not hold: a mutable value could contain itself.
pub(crate) fn check_namespace_value(value: &Value) -> Result<(), Error> {
    if Nesting::of(value).holds_mutable {
        return Err(error("a namespace cannot hold a namespace or a loop; store their values instead".to_owned()));
    }
    Ok(())
}

/// An error for an operation that the operand types do not support.
pub(crate) fn error(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// An error for the use of an undefined value.
pub(crate) fn undefined() -> Error {
    Error::new(ErrorKind::UndefinedError, "an operand is undefined; test it with `is defined`")
}

impl Nesting {
    fn of(value: &Value) -> Self {
        match kind(value) {
            Kind::Sequence(sequence) => sequence.nesting,
            Kind::Dict(dict) => dict.nesting,
            Kind::Iterator(_) => Self { depth: 1, holds_mutable: true },
            Kind::Other => Self { depth: 1, holds_mutable: is_mutable(value) },
            _ => Self::default(),
        }
    }

    fn around<'v>(items: impl Iterator<Item = &'v Value>) -> Result<Self, Error> {
        let mut nesting = Self::default();
        for item in items {
            let inner = Self::of(item);
            nesting.depth = nesting.depth.max(inner.depth);
            nesting.holds_mutable |= inner.holds_mutable;
        }
        nesting.depth += 1;
        if nesting.depth > NESTING_MAX {
            return Err(error(format!("lists and dicts are nested more than {NESTING_MAX} deep")));
        }
        Ok(nesting)
    }
}

/// Whether a value is mutable: namespaces and loops are, macros and functions are not.
fn is_mutable(value: &Value) -> bool {
    value.as_object().is_some_and(|object| {
        let name = object.type_name();
        name.ends_with("::Namespace") || name.ends_with("::Loop")
    })
}

impl Dict {
    /// The value of a key.
    pub(crate) fn get(&self, key: &Value) -> Option<Value> {
        self.map.as_object()?.get_value(key)
    }

    /// The keys in order.
    pub(crate) fn keys(&self) -> Vec<Value> {
        self.map.try_iter().map(Iterator::collect).unwrap_or_default()
    }

    /// Keys and values in order.
    pub(crate) fn pairs(&self) -> Vec<(Value, Value)> {
        self.map.as_object().and_then(|map| map.try_iter_pairs()).map(Iterator::collect).unwrap_or_default()
    }

    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        self.map.len().unwrap_or(0)
    }
}

impl PyIterator {
    /// Takes the remaining items.
    pub(crate) fn drain(&self) -> Vec<Value> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }

    /// Takes the next item.
    pub(crate) fn next(&self) -> Option<Value> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.items).finish()
    }
}

impl fmt::Debug for Dict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.map, f)
    }
}

impl fmt::Debug for PyIterator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<generator object>")
    }
}

impl fmt::Debug for BigInt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.digits)
    }
}
