//! Filters on text.

use std::fmt::Write;

use minijinja::{Error, State, Value};

use super::items::key;
use crate::python::arguments::{bind, count, integer, optional_integer, optional_text, split, text};
use crate::python::format::printf;
use crate::python::limits::{WORK_MAX, spend};
use crate::python::sequences::length as length_of;
use crate::python::text::{Repr, escaped, is_space, plain};
use crate::python::text_methods::{self, lines};
use crate::python::values::{Kind, dict, error, is_true, items, kind, tuple, undefined};

/// The argument of a filter that takes only one, as text.
fn only(state: &mut State, name: &str, arguments: &[Value]) -> Result<String, Error> {
    let ([value], []) = bind(name, arguments, ["s"], [])?;
    let text = plain(&value);
    spend(state, text.len())?;
    Ok(text)
}

pub(super) fn string(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    if let [value] = arguments
        && matches!(kind(value), Kind::Text(_))
    {
        return Ok(value.clone());
    }
    only(state, "string", arguments).map(Value::from)
}

pub(super) fn upper(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    Ok(Value::from(only(state, "upper", arguments)?.to_uppercase()))
}

pub(super) fn lower(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    Ok(Value::from(only(state, "lower", arguments)?.to_lowercase()))
}

pub(super) fn capitalize(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    Ok(Value::from(text_methods::capitalize(&only(state, "capitalize", arguments)?)))
}

pub(super) fn title(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let text = only(state, "title", arguments)?;
    let mut titled = String::with_capacity(text.len());
    let mut starts = true;
    for c in text.chars() {
        let separates = matches!(c, '-' | '(' | '{' | '[' | '<') || is_space(c);
        if starts && !separates {
            titled.extend(c.to_uppercase());
        } else {
            titled.extend(c.to_lowercase());
        }
        starts = separates;
    }
    Ok(Value::from(titled))
}

pub(super) fn trim(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], [chars]) = bind("trim", arguments, ["value"], ["chars"])?;
    let chars = optional_text("trim", chars.as_ref())?;
    let text = plain(&value);
    spend(state, text.len())?;
    Ok(Value::from(text_methods::strip(&text, chars.as_deref(), "strip")))
}

pub(super) fn replace(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value, old, new], [times]) = bind("replace", arguments, ["s", "old", "new"], ["count"])?;
    let times = optional_integer("replace", times.as_ref())?.unwrap_or(-1);
    let (value, old, new) = (plain(&value), plain(&old), plain(&new));
    text_methods::replace(state, &value, &old, &new, times).map(Value::from)
}

pub(super) fn join(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], [separator, attribute]) = bind("join", arguments, ["value"], ["d", "attribute"])?;
    let separator = separator.map_or_else(String::new, |separator| plain(&separator));
    let mut joined = String::new();
    for (at, item) in items(state, &value)?.into_iter().enumerate() {
        let item = key(state, &item, attribute.as_ref(), false)?;
        if at > 0 {
            joined.push_str(&separator);
        }
        let before = joined.len();
        joined.push_str(&plain(&item));
        spend(state, joined.len() - before + separator.len())?;
    }
    Ok(Value::from(joined))
}

pub(super) fn format(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let (positional, named) = split(arguments);
    let Some((template, values)) = positional.split_first() else {
        return Err(undefined());
    };
    let template = plain(template);
    let values = match (values, named.is_empty()) {
        ([], false) => dict(named.into_iter().map(|(name, value)| (Value::from(name), value)).collect())?,
        (values, true) => tuple(values.to_vec())?,
        _ => return Err(error("can't handle positional and keyword arguments at the same time".into())),
    };
    printf(state, &template, &values).map(Value::from)
}

pub(super) fn indent(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], [width, first, blank]) = bind("indent", arguments, ["s"], ["width", "first", "blank"])?;
    let source = match kind(&value) {
        Kind::Undefined => return Err(undefined()),
        _ => text("indent", &value)?,
    };
    let width = width.unwrap_or_else(|| Value::from(4));
    let indention = match kind(&width) {
        Kind::Text(text) => text.to_owned(),
        _ => " ".repeat(count(integer("indent", &width)?).min(1_000)),
    };
    let (first, blank) = (first.as_ref().is_some_and(is_true), blank.as_ref().is_some_and(is_true));
    // The extra newline makes an empty last line count.
    let source = format!("{source}\n");
    let lines = lines(&source, false);
    spend(state, (source.len() + lines.len() * indention.len()).min(WORK_MAX as usize))?;
    let mut text = String::new();
    for (at, line) in lines.into_iter().enumerate() {
        if at > 0 {
            text.push('\n');
        }
        if if at == 0 { first } else { blank || !line.is_empty() } {
            text.push_str(&indention);
        }
        text.push_str(line);
    }
    Ok(Value::from(text))
}

pub(super) fn center(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], [width]) = bind("center", arguments, ["value"], ["width"])?;
    let width = count(optional_integer("center", width.as_ref())?.unwrap_or(80));
    spend(state, width.min(WORK_MAX as usize))?;
    Ok(Value::from(text_methods::center(&plain(&value), width, ' ')))
}

