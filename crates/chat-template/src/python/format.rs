//! `%` formatting and `str.format`.

use minijinja::{Error, State, Value};

use super::arguments::split;
use super::attributes::{attribute, get_item};
use super::limits::spend;
use super::number::{Float, Number, exponent_form, general_form};
use super::text::{Repr, Str, plain};
use super::values::{Form, Kind, error, kind, kind_name};

/// Maximum width of a field, and maximum precision. Rust's own formatting panics beyond 65,535.
const WIDTH_MAX: usize = 50_000;

/// Alignments of a field in `str.format`.
const ALIGNMENTS: &str = "<>=^";

/// The format of one value, for `%` and `str.format`.
#[derive(Debug, Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    zero: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

/// Python's `template % value`.
pub(super) fn printf(state: &mut State, template: &str, value: &Value) -> Result<String, Error> {
    let positional = match kind(value) {
        Kind::Sequence(sequence) if sequence.form == Form::Tuple => sequence.items.clone(),
        _ => vec![value.clone()],
    };
    let mut values = positional.into_iter();
    let mut next = || values.next().ok_or_else(|| error("not enough arguments for format string".into()));
    let mut used_mapping = false;
    let mut out = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let mut spec = Spec::default();
        let mut named = None;
        if let Some(inner) = rest.strip_prefix('(') {
            let end = inner.find(')').ok_or_else(|| error("incomplete format key".into()))?;
            named = Some(get_item(value, &Value::from(&inner[..end]))?);
            used_mapping = true;
            rest = &inner[end + 1..];
        }
        while let Some(flag) = take(&mut rest, "-+ 0#") {
            match flag {
                '-' => spec.align = Some('<'),
                '0' => spec.zero = true,
                '#' => spec.alternate = true,
                _ if spec.sign != Some('+') => spec.sign = Some(flag),
                _ => {}
            }
        }
        if take(&mut rest, "*").is_some() {
            spec.width = whole(&next()?)?;
        } else {
            spec.width = number(&mut rest)?.unwrap_or(0);
        }
        if take(&mut rest, ".").is_some() {
            spec.precision = Some(number(&mut rest)?.unwrap_or(0));
        }
        let conversion = rest.chars().next().ok_or_else(|| error("incomplete format".into()))?;
        rest = &rest[conversion.len_utf8()..];
        if conversion == '%' {
            out.push('%');
            continue;
        }
        let value = match named {
            Some(value) if value.is_undefined() => return Err(error("a key of the format is missing".into())),
            Some(value) => value,
            None => next()?,
        };
        spec.align = spec.align.or(Some(if spec.zero { '=' } else { '>' }));
        let before = out.len();
        convert(&mut out, spec, conversion, &value)?;
        spend(state, out.len() - before)?;
    }
    // A mapping or a list need not be used up.
    let is_mapping = match kind(value) {
        Kind::Dict(_) | Kind::Undefined => true,
        Kind::Sequence(sequence) => sequence.form != Form::Tuple,
        _ => false,
    };
    if !used_mapping && !is_mapping && values.next().is_some() {
        return Err(error("not all arguments converted during string formatting".into()));
    }
    out.push_str(rest);
    Ok(out)
}

fn convert(out: &mut String, mut spec: Spec, conversion: char, value: &Value) -> Result<(), Error> {
    match conversion {
        's' | 'r' | 'a' => {
            let text = if conversion == 's' { plain(value) } else { Repr(value).to_string() };
            spec.align = spec.align.map(|align| if align == '=' { '>' } else { align });
            spec.zero = false;
            out.push_str(&spec.text(&text));
        }
        'c' => {
            let text = match kind(value) {
                Kind::Text(text) if text.chars().count() == 1 => text.to_owned(),
                Kind::Int(code) => u32::try_from(code)
                    .ok()
                    .and_then(char::from_u32)
                    .map(String::from)
                    .ok_or_else(|| error("%c arg not in range(0x110000)".into()))?,
                _ => return Err(error("%c requires int or char".into())),
            };
            spec.zero = false;
            out.push_str(&spec.text(&text));
        }
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
            let value = match kind(value) {
                Kind::Int(_) => value.clone(),
                Kind::Bool(truth) => Value::from(i64::from(truth)),
                Kind::Float(number) if "diu".contains(conversion) && number.abs() < 1e38 => {
                    Value::from(number.trunc() as i128)
                }
                _ => {
                    return Err(error(format!("%{conversion} format: a number is required, not {}", kind_name(value))));
                }
            };
            spec.kind = Some(if "iu".contains(conversion) { 'd' } else { conversion });
            if let Some(digits) = spec.precision.take() {
                spec.width = spec.width.max(digits);
                spec.zero = true;
            }
            out.push_str(&spec.print(&value)?);
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            let number =
                Number::of(value).ok_or_else(|| error(format!("must be real number, not {}", kind_name(value))))?;
            spec.kind = Some(conversion);
            out.push_str(&spec.print(&Value::from(number.float()))?);
        }
        _ => return Err(error(format!("unsupported format character '{conversion}'"))),
    }
    Ok(())
}

