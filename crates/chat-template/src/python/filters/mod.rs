//! Jinja filters: the names that may follow `|`.

mod items;
mod scalars;
mod selection;
mod texts;

use std::cmp::Ordering;

use minijinja::Value;

use super::arguments::Callable;
use super::json::tojson;
use selection::{Attribute, chosen};

/// All filters with their names.
pub(super) const FILTERS: [(&str, Callable); 51] = [
    ("abs", scalars::abs),
    ("attr", items::attr),
    ("batch", items::batch),
    ("capitalize", texts::capitalize),
    ("center", texts::center),
    ("count", items::length),
    ("d", scalars::default),
    ("default", scalars::default),
    ("dictsort", items::dictsort),
    ("e", texts::escape),
    ("escape", texts::escape),
    ("filesizeformat", scalars::filesizeformat),
    ("first", items::first),
    ("float", scalars::float),
    ("forceescape", texts::escape),
    ("format", texts::format),
    ("groupby", items::groupby),
    ("indent", texts::indent),
    ("int", scalars::int),
    ("items", items::pairs),
    ("join", texts::join),
    ("last", items::last),
    ("length", items::length),
    ("list", items::list),
    ("lower", texts::lower),
    ("map", selection::map),
    ("max", |state, arguments| items::extreme(state, arguments, Ordering::Greater)),
    ("min", |state, arguments| items::extreme(state, arguments, Ordering::Less)),
    ("pprint", texts::pprint),
    ("reject", |state, arguments| chosen(state, arguments, Attribute::None, false)),
    ("rejectattr", |state, arguments| chosen(state, arguments, Attribute::First, false)),
    ("replace", texts::replace),
    ("reverse", items::reverse),
    ("round", scalars::round),
    ("safe", texts::safe),
    ("select", |state, arguments| chosen(state, arguments, Attribute::None, true)),
    ("selectattr", |state, arguments| chosen(state, arguments, Attribute::First, true)),
    ("slice", items::slices),
    ("sort", items::sort),
    ("string", texts::string),
    ("striptags", texts::striptags),
    ("sum", items::sum),
    ("title", texts::title),
    ("tojson", tojson),
    ("trim", texts::trim),
    ("truncate", texts::truncate),
    ("unique", items::unique),
    ("upper", texts::upper),
    ("urlencode", texts::urlencode),
    ("wordcount", texts::wordcount),
    ("xmlattr", texts::xmlattr),
];

/// Finds a filter by name.
pub(super) fn find(name: &str) -> Option<Callable> {
    FILTERS.iter().find(|(known, _)| *known == name).map(|(_, filter)| *filter)
}

/// The sort key for a case-insensitive filter: a string in lower case, any other value unchanged.
fn ignoring_case(value: Value) -> Value {
    match value.as_str() {
        Some(text) => Value::from(text.to_lowercase()),
        None => value,
    }
}
