//! Expressions: Jinja2's grammar, written as calls where minijinja would mean something else.

use std::fmt::Write;

use super::SyntaxError;
use super::lexer::{Token, TokenKind};
use crate::chat::python::attributes::is_method_name;

/// How deeply expressions may be nested. minijinja's own parser ends at about 70.
const EXPRESSION_DEPTH_MAX: usize = 60;

/// A translated expression.
pub(super) struct Expression {
    text: String,
    shape: Shape,
}

/// What may follow an expression's text as it is.
#[derive(Clone, Copy, PartialEq)]
enum Shape {
    /// Anything: a name, a literal, a call, a lookup.
    Atom,
    /// A further filter or test.
    Filtered,
    /// Nothing: it needs parentheses.
    Loose,
}

impl Expression {
    fn atom(text: String) -> Self {
        Self { text, shape: Shape::Atom }
    }

    fn loose(text: String) -> Self {
        Self { text, shape: Shape::Loose }
    }

    /// The text where a single operand is expected.
    pub(super) fn into_operand(self) -> String {
        if self.shape == Shape::Atom { self.text } else { format!("({})", self.text) }
    }

    /// The text where a whole expression is expected.
    pub(super) fn into_text(self) -> String {
        self.text
    }

    fn into_filtered(self) -> String {
        if self.shape == Shape::Loose { format!("({})", self.text) } else { self.text }
    }
}

/// Whether `a if b else c` may stand without parentheses.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Conditional {
    /// It may.
    Allowed,
    /// An `if` that comes next belongs to somebody else.
    Excluded,
}

/// Tokens that are being read.
pub(super) struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
}

impl Parser {
    pub(super) fn new(tokens: Vec<Token>) -> Self {
        Self { tokens, at: 0, depth: 0 }
    }

    pub(super) fn peek(&self) -> Option<&TokenKind> {
        self.tokens.get(self.at).map(|token| &token.kind)
    }

    fn peek_second(&self) -> Option<&TokenKind> {
        self.tokens.get(self.at + 1).map(|token| &token.kind)
    }

    pub(super) fn next(&mut self) -> Option<TokenKind> {
        let token = self.tokens.get_mut(self.at)?;
        self.at += 1;
        // Nothing looks back.
        Some(std::mem::replace(&mut token.kind, TokenKind::BlockEnd))
    }

