//! Methods of strings.

use minijinja::{Error, ErrorKind, State, Value};

use super::arguments::{bind, count, integer, optional_integer, optional_text, text};
use super::format::format_method;
use super::limits::{WORK_MAX, spend, spend_items};
use super::text::is_space;
use super::values::{Form, Kind, error, is_true, items, kind, kind_name, list, tuple};

/// Calls a method of a string.
pub(super) fn call(state: &mut State, receiver: &str, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    spend(state, receiver.len())?;
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let ([], [chars]) = bind(name, arguments, [], ["chars"])?;
            let chars = optional_text(name, chars.as_ref())?;
            Ok(Value::from(strip(receiver, chars.as_deref(), name)))
        }
        "split" | "rsplit" => split(state, receiver, name, arguments),
        "splitlines" => {
            let ([], [keepends]) = bind(name, arguments, [], ["keepends"])?;
            texts(state, &lines(receiver, keepends.as_ref().is_some_and(is_true)))
        }
        "partition" | "rpartition" => partition(receiver, name, arguments),
        "startswith" | "endswith" => edge(receiver, name, arguments),
        "removeprefix" => affix(arguments, name, |affix| receiver.strip_prefix(affix).unwrap_or(receiver)),
        "removesuffix" => affix(arguments, name, |affix| receiver.strip_suffix(affix).unwrap_or(receiver)),
        "find" | "rfind" | "index" | "rindex" => find(receiver, name, arguments),
        "count" => {
            let ([wanted], [start, stop]) = bind(name, arguments, ["sub"], ["start", "end"])?;
            let window = Window::new(receiver, start.as_ref(), stop.as_ref())?;
            let wanted = text(name, &wanted)?;
            Ok(Value::from(window.text.map_or(0, |part| match wanted {
                "" => part.chars().count() + 1,
                wanted => part.matches(wanted).count(),
            })))
        }
        "replace" => {
            let ([old, new], [times]) = bind(name, arguments, ["old", "new"], ["count"])?;
            let times = optional_integer(name, times.as_ref())?.unwrap_or(-1);
            replace(state, receiver, text(name, &old)?, text(name, &new)?, times).map(Value::from)
        }
        "join" => {
            let ([parts], []) = bind(name, arguments, ["iterable"], [])?;
            join(state, receiver, &parts)
        }
        "format" => format_method(state, receiver, arguments).map(Value::from),
        "center" | "ljust" | "rjust" | "zfill" => padded(state, receiver, name, arguments),
        "expandtabs" => {
            let ([], [size]) = bind(name, arguments, [], ["tabsize"])?;
            let size = count(optional_integer(name, size.as_ref())?.unwrap_or(8));
            spend(state, receiver.matches('\t').count().saturating_mul(size).min(WORK_MAX as usize))?;
            Ok(Value::from(expand_tabs(receiver, size)))
        }
        _ => {
            let ([], []) = bind(name, arguments, [], [])?;
            plain(receiver, name)
        }
    }
}

/// Methods without arguments.
fn plain(receiver: &str, name: &str) -> Result<Value, Error> {
    let every = |test: fn(char) -> bool| Value::from(!receiver.is_empty() && receiver.chars().all(test));
    Ok(match name {
        "upper" => Value::from(receiver.to_uppercase()),
        "lower" => Value::from(receiver.to_lowercase()),
        "casefold" => Value::from(receiver.to_lowercase().replace('ß', "ss").replace('ς', "σ")),
        "capitalize" => Value::from(capitalize(receiver)),
        "title" => Value::from(title(receiver)),
        "swapcase" => Value::from(
            receiver
                .chars()
                .map(|c| if c.is_uppercase() { c.to_lowercase().to_string() } else { c.to_uppercase().to_string() })
                .collect::<String>(),
        ),
        "isspace" => every(is_space),
        "isalpha" => every(char::is_alphabetic),
        "isalnum" => every(char::is_alphanumeric),
        "isdigit" | "isdecimal" | "isnumeric" => every(char::is_numeric),
        "isascii" => Value::from(receiver.is_ascii()),
        "isidentifier" => Value::from(
            receiver.starts_with(|c: char| c == '_' || c.is_alphabetic())
                && receiver.chars().all(|c| c == '_' || c.is_alphanumeric()),
        ),
        "isupper" => Value::from(receiver.chars().any(char::is_uppercase) && !receiver.chars().any(char::is_lowercase)),
        "islower" => Value::from(receiver.chars().any(char::is_lowercase) && !receiver.chars().any(char::is_uppercase)),
        "istitle" => Value::from(receiver.chars().any(char::is_alphabetic) && title(receiver) == receiver),
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    })
}

/// First character in upper case, all others in lower case.
pub(super) fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| title_case(first) + &chars.as_str().to_lowercase())
}

