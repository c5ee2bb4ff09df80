//! Lexer: splits a template into tokens and applies Jinja2's whitespace rules.
//!
//! The rules are those of `Environment(trim_blocks=True, lstrip_blocks=True)`: a newline after a block or a comment is removed,
//! whitespace before one is removed if nothing else precedes it on its line, `-` strips, `+` keeps, and one newline at the
//! very end of the template is removed.

use super::SyntaxError;
use super::is_space;

/// One token and the line that it starts on, counted from 1.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Token {
    pub(super) kind: TokenKind,
    pub(super) line: usize,
}

/// The kinds of tokens.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum TokenKind {
    /// Text outside tags, printed unchanged.
    Data(String),
    /// `{{`
    VariableBegin,
    /// `}}`
    VariableEnd,
    /// `{%`
    BlockBegin,
    /// `%}`
    BlockEnd,
    /// An identifier or keyword.
    Name(String),
    /// A string literal, unescaped.
    Text(String),
    /// An integer literal.
    Integer(i128),
    /// A float literal.
    Float(f64),
    /// An operator or a bracket.
    Operator(&'static str),
}

/// Operators. An operator precedes its own prefixes, so the longest one matches.
const OPERATORS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".",
    ":", "|", ",", ";",
];

/// Splits a template into tokens.
pub(super) fn tokens(source: &str) -> Result<Vec<Token>, SyntaxError> {
    let mut source = source.replace("\r\n", "\n").replace('\r', "\n");
    if source.ends_with('\n') {
        source.pop();
    }
    let mut lexer = Lexer { source: &source, at: 0, line: 1, at_line_start: true, tokens: Vec::new() };
    lexer.template()?;
    Ok(lexer.tokens)
}

struct Lexer<'s> {
    source: &'s str,
    at: usize,
    line: usize,
    /// Whether `at` is at the start of a line: at the start of the template, or after a tag that consumed its newline.
    at_line_start: bool,
    tokens: Vec<Token>,
}

/// The kinds of tags.
#[derive(Clone, Copy, PartialEq)]
enum Tag {
    Variable,
    Block,
    Comment,
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    fn advance(&mut self, bytes: usize) {
        self.line += self.source[self.at..self.at + bytes].matches('\n').count();
        self.at += bytes;
    }

    fn push(&mut self, kind: TokenKind) {
        self.tokens.push(Token { kind, line: self.line });
    }

    fn data(&mut self, text: &str) {
        if !text.is_empty() {
            self.push(TokenKind::Data(text.to_owned()));
        }
    }

    fn error(&self, message: impl Into<String>) -> SyntaxError {
        SyntaxError { line: self.line, message: message.into() }
    }

    fn template(&mut self) -> Result<(), SyntaxError> {
        while let Some((offset, tag)) = next_tag(self.rest()) {
            let text = &self.rest()[..offset];
            let after = &self.rest()[offset + 2..];
            let sign = after.chars().next().filter(|sign| matches!(sign, '-' | '+'));
            let text = self.strip_before(text, tag, sign);
            self.data(text);
            self.advance(offset);
            if tag == Tag::Block
                && let Some(length) = raw_begin(self.rest())
            {
                self.advance(length);
                self.raw()?;
                continue;
            }
            match tag {
                Tag::Comment => {}
                Tag::Block => self.push(TokenKind::BlockBegin),
                Tag::Variable => self.push(TokenKind::VariableBegin),
            }
            self.advance(2 + usize::from(sign.is_some()));
            if tag == Tag::Comment { self.comment()? } else { self.tag(tag)? }
        }
        self.data(self.rest());
        Ok(())
    }