    pub(super) fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |token| token.line)
    }

    pub(super) fn error(&self, message: impl Into<String>) -> SyntaxError {
        SyntaxError { line: self.line(), message: message.into() }
    }

    fn unexpected(&self, expected: &str) -> SyntaxError {
        let found = match self.peek() {
            None => "the end of the template".to_owned(),
            Some(TokenKind::Name(name)) => format!("`{name}`"),
            Some(TokenKind::Operator(operator)) => format!("`{operator}`"),
            Some(TokenKind::Text(text)) => format!("the string {text:?}"),
            Some(TokenKind::Integer(number)) => format!("`{number}`"),
            Some(TokenKind::Float(number)) => format!("`{number}`"),
            Some(TokenKind::BlockEnd) => "`%}`".to_owned(),
            Some(TokenKind::VariableEnd) => "`}}`".to_owned(),
            Some(_) => "template text".to_owned(),
        };
        self.error(format!("expected {expected}, found {found}"))
    }

    pub(super) fn is_operator(&self, operator: &str) -> bool {
        matches!(self.peek(), Some(TokenKind::Operator(found)) if *found == operator)
    }

    pub(super) fn skip_operator(&mut self, operator: &str) -> bool {
        let found = self.is_operator(operator);
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect_operator(&mut self, operator: &str) -> Result<(), SyntaxError> {
        if self.skip_operator(operator) { Ok(()) } else { Err(self.unexpected(&format!("`{operator}`"))) }
    }

    pub(super) fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Some(TokenKind::Name(found)) if found == name)
    }

    pub(super) fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect_name(&mut self, name: &str) -> Result<(), SyntaxError> {
        if self.skip_name(name) { Ok(()) } else { Err(self.unexpected(&format!("`{name}`"))) }
    }

    pub(super) fn identifier(&mut self) -> Result<String, SyntaxError> {
        match self.peek() {
            Some(TokenKind::Name(name)) => {
                let name = name.clone();
                self.at += 1;
                Ok(name)
            }
            _ => Err(self.unexpected("a name")),
        }
    }

    pub(super) fn expect_end(&mut self, end: TokenKind) -> Result<(), SyntaxError> {
        if self.peek() == Some(&end) {
            self.at += 1;
            return Ok(());
        }
        Err(self.unexpected(if end == TokenKind::BlockEnd { "`%}`" } else { "`}}`" }))
    }

    /// One expression, or several with commas between them, which are a tuple.
    pub(super) fn tuple(&mut self, conditional: Conditional) -> Result<Expression, SyntaxError> {
        let first = self.expression(conditional)?;
        if !self.is_operator(",") {
            return Ok(first);
        }
        let mut items = vec![first.into_text()];
        while self.skip_operator(",") {
            if matches!(self.peek(), Some(TokenKind::VariableEnd | TokenKind::BlockEnd | TokenKind::Operator(")"))) {
                break;
            }
            items.push(self.expression(conditional)?.into_text());
        }
        Ok(Expression::atom(format!("__tuple({})", items.join(", "))))
    }

    fn enter(&mut self) -> Result<(), SyntaxError> {
        self.depth += 1;
        if self.depth > EXPRESSION_DEPTH_MAX {
            return Err(self.error(format!("expressions are nested more than {EXPRESSION_DEPTH_MAX} deep")));
        }
        Ok(())
    }

    pub(super) fn expression(&mut self, conditional: Conditional) -> Result<Expression, SyntaxError> {
        self.enter()?;
        let mut value = self.or()?;
        while conditional == Conditional::Allowed && self.skip_name("if") {
            let condition = self.or()?.into_operand();
            let value_text = value.into_operand();
            value = Expression::loose(if self.skip_name("else") {
                let otherwise = self.expression(Conditional::Allowed)?.into_operand();
                format!("{value_text} if {condition} else {otherwise}")
            } else {
                format!("{value_text} if {condition}")
            });
        }
        self.depth -= 1;
        Ok(value)
    }

    fn or(&mut self) -> Result<Expression, SyntaxError> {
        self.joined("or", Self::and)
    }

    fn and(&mut self) -> Result<Expression, SyntaxError> {
        self.joined("and", Self::not)
    }

    fn joined(
        &mut self,
        word: &str,
        operand: fn(&mut Self) -> Result<Expression, SyntaxError>,
    ) -> Result<Expression, SyntaxError> {
        let first = operand(self)?;
        if !self.is_name(word) {
            return Ok(first);
        }
        let mut operands = vec![first.into_operand()];
        while self.skip_name(word) {
            operands.push(operand(self)?.into_operand());
        }
        Ok(Expression::loose(operands.join(&format!(" {word} "))))
    }

    fn not(&mut self) -> Result<Expression, SyntaxError> {
        if !self.skip_name("not") {
            return self.comparison();
        }
        self.enter()?;
        let value = Expression::loose(format!("not {}", self.not()?.into_operand()));
        self.depth -= 1;
        Ok(value)
    }

    fn comparison(&mut self) -> Result<Expression, SyntaxError> {
        let mut left = self.sum()?;
        let Some(mut function) = self.comparison_function() else {
            return Ok(left);
        };
        let mut parts = Vec::new();
        let mut left_text = left.into_text();
        loop {
            let right = self.sum()?.into_text();
            parts.push(format!("{function}({left_text}, {right})"));
            match self.comparison_function() {
                Some(next) => (function, left_text) = (next, right),
                None => break,
            }
        }
        left = if parts.len() == 1 { Expression::atom(parts.remove(0)) } else { Expression::loose(parts.join(" and ")) };
        Ok(left)
    }

    fn comparison_function(&mut self) -> Option<&'static str> {
        let (function, tokens) = match self.peek()? {
            TokenKind::Operator("==") => ("__eq", 1),
            TokenKind::Operator("!=") => ("__ne", 1),
            TokenKind::Operator("<") => ("__lt", 1),
            TokenKind::Operator("<=") => ("__le", 1),
            TokenKind::Operator(">") => ("__gt", 1),
            TokenKind::Operator(">=") => ("__ge", 1),
            TokenKind::Name(name) if name == "in" => ("__in", 1),
            TokenKind::Name(name)
                if name == "not" && matches!(self.peek_second(), Some(TokenKind::Name(next)) if next == "in") =>
            {
                ("__not_in", 2)
            }
            _ => return None,
        };
        self.at += tokens;
        Some(function)
    }

    fn sum(&mut self) -> Result<Expression, SyntaxError> {
        self.calculation(&["+", "-"], Self::concatenation)
    }

    fn product(&mut self) -> Result<Expression, SyntaxError> {
        self.calculation(&["*", "/", "//", "%"], Self::power)
    }

    fn power(&mut self) -> Result<Expression, SyntaxError> {
        self.calculation(&["**"], |parser| parser.unary(Filters::Allowed))
    }

    /// Operations of one rank, from the left.
    fn calculation(
        &mut self,
        operators: &[&str],
        operand: fn(&mut Self) -> Result<Expression, SyntaxError>,
    ) -> Result<Expression, SyntaxError> {
        let first = operand(self)?;
        let mut call = String::new();
        let mut first = Some(first);
        while let Some(TokenKind::Operator(operator)) = self.peek()
            && operators.contains(operator)
        {
            let operator = *operator;
            self.at += 1;
            if let Some(first) = first.take() {
                call = format!("__math({}", first.into_text());
            }
            let right = operand(self)?.into_text();
            // Writing to a string cannot fail.
            let _ = write!(call, ", \"{operator}\", {right}");
        }
        Ok(match first {
            Some(first) => first,
            None => Expression::atom(call + ")"),
        })
    }

    fn concatenation(&mut self) -> Result<Expression, SyntaxError> {
        let first = self.product()?;
        if !self.is_operator("~") {
            return Ok(first);
        }
        let mut items = vec![first.into_text()];
        while self.skip_operator("~") {
            items.push(self.product()?.into_text());
        }
        Ok(Expression::atom(format!("__concat({})", items.join(", "))))
    }

    fn unary(&mut self, filters: Filters) -> Result<Expression, SyntaxError> {
        let value = if self.skip_operator("-") {
            let operand = self.nested_unary()?.into_text();
            Expression::atom(format!("__negative({operand})"))
        } else if self.skip_operator("+") {
            let operand = self.nested_unary()?.into_text();
            Expression::atom(format!("__positive({operand})"))
        } else {
            self.primary()?
        };
        let value = self.postfix(value)?;
        if filters == Filters::Allowed { self.filters(value) } else { Ok(value) }
    }

    fn nested_unary(&mut self) -> Result<Expression, SyntaxError> {
        self.enter()?;
        let value = self.unary(Filters::Excluded)?;
        self.depth -= 1;
        Ok(value)
    }

    fn primary(&mut self) -> Result<Expression, SyntaxError> {
        match self.peek() {
            Some(TokenKind::Name(name)) => {
                let text = match name.as_str() {
                    "true" | "True" => "true",
                    "false" | "False" => "false",
                    "none" | "None" => "none",
                    name => name,
                };
                let value = Expression::atom(text.to_owned());
                self.at += 1;
                Ok(value)
            }
            Some(TokenKind::Text(_)) => {
                let mut whole = String::new();
                while let Some(TokenKind::Text(text)) = self.peek() {
                    whole.push_str(text);
                    self.at += 1;
                }
                Ok(Expression::atom(quoted(&whole)))
            }
            Some(TokenKind::Integer(number)) => {
                let text = number.to_string();
                self.at += 1;
                Ok(Expression::atom(text))
            }
            Some(TokenKind::Float(number)) => {
                let text = if number.is_finite() { format!("{number:?}") } else { "__infinity()".to_owned() };
                self.at += 1;
                Ok(Expression::atom(text))
            }
            Some(TokenKind::Operator("(")) => {
                self.at += 1;
                if self.skip_operator(")") {
                    return Ok(Expression::atom("__tuple()".into()));
                }
                let value = self.tuple(Conditional::Allowed)?;
                self.expect_operator(")")?;
                Ok(Expression::atom(value.into_operand()))
            }
            Some(TokenKind::Operator("[")) => {
                self.at += 1;
                let items = self.items("]", |parser| Ok(parser.expression(Conditional::Allowed)?.into_text()))?;
                Ok(Expression::atom(format!("__list({items})")))
            }
            Some(TokenKind::Operator("{")) => {
                self.at += 1;
                let items = self.items("}", |parser| {
                    let key = parser.expression(Conditional::Allowed)?.into_text();
                    parser.expect_operator(":")?;
                    Ok(format!("{key}, {}", parser.expression(Conditional::Allowed)?.into_text()))
                })?;
                Ok(Expression::atom(format!("__dict({items})")))
            }
            _ => Err(self.unexpected("an expression")),
        }
    }

    /// What stands between brackets, with commas between the items.
    fn items(
        &mut self,
        close: &str,
        mut item: impl FnMut(&mut Self) -> Result<String, SyntaxError>,
    ) -> Result<String, SyntaxError> {
        let mut items = Vec::new();
        while !self.skip_operator(close) {
            if !items.is_empty() {
                self.expect_operator(",")?;
                if self.skip_operator(close) {
                    break;
                }
            }
            items.push(item(self)?);
        }
        Ok(items.join(", "))
    }

    fn postfix(&mut self, mut value: Expression) -> Result<Expression, SyntaxError> {
        loop {
            value = if self.skip_operator(".") {
                self.attribute(value)?
            } else if self.skip_operator("[") {
                self.subscript(value)?
            } else if self.is_operator("(") {
                self.call(value)?
            } else {
                return Ok(value);
            };
        }
    }

    fn attribute(&mut self, value: Expression) -> Result<Expression, SyntaxError> {
        let value = value.into_operand();
        if let Some(TokenKind::Integer(index)) = self.peek() {
            let text = format!("__item({value}, {index})");
            self.at += 1;
            return Ok(Expression::atom(text));
        }
        let name = self.identifier()?;
        if self.is_operator("(") {
            let arguments = self.arguments()?;
            return Ok(Expression::atom(match name.as_str() {
                "cycle" if arguments.is_empty() => format!("__cycle({value})"),
                "cycle" => format!("__cycle({value}, {arguments})"),
                _ if value.starts_with(|c: char| c.is_ascii_digit()) => format!("({value}).{name}({arguments})"),
                _ => format!("{value}.{name}({arguments})"),
            }));
        }
        Ok(Expression::atom(if is_method_name(&name) || value.starts_with(|c: char| c.is_ascii_digit()) {
            format!("__attribute({value}, \"{name}\")")
        } else {
            format!("{value}.{name}")
        }))
    }

    fn subscript(&mut self, value: Expression) -> Result<Expression, SyntaxError> {
        let value = value.into_operand();
        if let (Some(TokenKind::Text(key)), Some(TokenKind::Operator("]"))) = (self.peek(), self.peek_second())
            && !is_method_name(key)
        {
            let text = format!("{value}[{}]", quoted(key));
            self.at += 2;
            return Ok(Expression::atom(text));
        }
        let mut keys = Vec::new();
        while !self.skip_operator("]") {
            if !keys.is_empty() {
                self.expect_operator(",")?;
            }
            let key = self.subscript_key()?;
            keys.push(key);
        }
        let text = match &keys[..] {
            [] => return Err(self.error("a subscript is empty")),
            [Subscript::Key(key)] => format!("__item({value}, {key})"),
            [Subscript::Slice(bounds)] => format!("__slice({value}, {})", bounds.join(", ")),
            _ => return Err(self.error("several subscripts in one pair of brackets are not supported")),
        };
        Ok(Expression::atom(text))
    }

    fn subscript_key(&mut self) -> Result<Subscript, SyntaxError> {
        let mut bounds = [const { String::new() }; 3];
        let mut colons = 0;
        loop {
            if self.is_operator("]") || self.is_operator(",") {
                break;
            } else if self.is_operator(":") && colons < 2 {
                self.at += 1;
                colons += 1;
            } else if bounds[colons].is_empty() {
                bounds[colons] = self.expression(Conditional::Allowed)?.into_text();
            } else {
                return Err(self.unexpected("`]`"));
            }
        }
        if colons == 0 {
            let [key, ..] = bounds;
            return if key.is_empty() { Err(self.error("a subscript is empty")) } else { Ok(Subscript::Key(key)) };
        }
        Ok(Subscript::Slice(bounds.map(|bound| if bound.is_empty() { "none".to_owned() } else { bound })))
    }

    fn call(&mut self, value: Expression) -> Result<Expression, SyntaxError> {
        let callee = value.into_operand();
        let arguments = self.arguments()?;
        Ok(Expression::atom(match callee.as_str() {
            "loop" => format!("loop(__iterable({arguments}))"),
            // minijinja reserves the name for blocks that templates of one file cannot have.
            "super" => return Err(self.error("`super` needs a template that is extended, which is not possible here")),
            _ => format!("{callee}({arguments})"),
        }))
    }

    /// A call's arguments with the parentheses around them.
    pub(super) fn arguments(&mut self) -> Result<String, SyntaxError> {
        self.expect_operator("(")?;
        self.items(")", |parser| {
            if parser.skip_operator("*") {
                return Ok(format!("*{}", parser.expression(Conditional::Allowed)?.into_operand()));
            }
            if parser.skip_operator("**") {
                return Ok(format!("**{}", parser.expression(Conditional::Allowed)?.into_operand()));
            }
            let keyword = matches!(parser.peek(), Some(TokenKind::Name(_)))
                && matches!(parser.peek_second(), Some(TokenKind::Operator("=")));
            if !keyword {
                return Ok(parser.expression(Conditional::Allowed)?.into_text());
            }
            let name = parser.identifier()?;
            parser.expect_operator("=")?;
            Ok(format!("{name}={}", parser.expression(Conditional::Allowed)?.into_text()))
        })
    }

    fn filters(&mut self, mut value: Expression) -> Result<Expression, SyntaxError> {
        loop {
            value = if self.skip_operator("|") {
                let filter = self.filter()?;
                Expression { text: format!("{}|{filter}", value.into_filtered()), shape: Shape::Filtered }
            } else if self.skip_name("is") {
                self.test(value)?
            } else if self.is_operator("(") {
                self.call(value)?
            } else {
                return Ok(value);
            };
        }
    }

    /// A filter's name and arguments.
    pub(super) fn filter(&mut self) -> Result<String, SyntaxError> {
        let name = self.dotted_name()?;
        let arguments = if self.is_operator("(") { self.arguments()? } else { String::new() };
        Ok(format!("{name}({arguments})"))
    }

    fn dotted_name(&mut self) -> Result<String, SyntaxError> {
        let mut name = self.identifier()?;
        while self.skip_operator(".") {
            name = format!("{name}.{}", self.identifier()?);
        }
        Ok(name)
    }

    fn test(&mut self, value: Expression) -> Result<Expression, SyntaxError> {
        let negation = if self.skip_name("not") { "not " } else { "" };
        let name = self.dotted_name()?;
        let argument_follows = match self.peek() {
            Some(TokenKind::Name(name)) => !matches!(name.as_str(), "else" | "or" | "and"),
            Some(TokenKind::Text(_) | TokenKind::Integer(_) | TokenKind::Float(_)) => true,
            Some(TokenKind::Operator(operator)) => matches!(*operator, "(" | "[" | "{"),
            _ => false,
        };
        let arguments = if self.is_operator("(") {
            self.arguments()?
        } else if argument_follows {
            if self.is_name("is") {
                return Err(self.error("several tests cannot follow each other: write `and` between them"));
            }
            let argument = self.primary()?;
            self.postfix(argument)?.into_text()
        } else {
            String::new()
        };
        let text = format!("{} is {negation}{name}({arguments})", value.into_filtered());
        Ok(Expression { text, shape: Shape::Filtered })
    }
}

/// Whether a filter may follow.
#[derive(Clone, Copy, PartialEq)]
enum Filters {
    Allowed,
    Excluded,
}

enum Subscript {
    Key(String),
    Slice([String; 3]),
}

/// A string as a literal.
pub(super) fn quoted(text: &str) -> String {
    let mut literal = String::with_capacity(text.len() + 2);
    literal.push('"');
    for c in text.chars() {
        match c {
            '"' => literal.push_str("\\\""),
            '\\' => literal.push_str("\\\\"),
            // A literal of one line keeps the count of lines right.
            '\n' => literal.push_str("\\n"),
            c => literal.push(c),
        }
    }
    literal.push('"');
    literal
}
