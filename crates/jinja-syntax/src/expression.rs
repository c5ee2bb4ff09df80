//! Parser and writer of expressions: Jinja2's grammar, with calls in place of operations that minijinja defines differently.

use std::fmt::Write;

use super::SyntaxError;
use super::lexer::TokenKind;
use super::operand::Filters;
use super::outline::Read;
use super::parser::Parser;

/// A translated expression.
pub(super) struct Expression {
    pub(super) text: String,
    pub(super) shape: Shape,
    pub(super) read: Option<Read>,
}

/// The syntax that may follow an expression's text without parentheses.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Shape {
    /// Any operator: the expression is a name, a literal, a call or a lookup.
    Atom,
    /// Another filter or test.
    Filtered,
    /// No operator: the expression needs parentheses.
    Loose,
}

impl Expression {
    pub(super) fn atom(text: String) -> Self {
        Self { text, shape: Shape::Atom, read: None }
    }

    pub(super) fn loose(text: String) -> Self {
        Self { text, shape: Shape::Loose, read: None }
    }

    /// The same expression, with the variables that it reads.
    pub(super) fn reading(self, read: Option<Read>) -> Self {
        Self { read, ..self }
    }

    /// The text for a position that takes a single operand.
    pub(super) fn into_operand(self) -> String {
        if self.shape == Shape::Atom { self.text } else { format!("({})", self.text) }
    }

    /// The text for a position before a filter or a test.
    pub(super) fn into_filtered(self) -> String {
        if self.shape == Shape::Loose { format!("({})", self.text) } else { self.text }
    }
}

/// Whether `a if b else c` may stand without parentheses.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Conditional {
    /// A conditional expression needs no parentheses.
    Allowed,
    /// A following `if` belongs to the enclosing tag.
    Excluded,
}

impl Parser {
    /// Parses one expression, or a tuple of comma-separated expressions.
    pub(super) fn tuple(&mut self, conditional: Conditional) -> Result<Expression, SyntaxError> {
        let first = self.expression(conditional)?;
        if !self.is_operator(",") {
            return Ok(first);
        }
        let mut items = vec![first.text];
        while self.skip_operator(",") {
            if matches!(self.peek(), Some(TokenKind::VariableEnd | TokenKind::BlockEnd | TokenKind::Operator(")"))) {
                break;
            }
            items.push(self.expression(conditional)?.text);
        }
        Ok(Expression::atom(format!("__tuple({})", items.join(", "))))
    }

    pub(super) fn expression(&mut self, conditional: Conditional) -> Result<Expression, SyntaxError> {
        self.enter()?;
        let mut value = self.or()?;
        while conditional == Conditional::Allowed && self.skip_name("if") {
            self.count_operation()?;
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
            self.count_operation()?;
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
        let first = self.sum()?;
        let Some(mut function) = self.comparison_function() else {
            return Ok(first);
        };
        let mut parts = Vec::new();
        let mut left = first.text;
        loop {
            let right = self.sum()?.text;
            parts.push(format!("{function}({left}, {right})"));
            match self.comparison_function() {
                Some(next) => (function, left) = (next, right),
                None => break,
            }
        }
        Ok(if parts.len() == 1 { Expression::atom(parts.remove(0)) } else { Expression::loose(parts.join(" and ")) })
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

    pub(super) fn sum(&mut self) -> Result<Expression, SyntaxError> {
        self.calculation(&["+", "-"], Self::concatenation)
    }

    fn product(&mut self) -> Result<Expression, SyntaxError> {
        self.calculation(&["*", "/", "//", "%"], Self::power)
    }

    fn power(&mut self) -> Result<Expression, SyntaxError> {
        self.calculation(&["**"], |parser| parser.unary(Filters::Allowed))
    }

    /// Parses left-associative operations of one precedence.
    fn calculation(
        &mut self,
        operators: &[&str],
        operand: fn(&mut Self) -> Result<Expression, SyntaxError>,
    ) -> Result<Expression, SyntaxError> {
        let first = operand(self)?;
        let mut steps = String::new();
        while let Some(TokenKind::Operator(operator)) = self.peek()
            && operators.contains(operator)
        {
            let operator = *operator;
            self.at += 1;
            let right = operand(self)?.text;
            // Writing to a string cannot fail.
            let _ = write!(steps, ", \"{operator}\", {right}");
        }
        Ok(if steps.is_empty() { first } else { Expression::atom(format!("__math({}{steps})", first.text)) })
    }

    fn concatenation(&mut self) -> Result<Expression, SyntaxError> {
        let first = self.product()?;
        if !self.is_operator("~") {
            return Ok(first);
        }
        let mut items = vec![first.text];
        while self.skip_operator("~") {
            items.push(self.product()?.text);
        }
        Ok(Expression::atom(format!("__concat({})", items.join(", "))))
    }
}

/// Quotes a string as a literal.
pub(super) fn quoted(text: &str) -> String {
    // Literals stay on one line, so line numbers stay the same.
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{escaped}\"")
}