    /// Returns the text before a tag without the whitespace that the tag strips.
    fn strip_before<'t>(&self, text: &'t str, tag: Tag, sign: Option<char>) -> &'t str {
        match sign {
            Some('-') => text.trim_end_matches(is_space),
            Some(_) => text,
            None if tag == Tag::Variable => text,
            None => {
                let line_start = text.rfind('\n').map_or(0, |newline| newline + 1);
                let own_line = line_start > 0 || self.at_line_start;
                if own_line && text[line_start..].chars().all(is_space) { &text[..line_start] } else { text }
            }
        }
    }

    fn comment(&mut self) -> Result<(), SyntaxError> {
        let rest = self.rest();
        let end = rest.find("#}").ok_or_else(|| self.error("a comment is not closed: `#}` is missing"))?;
        let sign = rest[..end].chars().next_back().filter(|sign| matches!(sign, '-' | '+'));
        self.advance(end + 2);
        self.after_end(sign);
        Ok(())
    }

    /// Skips the whitespace that the end of a block or a comment strips.
    fn after_end(&mut self, sign: Option<char>) {
        let taken = match sign {
            Some('-') => self.rest().len() - self.rest().trim_start_matches(is_space).len(),
            Some(_) => 0,
            None => usize::from(self.rest().starts_with('\n')),
        };
        self.at_line_start = self.rest()[..taken].ends_with('\n');
        self.advance(taken);
    }

    fn raw(&mut self) -> Result<(), SyntaxError> {
        let rest = self.rest();
        for (begin, _) in rest.match_indices("{%") {
            let Some((begin_sign, length, end_sign)) = raw_end(&rest[begin..]) else { continue };
            self.at_line_start = self.source[..self.at].ends_with('\n');
            let text = self.strip_before(&rest[..begin], Tag::Block, begin_sign);
            self.data(text);
            self.advance(begin + length);
            self.after_end(end_sign);
            return Ok(());
        }
        Err(self.error("a raw block is not closed: `{% endraw %}` is missing"))
    }

    /// Reads the tokens of a tag up to its end.
    fn tag(&mut self, tag: Tag) -> Result<(), SyntaxError> {
        let mut open = Vec::new();
        loop {
            let rest = self.rest();
            if open.is_empty() && self.tag_end(tag) {
                return Ok(());
            }
            let Some(first) = rest.chars().next() else {
                return Err(self.error("the template ends inside a tag"));
            };
            if is_space(first) {
                self.advance(rest.len() - rest.trim_start_matches(is_space).len());
            } else if first.is_ascii_digit() {
                self.number()?;
            } else if first == '_' || first.is_alphanumeric() {
                let length = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
                self.push(TokenKind::Name(rest[..length].to_owned()));
                self.advance(length);
            } else if matches!(first, '"' | '\'') {
                self.text(first)?;
            } else {
                self.operator(&mut open)?;
            }
        }
    }

    fn tag_end(&mut self, tag: Tag) -> bool {
        let rest = self.rest();
        let sign = rest.chars().next().filter(|sign| *sign == '-' || *sign == '+' && tag == Tag::Block);
        let end = if tag == Tag::Block { "%}" } else { "}}" };
        if !rest[usize::from(sign.is_some())..].starts_with(end) {
            return false;
        }
        self.push(if tag == Tag::Block { TokenKind::BlockEnd } else { TokenKind::VariableEnd });
        self.advance(usize::from(sign.is_some()) + 2);
        match tag {
            Tag::Variable if sign.is_none() => self.at_line_start = false,
            _ => self.after_end(sign),
        }
        true
    }

    fn operator(&mut self, open: &mut Vec<char>) -> Result<(), SyntaxError> {
        let rest = self.rest();
        let Some(operator) = OPERATORS.iter().find(|operator| rest.starts_with(**operator)) else {
            let unexpected = rest.chars().next().unwrap_or(' ');
            return Err(self.error(format!("unexpected character {unexpected:?}")));
        };
        match *operator {
            "(" => open.push(')'),
            "[" => open.push(']'),
            "{" => open.push('}'),
            ")" | "]" | "}" if open.pop() != operator.chars().next() => {
                return Err(self.error(format!("unexpected `{operator}`: no bracket that it closes is open")));
            }
            _ => {}
        }
        self.push(TokenKind::Operator(operator));
        self.advance(operator.len());
        Ok(())
    }

    fn number(&mut self) -> Result<(), SyntaxError> {
        let rest = self.rest();
        let after_dot = self.source[..self.at].ends_with('.');
        if !after_dot && let Some(length) = float_length(rest) {
            let value = rest[..length].replace('_', "").parse();
            self.push(TokenKind::Float(value.map_err(|_| self.error("not a number"))?));
            self.advance(length);
            return Ok(());
        }
        let (length, radix) = integer_length(rest);
        let digits = rest[..length].replace('_', "");
        let digits = if radix == 10 { &digits[..] } else { &digits[2..] };
        let value = i128::from_str_radix(digits, radix);
        let value = value.map_err(|_| self.error("the integer is too large: at most 127 bits are possible"))?;
        self.push(TokenKind::Integer(value));
        self.advance(length);
        Ok(())
    }

    fn text(&mut self, quote: char) -> Result<(), SyntaxError> {
        let rest = self.rest();
        let mut escaped = false;
        let end = rest.char_indices().skip(1).find(|(_, c)| {
            let closes = *c == quote && !escaped;
            escaped = *c == '\\' && !escaped;
            closes
        });
        let Some((end, _)) = end else {
            return Err(self.error("a string is not closed"));
        };
        let value = unescape(&rest[1..end]).map_err(|message| self.error(message))?;
        self.push(TokenKind::Text(value));
        self.advance(end + 1);
        Ok(())
    }
}

fn next_tag(text: &str) -> Option<(usize, Tag)> {
    let bytes = text.as_bytes();
    bytes.windows(2).enumerate().find_map(|(offset, pair)| match pair {
        b"{{" => Some((offset, Tag::Variable)),
        b"{%" => Some((offset, Tag::Block)),
        b"{#" => Some((offset, Tag::Comment)),
        _ => None,
    })
}

