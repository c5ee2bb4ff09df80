//! Python's lists, tuples, dicts and iterators as values of the engine.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{Enumerator, Object, ObjectExt, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::limits::{NESTING_MAX, spend_items};
use super::text::{Quoted, kind_name};

/// A list, a tuple, a range, or what a dict's `items()`, `keys()` and `values()` answer.
pub(in crate::chat) struct Sequence {
    pub(in crate::chat) form: Form,
    pub(in crate::chat) items: Vec<Value>,
    nesting: Nesting,
}

/// Which of Python's sequences one is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::chat) enum Form {
    List,
    Tuple,
    /// `dict_items`, `dict_keys` or `dict_values`: has a length and is no sequence.
    View(&'static str),
    Range {
        start: i128,
        stop: i128,
        step: i128,
    },
    /// What `groupby` makes: a tuple whose items have the names `grouper` and `list`.
    Group,
}

/// A dict in the order of its keys' first appearance.
pub(in crate::chat) struct Dict {
    map: Value,
    nesting: Nesting,
}

/// What can be gone through once: what filters such as `map` and `select` answer.
pub(in crate::chat) struct PyIterator {
    items: Mutex<VecDeque<Value>>,
}

/// How deep a value goes, and whether anything in it can change.
#[derive(Debug, Clone, Copy, Default)]
struct Nesting {
    depth: u32,
    holds_changeable: bool,
}

