//! Statements: the tags of a template, one after the other.

use super::SyntaxError;
use super::expression::{Conditional, Parser, quoted};
use super::lexer::{TokenKind, tokens};

/// How deeply blocks may be nested. minijinja's own parser ends at 150.
const BLOCK_DEPTH_MAX: usize = 100;

/// Writes a template of Jinja2's as one of minijinja's, line by line the same.
pub(in crate::chat) fn translate(source: &str) -> Result<String, SyntaxError> {
    let mut translation = Translation { parser: Parser::new(tokens(source)?), out: String::new(), line: 1, open: Vec::new() };
    while let Some(token) = translation.parser.peek() {
        match token {
            TokenKind::Data(text) => {
                let text = format!("{{{{{}}}}}", quoted(text));
                translation.write(&text);
                translation.parser.next();
            }
            TokenKind::VariableBegin => {
                let line = translation.parser.line();
                translation.parser.next();
                let value = translation.parser.tuple(Conditional::Allowed)?.into_text();
                translation.parser.expect_end(TokenKind::VariableEnd)?;
                translation.print(line, &value);
            }
            _ => {
                let line = translation.parser.line();
                translation.parser.next();
                translation.statement(line)?;
            }
        }
    }
    match translation.open.pop() {
        None => Ok(translation.out),
        Some(open) => Err(SyntaxError {
            line: open.line,
            message: format!("`{}` is not closed: `{{% end{} %}}` is missing", open.tag, open.tag),
        }),
    }
}

struct Translation {
    parser: Parser,
    out: String,
    /// The line that `out` ends on.
    line: usize,
    open: Vec<OpenTag>,
}

struct OpenTag {
    tag: String,
    line: usize,
    /// What closes it in the translation.
    end: &'static str,
}

impl Translation {
    fn write(&mut self, text: &str) {
        self.out.push_str(text);
    }

    /// Newlines that bring the translation to a line of the template, so that errors name the right one.
    fn catch_up(&mut self, line: usize) {
        while self.line < line {
            self.out.push('\n');
            self.line += 1;
        }
    }

    fn print(&mut self, line: usize, value: &str) {
        self.write("{{");
        self.catch_up(line);
        // Spaces keep a value's own braces and signs apart from the tag's.
        self.write(&format!(" {value} }}}}"));
    }

    fn tag(&mut self, line: usize, text: &str) {
        self.write("{%");
        self.catch_up(line);
        self.write(&format!(" {text} %}}"));
    }

    fn open(&mut self, line: usize, tag: &str, end: &'static str) -> Result<(), SyntaxError> {
        if self.open.len() == BLOCK_DEPTH_MAX {
            return Err(self.parser.error(format!("blocks are nested more than {BLOCK_DEPTH_MAX} deep")));
        }
        self.open.push(OpenTag { tag: tag.to_owned(), line, end });
        Ok(())
    }

    fn statement(&mut self, line: usize) -> Result<(), SyntaxError> {
        let tag = self.parser.identifier()?;
        if let Some(closed) = tag.strip_prefix("end") {
            return self.end(line, closed);
        }
        let text = match tag.as_str() {
            "for" => self.for_loop(line)?,
            "if" => {
                self.open(line, "if", "endif")?;
                format!("if {}", self.parser.tuple(Conditional::Excluded)?.into_text())
            }
            "elif" => {
                self.within(&["if"], "elif")?;
                format!("elif {}", self.parser.tuple(Conditional::Excluded)?.into_text())
            }
            "else" => {
                self.within(&["if", "for"], "else")?;
                "else".to_owned()
            }
            "set" => self.set(line)?,
            "macro" => self.macro_definition(line)?,
            "call" => self.call_block(line)?,
            "filter" => {
                self.open(line, "filter", "endfilter")?;
                format!("filter {}", self.filter_chain()?)
            }
            "with" => self.with(line)?,
            // Both are scopes of their own that print what is in them.
            "generation" => {
                self.open(line, "generation", "endwith")?;
                "with".to_owned()
            }
            "block" => {
                self.open(line, "block", "endwith")?;
                self.parser.identifier()?;
                self.parser.skip_name("scoped");
                "with".to_owned()
            }
            "break" | "continue" => {
                self.in_loop(&tag)?;
                tag
            }
            "print" => return self.print_statement(line),
            "include" | "import" | "from" | "extends" => {
                return Err(self.parser.error(format!("`{tag}`: a chat template cannot load others, write it in one piece")));
            }
            "autoescape" => {
                return Err(self.parser.error("`autoescape` is not supported: chat templates are plain text"));
            }
            _ => return Err(self.parser.error(format!("`{tag}` is not a tag of chat templates"))),
        };
        // Python writes a colon there, and Jinja2 takes it.
        if self.open.last().is_some_and(|open| open.line == line) {
            self.parser.skip_operator(":");
        }
        self.parser.expect_end(TokenKind::BlockEnd)?;
        self.tag(line, &text);
        Ok(())
    }