fn skip_space(text: &str) -> &str {
    text.trim_start_matches(is_space)
}

/// The length of a `{% raw %}` at the start of the text.
fn raw_begin(text: &str) -> Option<usize> {
    let inner = text.strip_prefix("{%")?;
    let inner = skip_space(inner.strip_prefix(['-', '+']).unwrap_or(inner)).strip_prefix("raw")?;
    let inner = skip_space(inner);
    let rest = match inner.strip_prefix("-%}") {
        Some(rest) => skip_space(rest),
        None => inner.strip_prefix("%}")?,
    };
    Some(text.len() - rest.len())
}

/// The whitespace signs and the length of an `{% endraw %}` at the start of the text.
fn raw_end(text: &str) -> Option<(Option<char>, usize, Option<char>)> {
    let inner = text.strip_prefix("{%")?;
    let begin_sign = inner.chars().next().filter(|sign| matches!(sign, '-' | '+'));
    let inner = skip_space(&inner[usize::from(begin_sign.is_some())..]).strip_prefix("endraw")?;
    let inner = skip_space(inner);
    let end_sign = inner.chars().next().filter(|sign| matches!(sign, '-' | '+'));
    let rest = inner[usize::from(end_sign.is_some())..].strip_prefix("%}")?;
    Some((begin_sign, text.len() - rest.len(), end_sign))
}

/// The length in bytes of the digits, with single underscores between them, at the start of the text.
fn digits_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut length = 0;
    while let Some(next) = bytes.get(length) {
        let joins = *next == b'_' && length > 0 && bytes.get(length + 1).is_some_and(u8::is_ascii_digit);
        let is_part = next.is_ascii_digit() || (joins && bytes[length - 1] != b'_');
        if !is_part {
            break;
        }
        length += 1;
    }
    length
}

fn float_length(text: &str) -> Option<usize> {
    let mut length = digits_length(text);
    let mut is_float = false;
    if let Some(fraction) = text[length..].strip_prefix('.') {
        let digits = digits_length(fraction);
        if digits > 0 {
            length += 1 + digits;
            is_float = true;
        }
    }
    if let Some(exponent) = text[length..].strip_prefix(['e', 'E']) {
        let sign = usize::from(exponent.starts_with(['+', '-']));
        let digits = digits_length(&exponent[sign..]);
        if digits > 0 {
            length += 1 + sign + digits;
            is_float = true;
        }
    }
    is_float.then_some(length)
}

fn integer_length(text: &str) -> (usize, u32) {
    let radix = match text.get(..2).map(str::to_ascii_lowercase).as_deref() {
        Some("0b") => 2,
        Some("0o") => 8,
        Some("0x") => 16,
        _ => 10,
    };
    if radix != 10 {
        let digits = text[2..].find(|c: char| c != '_' && !c.is_digit(radix)).unwrap_or(text.len() - 2);
        if digits > 0 {
            return (2 + digits, radix);
        }
    }
    if text.starts_with('0') {
        return (text.find(|c| c != '0' && c != '_').unwrap_or(text.len()), 10);
    }
    (digits_length(text), 10)
}

/// Replaces Python's escapes in the content of a string literal.
fn unescape(text: &str) -> Result<String, String> {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        plain.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(escape) = rest.chars().next() else {
            return Err("a string ends with a lone backslash".into());
        };
        let mut length = escape.len_utf8();
        match escape {
            '\n' => {}
            '\\' | '\'' | '"' => plain.push(escape),
            'a' => plain.push('\x07'),
            'b' => plain.push('\x08'),
            'f' => plain.push('\x0c'),
            'n' => plain.push('\n'),
            'r' => plain.push('\r'),
            't' => plain.push('\t'),
            'v' => plain.push('\x0b'),
            '0'..='7' => {
                length = rest.bytes().take(3).take_while(|digit| (b'0'..=b'7').contains(digit)).count();
                plain.push(code_point(&rest[..length], 8)?);
            }
            'x' | 'u' | 'U' => {
                let digits = match escape {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                length += digits;
                let hex = rest.get(1..length).ok_or_else(|| format!("the escape \\{escape} is cut off"))?;
                plain.push(code_point(hex, 16)?);
            }
            'N' => return Err("escapes by a character's name (\\N{…}) are not supported: write \\u or \\U".into()),
            _ => {
                plain.push('\\');
                plain.push(escape);
            }
        }
        rest = &rest[length..];
    }
    plain.push_str(rest);
    Ok(plain)
}

fn code_point(digits: &str, radix: u32) -> Result<char, String> {
    let code = u32::from_str_radix(digits, radix).map_err(|_| format!("the escape of {digits:?} is not a number"))?;
    char::from_u32(code).ok_or_else(|| format!("the escape of {digits:?} is not a Unicode scalar value"))
}