fn title_case(c: char) -> String {
    let upper: Vec<char> = c.to_uppercase().collect();
    match &upper[..] {
        // A letter whose upper case has several letters keeps one capital in title case.
        [first, rest @ ..] if !rest.is_empty() && c.is_alphabetic() => {
            std::iter::once(*first).chain(rest.iter().flat_map(|c| c.to_lowercase())).collect()
        }
        upper => upper.iter().collect(),
    }
}

fn title(text: &str) -> String {
    let mut titled = String::with_capacity(text.len());
    let mut after_letter = false;
    for c in text.chars() {
        let cased = c.is_uppercase() || c.is_lowercase();
        match (cased, after_letter) {
            (true, false) => titled.push_str(&title_case(c)),
            (true, true) => titled.extend(c.to_lowercase()),
            (false, _) => titled.push(c),
        }
        after_letter = cased;
    }
    titled
}

/// Strips characters of `chars`, or whitespace, from one end or both.
pub(super) fn strip<'t>(text: &'t str, chars: Option<&str>, name: &str) -> &'t str {
    let is_stripped = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    match name {
        "lstrip" => text.trim_start_matches(is_stripped),
        "rstrip" => text.trim_end_matches(is_stripped),
        _ => text.trim_matches(is_stripped),
    }
}

/// A list of strings.
fn texts(state: &mut State, texts: &[&str]) -> Result<Value, Error> {
    spend_items(state, texts.len())?;
    list(texts.iter().map(|text| Value::from(*text)).collect())
}

fn split(state: &mut State, receiver: &str, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let ([], [separator, times]) = bind(name, arguments, [], ["sep", "maxsplit"])?;
    let separator = optional_text(name, separator.as_ref())?;
    let times = optional_integer(name, times.as_ref())?.unwrap_or(-1);
    let times = if times < 0 { usize::MAX } else { count(times) };
    let parts = match separator.as_deref() {
        Some("") => return Err(error("empty separator".to_owned())),
        Some(separator) if name == "split" => receiver.splitn(times.saturating_add(1), separator).collect(),
        Some(separator) => {
            let mut parts: Vec<&str> = receiver.rsplitn(times.saturating_add(1), separator).collect();
            parts.reverse();
            parts
        }
        None if name == "split" => words(receiver, times),
        None => words_from_the_end(receiver, times),
    };
    texts(state, &parts)
}

/// Splits at whitespace, at most `times` times. The rest stays unsplit.
fn words(text: &str, times: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        let end = if parts.len() < times { rest.find(is_space).unwrap_or(rest.len()) } else { rest.len() };
        parts.push(&rest[..end]);
        rest = rest[end..].trim_start_matches(is_space);
    }
    parts
}

fn words_from_the_end(text: &str, times: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_end_matches(is_space);
    while !rest.is_empty() {
        let space = if parts.len() < times { rest.char_indices().rev().find(|(_, c)| is_space(*c)) } else { None };
        let start = space.map_or(0, |(at, c)| at + c.len_utf8());
        parts.push(&rest[start..]);
        rest = rest[..start].trim_end_matches(is_space);
    }
    parts.reverse();
    parts
}

/// Splits a text at all line ends of Python's `str.splitlines`.
pub(super) fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut start = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if !matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}') {
            continue;
        }
        let mut end = at + c.len_utf8();
        if c == '\r' && chars.next_if(|(_, next)| *next == '\n').is_some() {
            end += 1;
        }
        lines.push(if keep_ends { &text[start..end] } else { &text[start..at] });
        start = end;
    }
    if start < text.len() {
        lines.push(&text[start..]);
    }
    lines
}

fn partition(receiver: &str, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let ([separator], []) = bind(name, arguments, ["sep"], [])?;
    let separator = text(name, &separator)?;
    if separator.is_empty() {
        return Err(error("empty separator".to_owned()));
    }
    let parts = if name == "partition" {
        receiver.split_once(separator).map_or([receiver, "", ""], |(before, after)| [before, separator, after])
    } else {
        receiver.rsplit_once(separator).map_or(["", "", receiver], |(before, after)| [before, separator, after])
    };
    tuple(parts.into_iter().map(Value::from).collect())
}

fn edge(receiver: &str, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let ([affixes], [start, stop]) = bind(name, arguments, ["prefix"], ["start", "end"])?;
    let window = Window::new(receiver, start.as_ref(), stop.as_ref())?;
    let at_edge = |part: &str, affix: &str| {
        if name == "startswith" { part.starts_with(affix) } else { part.ends_with(affix) }
    };
    let has = |affix: &Value| -> Result<bool, Error> {
        let affix = text(name, affix)?;
        Ok(window.text.is_some_and(|part| at_edge(part, affix)))
    };
    let affixes = match kind(&affixes) {
        Kind::Sequence(sequence) if sequence.form == Form::Tuple => &sequence.items[..],
        _ => std::slice::from_ref(&affixes),
    };
    for affix in affixes {
        if has(affix)? {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}

fn affix<'t>(arguments: &[Value], name: &str, strip: impl Fn(&str) -> &'t str) -> Result<Value, Error> {
    let ([affix], []) = bind(name, arguments, ["affix"], [])?;
    Ok(Value::from(strip(text(name, &affix)?)))
}

/// The part of a text between optional `start` and `end` positions, in characters.
struct Window<'t> {
    /// `None` if the start is beyond the end.
    text: Option<&'t str>,
    /// Number of characters before the part.
    offset: usize,
}