/// Python's `template.format(…)`.
pub(super) fn format_method(state: &mut State, template: &str, arguments: &[Value]) -> Result<String, Error> {
    let (positional, named) = split(arguments);
    let mut automatic = 0;
    let mut out = String::new();
    let mut rest = template;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            out.push_str(brace);
            rest = after;
            continue;
        }
        if brace == "}" {
            return Err(error("Single '}' encountered in format string".into()));
        }
        let end = rest.find('}').ok_or_else(|| error("expected '}' before end of string".into()))?;
        let field = &rest[..end];
        rest = &rest[end + 1..];
        if field.contains('{') {
            return Err(error("nested formats are not supported".into()));
        }
        let (field, spec) = field.split_once(':').unwrap_or((field, ""));
        let (path, conversion) = field.split_once('!').unwrap_or((field, ""));
        let (first, mut steps) = path.split_at(path.find(['.', '[']).unwrap_or(path.len()));
        let mut value = match first {
            "" => {
                automatic += 1;
                positional.get(automatic - 1).cloned()
            }
            digits if digits.bytes().all(|digit| digit.is_ascii_digit()) => {
                digits.parse().ok().and_then(|at: usize| positional.get(at).cloned())
            }
            name => named.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()),
        }
        .ok_or_else(|| error(format!("'{first}' of the format is not among its arguments")))?;
        while !steps.is_empty() {
            if let Some(inner) = steps.strip_prefix('[') {
                let (key, after) = inner.split_once(']').ok_or_else(|| error("Missing ']' in format string".into()))?;
                let key = key.parse::<i64>().map_or_else(|_| Value::from(key), Value::from);
                value = get_item(&value, &key)?;
                steps = after;
            } else {
                let inner =
                    steps.strip_prefix('.').ok_or_else(|| error(format!("'{path}' in the format is not a path")))?;
                let (name, after) = inner.split_at(inner.find(['.', '[']).unwrap_or(inner.len()));
                value = attribute(state, &[value, Value::from(name)])?;
                steps = after;
            }
            if value.is_undefined() {
                return Err(error(format!("the format's arguments have no value at '{path}'")));
            }
        }
        let value = match conversion {
            "" => value,
            "r" | "a" => Value::from(Repr(&value).to_string()),
            "s" => Value::from(plain(&value)),
            _ => return Err(error(format!("Unknown conversion specifier '{conversion}'"))),
        };
        let before = out.len();
        out.push_str(&Spec::parse(spec)?.print(&value)?);
        spend(state, out.len() - before)?;
    }
    out.push_str(rest);
    Ok(out)
}

impl Spec {
    /// `[[fill]align][sign][#][0][width][grouping][.precision][type]`
    fn parse(text: &str) -> Result<Self, Error> {
        let mut spec = Self::default();
        let mut rest = text;
        let mut chars = text.chars();
        let (first, second) = (chars.next(), chars.next());
        if second.is_some_and(|c| ALIGNMENTS.contains(c)) {
            (spec.fill, spec.align) = (first, second);
            rest = chars.as_str();
        } else {
            spec.align = take(&mut rest, ALIGNMENTS);
        }
        spec.sign = take(&mut rest, "+- ");
        spec.alternate = take(&mut rest, "#").is_some();
        spec.zero = take(&mut rest, "0").is_some();
        spec.width = number(&mut rest)?.unwrap_or(0);
        spec.grouping = take(&mut rest, ",_");
        if take(&mut rest, ".").is_some() {
            let digits = number(&mut rest)?.ok_or_else(|| error("Format specifier missing precision".into()))?;
            spec.precision = Some(digits);
        }
        let mut chars = rest.chars();
        spec.kind = chars.next();
        if chars.next().is_some() {
            return Err(error(format!("Invalid format specifier '{text}'")));
        }
        if spec.zero && spec.align.is_none() {
            spec.align = Some('=');
        }
        Ok(spec)
    }

    fn print(&self, value: &Value) -> Result<String, Error> {
        match (kind(value), self.kind) {
            (Kind::Text(text), None | Some('s')) => Ok(self.text(text)),
            (Kind::Int(_) | Kind::Bool(_), Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%')) => {
                let number = f64::try_from(value.clone()).unwrap_or_default();
                self.number(&self.float(number)?, number.is_sign_negative())
            }
            (Kind::Bool(truth), None) if self.is_bare() => Ok(if truth { "True" } else { "False" }.to_owned()),
            (Kind::Bool(truth), _) => self.integer(i128::from(truth)),
            (Kind::Int(number), _) => self.integer(number),
            (Kind::Float(number), _) => self.number(&self.float(number.abs())?, number.is_sign_negative()),
            _ if self.is_bare() => Ok(Str(value).to_string()),
            _ => Err(error(format!("unsupported format string passed to {}.__format__", kind_name(value)))),
        }
    }