    fn end(&mut self, line: usize, closed: &str) -> Result<(), SyntaxError> {
        match self.open.pop() {
            Some(open) if open.tag == closed => {
                if closed == "block" && !matches!(self.parser.peek(), Some(TokenKind::BlockEnd)) {
                    self.parser.identifier()?;
                }
                self.parser.expect_end(TokenKind::BlockEnd)?;
                self.tag(line, open.end);
                Ok(())
            }
            Some(open) => Err(SyntaxError {
                line,
                message: format!("`end{closed}` where `end{}` for line {} is expected", open.tag, open.line),
            }),
            None => Err(SyntaxError { line, message: format!("`end{closed}` closes nothing") }),
        }
    }

    fn within(&self, tags: &[&str], tag: &str) -> Result<(), SyntaxError> {
        if self.open.last().is_some_and(|open| tags.contains(&open.tag.as_str())) {
            return Ok(());
        }
        Err(self.parser.error(format!("`{tag}` belongs directly into {}", tags.join(" or "))))
    }

    fn in_loop(&self, tag: &str) -> Result<(), SyntaxError> {
        // What is in between becomes a function in Python, which a loop outside cannot be left from.
        let scope = self.open.iter().rev().find(|open| !matches!(open.tag.as_str(), "if" | "with" | "set" | "filter"));
        if scope.is_some_and(|open| open.tag == "for") {
            return Ok(());
        }
        Err(self.parser.error(format!("`{tag}` belongs into a loop")))
    }

    fn for_loop(&mut self, line: usize) -> Result<String, SyntaxError> {
        let target = self.target(Namespaces::Excluded)?;
        self.parser.expect_name("in")?;
        let items = self.parser.tuple(Conditional::Excluded)?.into_text();
        let mut text = format!("for {target} in __iterable({items})");
        if self.parser.skip_name("if") {
            text += &format!(" if {}", self.parser.expression(Conditional::Allowed)?.into_operand());
        }
        if self.parser.skip_name("recursive") {
            text += " recursive";
        }
        self.open(line, "for", "endfor")?;
        Ok(text)
    }

    /// What is assigned to: names, tuples of them, or a namespace's attribute.
    fn target(&mut self, namespaces: Namespaces) -> Result<String, SyntaxError> {
        let mut targets = Vec::new();
        let mut is_tuple = false;
        loop {
            targets.push(self.single_target(namespaces)?);
            if !self.parser.skip_operator(",") {
                break;
            }
            is_tuple = true;
            if self.parser.is_name("in") || self.parser.is_operator("=") || self.parser.is_operator(")") {
                break;
            }
        }
        let targets = targets.join(", ");
        Ok(if is_tuple { format!("({targets},)") } else { targets })
    }