/// A value by Python's types.
pub(in crate::chat) enum Kind<'v> {
    Undefined,
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(&'v str),
    Sequence(&'v Sequence),
    Dict(&'v Dict),
    Iterator(&'v PyIterator),
    /// Macros, functions, namespaces, loops.
    Other,
}

/// Which type a value has.
pub(in crate::chat) fn kind(value: &Value) -> Kind<'_> {
    match value.kind() {
        ValueKind::Undefined => Kind::Undefined,
        ValueKind::None => Kind::None,
        ValueKind::Bool => Kind::Bool(value.is_true()),
        ValueKind::Number if value.is_integer() => match i128::try_from(value.clone()) {
            Ok(number) => Kind::Int(number),
            Err(_) => Kind::Other,
        },
        ValueKind::Number => f64::try_from(value.clone()).map_or(Kind::Other, Kind::Float),
        ValueKind::String => value.as_str().map_or(Kind::Other, Kind::Text),
        _ => {
            if let Some(sequence) = value.downcast_object_ref::<Sequence>() {
                Kind::Sequence(sequence)
            } else if let Some(dict) = value.downcast_object_ref::<Dict>() {
                Kind::Dict(dict)
            } else if let Some(iterator) = value.downcast_object_ref::<PyIterator>() {
                Kind::Iterator(iterator)
            } else {
                Kind::Other
            }
        }
    }
}

/// A list. Cost: one pass over the items.
pub(in crate::chat) fn list(items: Vec<Value>) -> Result<Value, Error> {
    sequence(Form::List, items)
}

/// A tuple. Cost: one pass over the items.
pub(in crate::chat) fn tuple(items: Vec<Value>) -> Result<Value, Error> {
    sequence(Form::Tuple, items)
}

/// A sequence of any form. Cost: one pass over the items.
pub(in crate::chat) fn sequence(form: Form, items: Vec<Value>) -> Result<Value, Error> {
    let nesting = Nesting::around(items.iter())?;
    Ok(Value::from_object(Sequence { form, items, nesting }))
}

/// A dict; of equal keys the first place and the last value count.
pub(in crate::chat) fn dict(pairs: Vec<(Value, Value)>) -> Result<Value, Error> {
    let nesting = Nesting::around(pairs.iter().map(|(_, value)| value))?;
    if let Some((key, _)) = pairs.iter().find(|(key, _)| !is_hashable(key)) {
        return Err(error(format!("unhashable type: '{}'", kind_name(key))));
    }
    Ok(Value::from_object(Dict { map: Value::from_pairs(pairs), nesting }))
}

/// What can be gone through once.
pub(in crate::chat) fn iterator(items: Vec<Value>) -> Value {
    Value::from_object(PyIterator { items: Mutex::new(items.into()) })
}

/// Whether a value can be a dict's key.
pub(in crate::chat) fn is_hashable(value: &Value) -> bool {
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

/// Everything that going through a value yields, as Python's `iter` does; an undefined value yields nothing.
pub(in crate::chat) fn items(state: &mut State, value: &Value) -> Result<Vec<Value>, Error> {
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

/// A list or an iterator that the engine has made itself, such as a macro's `arguments`.
fn is_native_sequence(value: &Value) -> bool {
    value.as_object().is_some_and(|object| matches!(object.repr(), ObjectRepr::Seq | ObjectRepr::Iterable))
}

/// Whether a value counts as true.
pub(in crate::chat) fn is_true(value: &Value) -> bool {
    match kind(value) {
        Kind::Other => true,
        _ => value.is_true(),
    }
}

/// Refuses what must not be kept in a namespace: what can itself change could come to contain itself.
pub(in crate::chat) fn check_kept(value: &Value) -> Result<(), Error> {
    if Nesting::of(value).holds_changeable {
        return Err(error(
            "a namespace cannot keep a namespace or a loop: keep the values that are in them".to_owned(),
        ));
    }
    Ok(())
}

/// An operation that the types do not have.
pub(in crate::chat) fn error(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// The use of a value that is not there.
pub(in crate::chat) fn undefined() -> Error {
    Error::new(ErrorKind::UndefinedError, "a value that the operation needs is undefined: test it with `is defined`")
}

impl Nesting {
    fn of(value: &Value) -> Self {
        match kind(value) {
            Kind::Sequence(sequence) => sequence.nesting,
            Kind::Dict(dict) => dict.nesting,
            Kind::Iterator(_) => Self { depth: 1, holds_changeable: true },
            Kind::Other => Self { depth: 1, holds_changeable: is_changeable(value) },
            _ => Self::default(),
        }
    }

    fn around<'v>(items: impl Iterator<Item = &'v Value>) -> Result<Self, Error> {
        let mut nesting = Self::default();
        for item in items {
            let inner = Self::of(item);
            nesting.depth = nesting.depth.max(inner.depth);
            nesting.holds_changeable |= inner.holds_changeable;
        }
        nesting.depth += 1;
        if nesting.depth > NESTING_MAX {
            return Err(error(format!("lists and dicts are nested more than {NESTING_MAX} deep")));
        }
        Ok(nesting)
    }
}

/// Namespaces and loops; macros and functions do not change.
fn is_changeable(value: &Value) -> bool {
    value.as_object().is_some_and(|object| {
        let name = object.type_name();
        name.ends_with("::Namespace") || name.ends_with("::Loop")
    })
}

impl Dict {
    /// The value of a key.
    pub(in crate::chat) fn get(&self, key: &Value) -> Option<Value> {
        self.map.as_object()?.get_value(key)
    }

    /// The keys in order.
    pub(in crate::chat) fn keys(&self) -> Vec<Value> {
        self.map.try_iter().map(Iterator::collect).unwrap_or_default()
    }

    /// Keys and values in order.
    pub(in crate::chat) fn pairs(&self) -> Vec<(Value, Value)> {
        self.map.as_object().and_then(|map| map.try_iter_pairs()).map(Iterator::collect).unwrap_or_default()
    }

    /// How many keys there are.
    pub(in crate::chat) fn len(&self) -> usize {
        self.map.len().unwrap_or(0)
    }
}

impl PyIterator {
    /// Everything that has not been taken yet.
    pub(in crate::chat) fn drain(&self) -> Vec<Value> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }

    /// What comes next.
    pub(in crate::chat) fn next(&self) -> Option<Value> {
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

impl Object for Sequence {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.as_str() {
            None => self.items.get(key.as_usize()?).cloned(),
            Some("grouper") if self.form == Form::Group => self.items.first().cloned(),
            Some("list") if self.form == Form::Group => self.items.last().cloned(),
            Some(_) => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Quoted(&Value::from_dyn_object(self.clone())))
    }
}

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get(key)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_enumerator(|dict| Box::new(dict.keys().into_iter()))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Quoted(&Value::from_dyn_object(self.clone())))
    }
}

impl Object for PyIterator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.drain())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