pub(super) fn truncate(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], [length, killwords, end, leeway]) =
        bind("truncate", arguments, ["s"], ["length", "killwords", "end", "leeway"])?;
    let value_length = length_of(state, &value)?;
    let length = count(optional_integer("truncate", length.as_ref())?.unwrap_or(255));
    let leeway = count(optional_integer("truncate", leeway.as_ref())?.unwrap_or(5));
    let end = end.map_or_else(|| "...".to_owned(), |end| plain(&end));
    let Some(kept) = length.checked_sub(end.chars().count()) else {
        return Err(error(format!("expected length >= {}, got {length}", end.chars().count())));
    };
    if value_length <= length.saturating_add(leeway) {
        return Ok(value);
    }
    let source = text("truncate", &value)?;
    spend(state, source.len())?;
    let cut: String = source.chars().take(kept).collect();
    let cut = match cut.rsplit_once(' ') {
        Some((words, _)) if !killwords.as_ref().is_some_and(is_true) => words,
        _ => &cut,
    };
    Ok(Value::from(format!("{cut}{end}")))
}

pub(super) fn wordcount(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let text = only(state, "wordcount", arguments)?;
    let words = text.split(|c: char| c != '_' && !c.is_alphanumeric()).filter(|word| !word.is_empty());
    Ok(Value::from(words.count()))
}

pub(super) fn pprint(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], []) = bind("pprint", arguments, ["value"], [])?;
    let text = Repr(&value).to_string();
    spend(state, text.len())?;
    Ok(Value::from(text))
}

pub(super) fn escape(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], []) = bind("escape", arguments, ["s"], [])?;
    if value.is_safe() {
        return Ok(value);
    }
    let text = plain(&value);
    spend(state, text.len())?;
    Ok(Value::from_safe_string(escaped(&text)))
}

pub(super) fn safe(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    only(state, "safe", arguments).map(Value::from_safe_string)
}

pub(super) fn striptags(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let mut text = only(state, "striptags", arguments)?;
    for (open, close) in [("<!--", "-->"), ("<", ">")] {
        let mut kept = String::new();
        let mut rest = &text[..];
        while let Some(at) = rest.find(open)
            && let Some(end) = rest[at..].find(close)
        {
            kept.push_str(&rest[..at]);
            rest = &rest[at + end + close.len()..];
        }
        text = kept + rest;
    }
    let words: Vec<&str> = text.split(is_space).filter(|word| !word.is_empty()).collect();
    let text = words.join(" ");
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&#39;", "'").replace("&#34;", "\"");
    Ok(Value::from(text.replace("&quot;", "\"").replace("&amp;", "&")))
}

pub(super) fn urlencode(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], []) = bind("urlencode", arguments, ["value"], [])?;
    let pairs = match kind(&value) {
        Kind::Dict(dict) => dict.pairs(),
        Kind::Sequence(sequence) => {
            let pairs = sequence.items.iter().map(|pair| match kind(pair) {
                Kind::Sequence(pair) if pair.items.len() == 2 => Ok((pair.items[0].clone(), pair.items[1].clone())),
                _ => Err(error("urlencode() needs pairs".into())),
            });
            pairs.collect::<Result<_, _>>()?
        }
        _ => {
            let text = plain(&value);
            spend(state, text.len())?;
            return Ok(Value::from(percent_encoded(&text, "/")));
        }
    };
    let mut query = String::new();
    for (at, (key, value)) in pairs.iter().enumerate() {
        let joint = if at > 0 { "&" } else { "" };
        let encoded = |value: &Value| percent_encoded(&plain(value), "").replace("%20", "+");
        // Writing to a string cannot fail.
        let _ = write!(query, "{joint}{}={}", encoded(key), encoded(value));
    }
    spend(state, query.len())?;
    Ok(Value::from(query))
}

fn percent_encoded(text: &str, safe: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        let c = char::from(byte);
        if c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '~') || safe.contains(c) {
            encoded.push(c);
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

pub(super) fn xmlattr(state: &mut State, arguments: &[Value]) -> Result<Value, Error> {
    let ([value], [autospace]) = bind("xmlattr", arguments, ["d"], ["autospace"])?;
    let Kind::Dict(dict) = kind(&value) else {
        return Err(error("xmlattr() needs a dict".into()));
    };
    let mut text = String::new();
    for (key, value) in dict.pairs() {
        if value.is_none() || value.is_undefined() {
            continue;
        }
        let key = plain(&key);
        if key.contains(|c: char| c.is_ascii_whitespace() || matches!(c, '/' | '>' | '=')) {
            return Err(error(format!("Invalid character in attribute name: {}", Repr(&Value::from(key)))));
        }
        // Writing to a string cannot fail.
        let _ = write!(text, " {}=\"{}\"", escaped(&key), escaped(&plain(&value)));
    }
    spend(state, text.len())?;
    let leading = autospace.as_ref().is_none_or(is_true);
    Ok(Value::from(if leading { &text[..] } else { text.trim_start_matches(' ') }))
}
