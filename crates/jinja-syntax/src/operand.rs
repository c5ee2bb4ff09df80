//! Parser of operands: names and literals, with the lookups, calls, filters and tests that follow them.

use super::SyntaxError;
use super::expression::{Conditional, Expression, Shape, quoted};
use super::lexer::TokenKind;
use super::method_names::is_method_name;
use super::outline::{Call, Read};
use super::parser::Parser;

impl Parser {
    pub(super) fn unary(&mut self, filters: Filters) -> Result<Expression, SyntaxError> {
        let value = if self.skip_operator("-") {
            Expression::atom(format!("__negative({})", self.nested_unary()?.text))
        } else if self.skip_operator("+") {
            Expression::atom(format!("__positive({})", self.nested_unary()?.text))
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
        let value = match self.peek() {
            Some(TokenKind::Name(name)) => match name.as_str() {
                "true" | "True" => Expression::atom("true".to_owned()),
                "false" | "False" => Expression::atom("false".to_owned()),
                "none" | "None" => Expression::atom("none".to_owned()),
                name => Expression::atom(name.to_owned()).reading(Some(Read::Variable(name.to_owned()))),
            },
            Some(TokenKind::Integer(number)) => Expression::atom(number.to_string()),
            Some(TokenKind::Float(number)) if number.is_finite() => Expression::atom(format!("{number:?}")),
            Some(TokenKind::Float(_)) => Expression::atom("__infinity()".to_owned()),
            _ => return self.compound(),
        };
        self.at += 1;
        Ok(value)
    }

    /// Parses adjacent strings, or an expression in brackets.
    fn compound(&mut self) -> Result<Expression, SyntaxError> {
        match self.peek() {
            Some(TokenKind::Text(_)) => {
                let mut whole = String::new();
                while let Some(TokenKind::Text(text)) = self.peek() {
                    whole.push_str(text);
                    self.at += 1;
                }
                Ok(Expression::atom(quoted(&whole)))
            }
            Some(TokenKind::Operator("(")) => {
                self.at += 1;
                if self.skip_operator(")") {
                    return Ok(Expression::atom("__tuple()".into()));
                }
                let value = self.tuple(Conditional::Allowed)?;
                self.expect_operator(")")?;
                let read = value.read.clone();
                Ok(Expression::atom(value.into_operand()).reading(read))
            }
            Some(TokenKind::Operator("[")) => {
                self.at += 1;
                let items = self.items("]", |parser| Ok(parser.expression(Conditional::Allowed)?.text))?;
                Ok(Expression::atom(format!("__list({items})")))
            }
            Some(TokenKind::Operator("{")) => {
                self.at += 1;
                let items = self.items("}", |parser| {
                    let key = parser.expression(Conditional::Allowed)?.text;
                    parser.expect_operator(":")?;
                    Ok(format!("{key}, {}", parser.expression(Conditional::Allowed)?.text))
                })?;
                Ok(Expression::atom(format!("__dict({items})")))
            }
            _ => Err(self.unexpected("an expression")),
        }
    }

    /// Parses the comma-separated items up to the closing bracket.
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
            self.count_operation()?;
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
        let read = value.read.clone();
        let value = value.into_operand();
        if let Some(TokenKind::Integer(index)) = self.peek() {
            let text = format!("__item({value}, {index})");
            self.at += 1;
            return Ok(Expression::atom(text));
        }
        let name = self.identifier()?;
        if self.is_operator("(") {
            let arguments = self.arguments()?.text;
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
        })
        .reading(read.and_then(|read| read.key(&name))))
    }

    fn subscript(&mut self, value: Expression) -> Result<Expression, SyntaxError> {
        let read = value.read.clone();
        let value = value.into_operand();
        if let (Some(TokenKind::Text(key)), Some(TokenKind::Operator("]"))) = (self.peek(), self.peek_second())
            && !is_method_name(key)
        {
            let text = format!("{value}[{}]", quoted(key));
            let read = read.and_then(|read| read.key(key));
            self.at += 2;
            return Ok(Expression::atom(text).reading(read));
        }
        let mut keys = Vec::new();
        while !self.skip_operator("]") {
            if !keys.is_empty() {
                self.expect_operator(",")?;
            }
            keys.push(self.subscript_key()?);
        }
        match &keys[..] {
            [] => Err(self.error("a subscript is empty")),
            [Subscript::Key(key)] => Ok(Expression::atom(format!("__item({value}, {key})"))),
            [Subscript::Slice(bounds)] => {
                let text = format!("__slice({value}, {})", bounds.join(", "));
                Ok(Expression::atom(text).reading(read.map(Read::filtered)))
            }
            _ => Err(self.error("several subscripts in one pair of brackets are not supported")),
        }
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
                bounds[colons] = self.expression(Conditional::Allowed)?.text;
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
        let Arguments { text: arguments, positional, named } = self.arguments()?;
        self.outline.calls.push(Call { name: callee.clone(), positional, named });
        Ok(Expression::atom(match callee.as_str() {
            "loop" => format!("loop(__iterable({arguments}))"),
            // minijinja reserves the name for template inheritance, which chat templates do not have.
            "super" => return Err(self.error("`super` is not supported: a chat template cannot extend another")),
            _ => format!("{callee}({arguments})"),
        }))
    }

    /// Parses the arguments of a call, parentheses included.
    pub(super) fn arguments(&mut self) -> Result<Arguments, SyntaxError> {
        self.expect_operator("(")?;
        let (mut positional, mut named) = (Vec::new(), Vec::new());
        let text = self.items(")", |parser| {
            for sign in ["*", "**"] {
                if parser.skip_operator(sign) {
                    return Ok(format!("{sign}{}", parser.expression(Conditional::Allowed)?.into_operand()));
                }
            }
            let keyword = matches!(parser.peek(), Some(TokenKind::Name(_)))
                && matches!(parser.peek_second(), Some(TokenKind::Operator("=")));
            if !keyword {
                let value = parser.expression(Conditional::Allowed)?;
                positional.push(value.read.clone());
                return Ok(value.text);
            }
            let name = parser.identifier()?;
            parser.expect_operator("=")?;
            let value = parser.expression(Conditional::Allowed)?;
            let text = format!("{name}={}", value.text);
            named.push((name, value.read));
            Ok(text)
        })?;
        Ok(Arguments { text, positional, named })
    }

    fn filters(&mut self, mut value: Expression) -> Result<Expression, SyntaxError> {
        loop {
            self.count_operation()?;
            value = if self.skip_operator("|") {
                let filter = self.filter()?;
                let read = value.read.clone().map(Read::filtered);
                Expression { text: format!("{}|{filter}", value.into_filtered()), shape: Shape::Filtered, read }
            } else if self.skip_name("is") {
                self.test(value)?
            } else if self.is_operator("(") {
                self.call(value)?
            } else {
                return Ok(value);
            };
        }
    }

    /// Parses the name and the arguments of a filter.
    pub(super) fn filter(&mut self) -> Result<String, SyntaxError> {
        let name = self.dotted_name()?;
        let arguments = if self.is_operator("(") { self.arguments()?.text } else { String::new() };
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
            self.arguments()?.text
        } else if argument_follows {
            if self.is_name("is") {
                return Err(self.error("several tests cannot follow each other: write `and` between them"));
            }
            let argument = self.primary()?;
            self.postfix(argument)?.text
        } else {
            String::new()
        };
        // A negated test is an operation on a test.
        let read = value.read.clone().filter(|_| negation.is_empty()).map(Read::filtered);
        let text = format!("{} is {negation}{name}({arguments})", value.into_filtered());
        Ok(Expression { text, shape: Shape::Filtered, read })
    }
}

/// The arguments of a call.
pub(super) struct Arguments {
    /// The arguments, separated by commas.
    pub(super) text: String,
    positional: Vec<Option<Read>>,
    named: Vec<(String, Option<Read>)>,
}

/// Whether filters may follow an operand.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Filters {
    Allowed,
    Excluded,
}

enum Subscript {
    Key(String),
    Slice([String; 3]),
}