    fn is_bare(&self) -> bool {
        self.width == 0 && self.precision.is_none() && self.align.is_none() && self.sign.is_none()
    }

    fn text(&self, text: &str) -> String {
        let end = self.precision.and_then(|precision| text.char_indices().nth(precision));
        self.padded("", end.map_or(text, |(end, _)| &text[..end]), '<')
    }

    fn integer(&self, number: i128) -> Result<String, Error> {
        let magnitude = number.unsigned_abs();
        let (prefix, digits) = match self.kind {
            None | Some('d' | 'n') => ("", magnitude.to_string()),
            Some('x') => ("0x", format!("{magnitude:x}")),
            Some('X') => ("0X", format!("{magnitude:X}")),
            Some('o') => ("0o", format!("{magnitude:o}")),
            Some('b') => ("0b", format!("{magnitude:b}")),
            Some('c') => {
                let c = u32::try_from(number).ok().and_then(char::from_u32);
                return c.map(|c| self.text(&c.to_string())).ok_or_else(|| error("%c arg not in range".into()));
            }
            Some(other) => return Err(error(format!("Unknown format code '{other}' for object of type 'int'"))),
        };
        let prefix = if self.alternate { prefix } else { "" };
        self.number(&format!("{prefix}{digits}"), number < 0)
    }

    fn float(&self, magnitude: f64) -> Result<String, Error> {
        let magnitude = magnitude.abs();
        if !magnitude.is_finite() {
            return Ok(Float(magnitude).to_string());
        }
        let precision = self.precision.unwrap_or(6);
        Ok(match self.kind {
            None if self.precision.is_none() => Float(magnitude).to_string(),
            None => {
                let text = general_form(magnitude, precision.max(1));
                if text.contains(['.', 'e']) { text } else { format!("{text}.0") }
            }
            Some('f' | 'F') => format!("{magnitude:.precision$}"),
            Some('%') => format!("{:.precision$}%", magnitude * 100.0),
            Some('e') => exponent_form(magnitude, precision),
            Some('E') => exponent_form(magnitude, precision).to_uppercase(),
            Some('g' | 'n') => general_form(magnitude, precision.max(1)),
            Some('G') => general_form(magnitude, precision.max(1)).to_uppercase(),
            Some(other) => return Err(error(format!("Unknown format code '{other}' for object of type 'float'"))),
        })
    }

    fn number(&self, magnitude: &str, is_negative: bool) -> Result<String, Error> {
        let sign = match (is_negative, self.sign) {
            (true, _) => "-",
            (false, Some('+')) => "+",
            (false, Some(' ')) => " ",
            (false, _) => "",
        };
        let magnitude = self.grouping.map_or_else(|| magnitude.to_owned(), |separator| grouped(magnitude, separator));
        Ok(self.padded(sign, &magnitude, '>'))
    }

    fn padded(&self, sign: &str, text: &str, default: char) -> String {
        if self.width == 0 {
            return format!("{sign}{text}");
        }
        let missing = self.width.saturating_sub(sign.len() + text.chars().count());
        let fill = self.fill.unwrap_or(if self.zero && self.align == Some('=') { '0' } else { ' ' });
        let filling = |count: usize| fill.to_string().repeat(count);
        match self.align.unwrap_or(default) {
            '<' => format!("{sign}{text}{}", filling(missing)),
            '^' => format!("{}{sign}{text}{}", filling(missing / 2), filling(missing - missing / 2)),
            '=' => format!("{sign}{}{text}", filling(missing)),
            _ => format!("{}{sign}{text}", filling(missing)),
        }
    }
}

/// Inserts a separator between groups of three digits before the point.
fn grouped(magnitude: &str, separator: char) -> String {
    let digits = magnitude.find(|c: char| !c.is_ascii_digit()).unwrap_or(magnitude.len());
    let mut text = String::new();
    for (at, digit) in magnitude[..digits].chars().enumerate() {
        if at > 0 && (digits - at) % 3 == 0 {
            text.push(separator);
        }
        text.push(digit);
    }
    text + &magnitude[digits..]
}

/// Skips the first character, and returns it, if it is one of the options.
fn take(rest: &mut &str, options: &str) -> Option<char> {
    let taken = rest.chars().next().filter(|c| options.contains(*c))?;
    *rest = &rest[taken.len_utf8()..];
    Some(taken)
}

/// Parses and skips a number at the start.
fn number(rest: &mut &str) -> Result<Option<usize>, Error> {
    let length = rest.bytes().take_while(u8::is_ascii_digit).count();
    if length == 0 {
        return Ok(None);
    }
    let value = rest[..length].parse().ok().filter(|value| *value <= WIDTH_MAX);
    *rest = &rest[length..];
    value.map(Some).ok_or_else(|| error(format!("a width or precision in a format is at most {WIDTH_MAX}")))
}

fn whole(value: &Value) -> Result<usize, Error> {
    value.as_usize().filter(|width| *width <= WIDTH_MAX).ok_or_else(|| error("* wants int".into()))
}