    fn single_target(&mut self, namespaces: Namespaces) -> Result<String, SyntaxError> {
        if self.parser.skip_operator("(") {
            let inner = self.target(namespaces)?;
            self.parser.expect_operator(")")?;
            return Ok(inner);
        }
        let name = self.parser.identifier()?;
        if matches!(name.as_str(), "true" | "True" | "false" | "False" | "none" | "None") {
            return Err(self.parser.error(format!("`{name}` cannot be assigned to")));
        }
        if namespaces == Namespaces::Allowed && self.parser.skip_operator(".") {
            let attribute = self.parser.identifier()?;
            if attribute.starts_with('_') {
                let message = format!("a namespace's attribute cannot start with `_`: rename {attribute:?}");
                return Err(self.parser.error(message));
            }
            return Ok(format!("{name}.{attribute}"));
        }
        Ok(name)
    }

    fn set(&mut self, line: usize) -> Result<String, SyntaxError> {
        let target = self.target(Namespaces::Allowed)?;
        if self.parser.skip_operator("=") {
            let value = self.parser.tuple(Conditional::Allowed)?.into_text();
            // What a namespace keeps outlives the block; the function refuses what could not be freed.
            let value = if target.contains('.') { format!("__kept({value})") } else { value };
            return Ok(format!("set {target} = {value}"));
        }
        self.open(line, "set", "endset")?;
        Ok(if self.parser.skip_operator("|") {
            format!("set {target} | {}", self.filter_chain()?)
        } else {
            format!("set {target}")
        })
    }

    /// Filters with `|` between them.
    fn filter_chain(&mut self) -> Result<String, SyntaxError> {
        let mut filters = self.parser.filter()?;
        while self.parser.skip_operator("|") {
            filters = format!("{filters}|{}", self.parser.filter()?);
        }
        Ok(filters)
    }

    /// Parameters of a macro or a call with the parentheses around them.
    fn signature(&mut self) -> Result<String, SyntaxError> {
        self.parser.expect_operator("(")?;
        let mut parameters: Vec<String> = Vec::new();
        while !self.parser.skip_operator(")") {
            if !parameters.is_empty() {
                self.parser.expect_operator(",")?;
                if self.parser.skip_operator(")") {
                    break;
                }
            }
            let name = self.parser.identifier()?;
            parameters.push(if self.parser.skip_operator("=") {
                format!("{name}={}", self.parser.expression(Conditional::Allowed)?.into_text())
            } else {
                name
            });
        }
        Ok(format!("({})", parameters.join(", ")))
    }

    fn macro_definition(&mut self, line: usize) -> Result<String, SyntaxError> {
        let name = self.parser.identifier()?;
        let text = format!("macro {name}{}", self.signature()?);
        self.open(line, "macro", "endmacro")?;
        Ok(text)
    }

    fn call_block(&mut self, line: usize) -> Result<String, SyntaxError> {
        let signature = if self.parser.is_operator("(") { self.signature()? } else { String::new() };
        let call = self.parser.expression(Conditional::Allowed)?.into_text();
        self.open(line, "call", "endcall")?;
        Ok(format!("call{signature} {call}"))
    }

    fn with(&mut self, line: usize) -> Result<String, SyntaxError> {
        let mut assignments = Vec::new();
        while !matches!(self.parser.peek(), Some(TokenKind::BlockEnd)) {
            if !assignments.is_empty() {
                self.parser.expect_operator(",")?;
            }
            let target = self.target(Namespaces::Excluded)?;
            self.parser.expect_operator("=")?;
            assignments.push(format!("{target} = {}", self.parser.expression(Conditional::Allowed)?.into_text()));
        }
        self.open(line, "with", "endwith")?;
        Ok(format!("with {}", assignments.join(", ")))
    }

    fn print_statement(&mut self, line: usize) -> Result<(), SyntaxError> {
        loop {
            let value = self.parser.expression(Conditional::Allowed)?.into_text();
            self.print(line, &value);
            if !self.parser.skip_operator(",") {
                return self.parser.expect_end(TokenKind::BlockEnd);
            }
        }
    }
}

/// Whether an attribute of a namespace may be assigned to.
#[derive(Clone, Copy, PartialEq)]
enum Namespaces {
    Allowed,
    Excluded,
}