impl<'t> Window<'t> {
    fn new(text: &'t str, start: Option<&Value>, stop: Option<&Value>) -> Result<Self, Error> {
        if start.is_none() && stop.is_none() {
            return Ok(Self { text: Some(text), offset: 0 });
        }
        let length = text.chars().count() as i128;
        let place = |bound: i128| if bound < 0 { (bound + length).max(0) } else { bound };
        let start = place(optional_integer("a search", start)?.unwrap_or(0));
        let stop = place(optional_integer("a search", stop)?.unwrap_or(length)).min(length);
        if start > stop {
            return Ok(Self { text: None, offset: 0 });
        }
        let byte = |chars: usize| text.char_indices().nth(chars).map_or(text.len(), |(at, _)| at);
        let offset = count(start);
        Ok(Self { text: Some(&text[byte(offset)..byte(count(stop))]), offset })
    }
}

fn find(receiver: &str, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let ([wanted], [start, stop]) = bind(name, arguments, ["sub"], ["start", "end"])?;
    let window = Window::new(receiver, start.as_ref(), stop.as_ref())?;
    let wanted = text(name, &wanted)?;
    let place = window.text.and_then(|part| {
        let at = if name.starts_with('r') { part.rfind(wanted) } else { part.find(wanted) };
        at.map(|at| part[..at].chars().count() + window.offset)
    });
    match place {
        Some(place) => Ok(Value::from(place)),
        None if name.ends_with("index") => Err(error("substring not found".to_owned())),
        None => Ok(Value::from(-1)),
    }
}

/// Replaces occurrences of `old` by `new`, at most `times` of them unless that is negative.
pub(super) fn replace(state: &mut State, text: &str, old: &str, new: &str, times: i128) -> Result<String, Error> {
    let found = if old.is_empty() { text.chars().count() + 1 } else { text.matches(old).count() };
    let times = if times < 0 { found } else { found.min(count(times)) };
    spend(state, text.len().saturating_add(times.saturating_mul(new.len())).min(WORK_MAX as usize))?;
    Ok(text.replacen(old, new, times))
}

fn join(state: &mut State, separator: &str, parts: &Value) -> Result<Value, Error> {
    let mut joined = String::new();
    for (at, part) in items(state, parts)?.iter().enumerate() {
        let Kind::Text(part) = kind(part) else {
            return Err(error(format!("sequence item {at}: expected str instance, {} found", kind_name(part))));
        };
        if at > 0 {
            joined.push_str(separator);
        }
        spend(state, part.len() + separator.len())?;
        joined.push_str(part);
    }
    Ok(Value::from(joined))
}

fn padded(state: &mut State, receiver: &str, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let ([width], [fill]) = bind(name, arguments, ["width"], ["fillchar"])?;
    let width = count(integer(name, &width)?);
    let fill = optional_text(name, fill.as_ref())?.unwrap_or_else(|| " ".to_owned());
    let mut fills = fill.chars();
    let (Some(fill), None) = (fills.next(), fills.next()) else {
        return Err(error("The fill character must be exactly one character long".to_owned()));
    };
    let missing = width.saturating_sub(receiver.chars().count());
    spend(state, missing.min(WORK_MAX as usize))?;
    let filling = |count: usize| fill.to_string().repeat(count);
    Ok(Value::from(match name {
        "ljust" => format!("{receiver}{}", filling(missing)),
        "rjust" => format!("{}{receiver}", filling(missing)),
        "zfill" => {
            let (sign, digits) = receiver.split_at(usize::from(receiver.starts_with(['+', '-'])));
            format!("{sign}{}{digits}", "0".repeat(missing))
        }
        _ => center(receiver, width, fill),
    }))
}

/// Pads a text on both sides. An odd remainder goes to the side that CPython chooses.
pub(super) fn center(text: &str, width: usize, fill: char) -> String {
    let missing = width.saturating_sub(text.chars().count());
    let left = missing / 2 + (missing & width & 1);
    let filling = |count: usize| fill.to_string().repeat(count);
    format!("{}{text}{}", filling(left), filling(missing - left))
}

fn expand_tabs(text: &str, size: usize) -> String {
    let mut expanded = String::new();
    let mut column = 0;
    for c in text.chars() {
        match c {
            '\t' if size > 0 => {
                let spaces = size - column % size;
                expanded.extend(std::iter::repeat_n(' ', spaces));
                column += spaces;
            }
            '\t' => {}
            c => {
                expanded.push(c);
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    expanded
}
