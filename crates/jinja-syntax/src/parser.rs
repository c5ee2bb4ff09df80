//! The token stream of a template, with the limits on the size of one tag.

use super::SyntaxError;
use super::lexer::{Token, TokenKind};
use super::outline::Outline;

/// Maximum nesting of expressions. minijinja's own parser stops at about 70.
const EXPRESSION_DEPTH_MAX: usize = 60;

/// Maximum number of operations of one tag: lookups, calls, filters, tests, `and`s, `or`s and `if`s. minijinja's compiler
/// recurses once for each.
const OPERATIONS_MAX: usize = 300;

/// A cursor over the tokens of a template.
pub(super) struct Parser {
    tokens: Vec<Token>,
    pub(super) at: usize,
    pub(super) depth: usize,
    operations: usize,
    /// The outline of the part that has been parsed.
    pub(super) outline: Outline,
}

impl Parser {
    pub(super) fn new(tokens: Vec<Token>) -> Self {
        Self { tokens, at: 0, depth: 0, operations: 0, outline: Outline::default() }
    }

    pub(super) fn peek(&self) -> Option<&TokenKind> {
        self.tokens.get(self.at).map(|token| &token.kind)
    }

    pub(super) fn peek_second(&self) -> Option<&TokenKind> {
        self.tokens.get(self.at + 1).map(|token| &token.kind)
    }

    pub(super) fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |token| token.line)
    }

    pub(super) fn error(&self, message: impl Into<String>) -> SyntaxError {
        SyntaxError { line: self.line(), message: message.into() }
    }

    pub(super) fn unexpected(&self, expected: &str) -> SyntaxError {
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
        let Some(TokenKind::Name(name)) = self.peek() else { return Err(self.unexpected("a name")) };
        let name = name.clone();
        self.at += 1;
        Ok(name)
    }

    pub(super) fn expect_end(&mut self, end: TokenKind) -> Result<(), SyntaxError> {
        if self.peek() == Some(&end) {
            self.at += 1;
            return Ok(());
        }
        Err(self.unexpected(if end == TokenKind::BlockEnd { "`%}`" } else { "`}}`" }))
    }

    /// Skips the beginning of a tag, and resets the count of operations.
    pub(super) fn begin_tag(&mut self) {
        self.at += 1;
        self.operations = 0;
    }

    pub(super) fn count_operation(&mut self) -> Result<(), SyntaxError> {
        self.operations += 1;
        if self.operations > OPERATIONS_MAX {
            return Err(self.error(format!("one tag has more than {OPERATIONS_MAX} operations: split it with `set`")));
        }
        Ok(())
    }

    pub(super) fn enter(&mut self) -> Result<(), SyntaxError> {
        self.depth += 1;
        if self.depth > EXPRESSION_DEPTH_MAX {
            return Err(self.error(format!("expressions are nested more than {EXPRESSION_DEPTH_MAX} deep")));
        }
        Ok(())
    }
}
