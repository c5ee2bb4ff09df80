//! Parser and writer of statements: translates a template tag by tag.

use super::SyntaxError;
use super::expression::{Conditional, quoted};
use super::lexer::{TokenKind, tokens};
use super::outline::{Assignment, Loop, Macro, Outline};
use super::parser::Parser;

/// Maximum nesting of blocks. minijinja's own parser stops at 150.
const BLOCK_DEPTH_MAX: usize = 100;

/// Maximum number of `elif`s of one `if`: minijinja nests each in the `if` before it.
const BRANCHES_MAX: usize = 100;

/// A parsed template.
#[derive(Debug, Clone)]
pub struct Template {
    /// The template for minijinja. Line numbers stay the same.
    pub translation: String,
    /// Variables that the template reads.
    pub outline: Outline,
}

/// Translates a Jinja2 template for minijinja.
///
/// # Errors
///
/// If the template has a syntax error, or a construct that chat templates do not have.
pub fn translate(source: &str) -> Result<Template, SyntaxError> {
    let mut translation =
        Translation { parser: Parser::new(tokens(source)?), out: String::new(), line: 1, open: Vec::new() };
    while let Some(token) = translation.parser.peek() {
        if let TokenKind::Data(text) = token {
            translation.out.push_str(&format!("{{{{{}}}}}", quoted(text)));
            translation.parser.at += 1;
            continue;
        }
        let is_variable = *token == TokenKind::VariableBegin;
        let line = translation.parser.line();
        translation.parser.begin_tag();
        if is_variable {
            let value = translation.parser.tuple(Conditional::Allowed)?.text;
            translation.parser.expect_end(TokenKind::VariableEnd)?;
            translation.print(line, &value);
        } else {
            translation.statement(line)?;
        }
    }
    match translation.open.pop() {
        None => Ok(Template { translation: translation.out, outline: translation.parser.outline }),
        Some(open) => Err(SyntaxError {
            line: open.line,
            message: format!("`{}` is not closed: `{{% end{} %}}` is missing", open.tag, open.tag),
        }),
    }
}

struct Translation {
    parser: Parser,
    out: String,
    /// The line number at the end of `out`.
    line: usize,
    open: Vec<OpenTag>,
}

struct OpenTag {
    tag: String,
    line: usize,
    /// The tags that close it in the translation.
    end: &'static str,
    /// Number of `elif`s so far.
    branches: usize,
    /// Position in the outline, if the block is a macro.
    macro_at: Option<usize>,
}

impl Translation {
    /// Writes newlines until the translation is at a line of the template, so errors name that line.
    fn catch_up(&mut self, line: usize) {
        while self.line < line {
            self.out.push('\n');
            self.line += 1;
        }
    }

    fn print(&mut self, line: usize, value: &str) {
        self.out.push_str("{{");
        self.catch_up(line);
        // Spaces separate the braces and signs of the value from the braces and signs of the tag.
        self.out.push_str(&format!(" {value} }}}}"));
    }

    fn tag(&mut self, line: usize, text: &str) {
        self.out.push_str("{%");
        self.catch_up(line);
        self.out.push_str(&format!(" {text} %}}"));
    }

    fn open(&mut self, line: usize, tag: &str, end: &'static str) -> Result<(), SyntaxError> {
        if self.open.len() == BLOCK_DEPTH_MAX {
            return Err(self.parser.error(format!("blocks are nested more than {BLOCK_DEPTH_MAX} deep")));
        }
        self.open.push(OpenTag { tag: tag.to_owned(), line, end, branches: 0, macro_at: None });
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
                format!("if {}", self.parser.tuple(Conditional::Excluded)?.text)
            }
            "elif" => {
                self.within(&["if"], "elif")?;
                self.branch()?;
                format!("elif {}", self.parser.tuple(Conditional::Excluded)?.text)
            }
            "else" => {
                self.within(&["if", "for"], "else")?;
                "else".to_owned()
            }
            "set" => self.set(line)?,
            "macro" => return self.macro_definition(line),
            "call" => return self.call_block(line),
            "filter" => {
                self.open(line, "filter", "endwith %}{% endfilter")?;
                format!("filter {} %}}{{% with", self.filter_chain()?)
            }
            "with" => self.with(line)?,
            // Both are scopes that print their content.
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
                return Err(self
                    .parser
                    .error(format!("`{tag}`: a chat template cannot load other templates; inline them")));
            }
            "autoescape" => {
                return Err(self.parser.error("`autoescape` is not supported: chat templates are plain text"));
            }
            _ => return Err(self.parser.error(format!("`{tag}` is not a tag of chat templates"))),
        };
        self.begin(line, &text)
    }

    /// Parses the end of a tag and writes the tag's translation.
    fn begin(&mut self, line: usize, text: &str) -> Result<(), SyntaxError> {
        // Jinja2 accepts a colon here, as in Python.
        self.parser.skip_operator(":");
        self.parser.expect_end(TokenKind::BlockEnd)?;
        self.tag(line, text);
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
        Err(self.parser.error(format!("`{tag}` must be directly in {}", tags.join(" or "))))
    }

    fn branch(&mut self) -> Result<(), SyntaxError> {
        if let Some(open) = self.open.last_mut() {
            open.branches += 1;
            if open.branches > BRANCHES_MAX {
                return Err(self.parser.error(format!("one `if` has more than {BRANCHES_MAX} `elif`s")));
            }
        }
        Ok(())
    }

    /// Checks that only `if` blocks are between a `break` or `continue` and its loop: minijinja does not close other blocks.
    fn in_loop(&self, tag: &str) -> Result<(), SyntaxError> {
        match self.open.iter().rev().find(|open| open.tag != "if") {
            Some(open) if open.tag == "for" => Ok(()),
            Some(open) => Err(self
                .parser
                .error(format!("`{tag}` inside of `{}` is not supported: move it into the loop itself", open.tag))),
            None => Err(self.parser.error(format!("`{tag}` must be in a loop"))),
        }
    }

    fn for_loop(&mut self, line: usize) -> Result<String, SyntaxError> {
        let target = self.target(Namespaces::Excluded)?;
        self.parser.expect_name("in")?;
        let items = self.parser.tuple(Conditional::Excluded)?;
        let macros = self.open.iter().filter_map(|open| open.macro_at).collect();
        let outlined = Loop { target: single_name(&target), items: items.read, macros };
        self.parser.outline.loops.push(outlined);
        let mut text = format!("for {target} in __iterable({})", items.text);
        if self.parser.skip_name("if") {
            text += &format!(" if {}", self.parser.expression(Conditional::Allowed)?.into_operand());
        }
        if self.parser.skip_name("recursive") {
            text += " recursive";
        }
        self.open(line, "for", "endfor")?;
        Ok(text)
    }

    /// Parses an assignment target: names, tuples of names, or an attribute of a namespace.
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
            let value = self.parser.tuple(Conditional::Allowed)?;
            if let Some(value) = value.read.clone() {
                self.parser.outline.assignments.push(Assignment { target: single_name(&target), value });
            }
            let value = value.text;
            // A namespace outlives the block. The function rejects values that could form a reference cycle.
            let value = if target.contains('.') { format!("__namespace_value({value})") } else { value };
            return Ok(format!("set {target} = {value}"));
        }
        // The block has its own scope.
        self.open(line, "set", "endwith %}{% endset")?;
        let filters =
            if self.parser.skip_operator("|") { format!(" | {}", self.filter_chain()?) } else { String::new() };
        Ok(format!("set {target}{filters} %}}{{% with"))
    }

    /// Parses a chain of filters.
    fn filter_chain(&mut self) -> Result<String, SyntaxError> {
        let mut filters = self.parser.filter()?;
        while self.parser.skip_operator("|") {
            filters = format!("{filters}|{}", self.parser.filter()?);
        }
        Ok(filters)
    }

    /// Parses the parameters of a macro or a call. Returns their names, and the statements that assign the
    /// defaults: a default may refer to the parameters before it.
    fn signature(&mut self) -> Result<(Vec<String>, String), SyntaxError> {
        self.parser.expect_operator("(")?;
        let mut parameters: Vec<String> = Vec::new();
        let mut defaults = String::new();
        while !self.parser.skip_operator(")") {
            if !parameters.is_empty() {
                self.parser.expect_operator(",")?;
                if self.parser.skip_operator(")") {
                    break;
                }
            }
            let name = self.parser.identifier()?;
            if self.parser.skip_operator("=") {
                let default = self.parser.expression(Conditional::Allowed)?.text;
                defaults += &format!("{{% if {name} is undefined() %}}{{% set {name} = {default} %}}{{% endif %}}");
            } else if !defaults.is_empty() {
                return Err(self.parser.error(format!("`{name}` needs a default, as the parameter before it has one")));
            }
            parameters.push(name);
        }
        Ok((parameters, defaults))
    }

    fn macro_definition(&mut self, line: usize) -> Result<(), SyntaxError> {
        let name = self.parser.identifier()?;
        let (parameters, defaults) = self.signature()?;
        self.open(line, "macro", "endmacro")?;
        if let Some(open) = self.open.last_mut() {
            open.macro_at = Some(self.parser.outline.macros.len());
        }
        self.begin(line, &format!("macro {name}({})", parameters.join(", ")))?;
        self.parser.outline.macros.push(Macro { name, parameters });
        self.out.push_str(&defaults);
        Ok(())
    }

    fn call_block(&mut self, line: usize) -> Result<(), SyntaxError> {
        let (parameters, defaults) =
            if self.parser.is_operator("(") { self.signature()? } else { (Vec::new(), String::new()) };
        let parameters = if parameters.is_empty() { String::new() } else { format!("({})", parameters.join(", ")) };
        let call = self.parser.expression(Conditional::Allowed)?.text;
        self.open(line, "call", "endcall")?;
        self.begin(line, &format!("call{parameters} {call}"))?;
        self.out.push_str(&defaults);
        Ok(())
    }

    fn with(&mut self, line: usize) -> Result<String, SyntaxError> {
        let mut values = Vec::new();
        let mut targets = Vec::new();
        while !matches!(self.parser.peek(), Some(TokenKind::BlockEnd)) {
            if !targets.is_empty() {
                self.parser.expect_operator(",")?;
            }
            let target = self.target(Namespaces::Excluded)?;
            self.parser.expect_operator("=")?;
            // Values are evaluated outside the block's scope, so they are assigned to temporary names first.
            let aside = format!("__with_{}", targets.len());
            values.push(format!("{aside} = {}", self.parser.expression(Conditional::Allowed)?.text));
            targets.push(format!("{target} = {aside}"));
        }
        self.open(line, "with", "endwith")?;
        values.append(&mut targets);
        Ok(format!("with {}", values.join(", ")))
    }

    fn print_statement(&mut self, line: usize) -> Result<(), SyntaxError> {
        loop {
            let value = self.parser.expression(Conditional::Allowed)?.text;
            self.print(line, &value);
            if !self.parser.skip_operator(",") {
                return self.parser.expect_end(TokenKind::BlockEnd);
            }
        }
    }
}

/// The target's name, unless it is a tuple or an attribute of a namespace.
fn single_name(target: &str) -> Option<String> {
    (!target.contains(['.', ','])).then(|| target.to_owned())
}

/// Whether an attribute of a namespace is a valid target.
#[derive(Clone, Copy, PartialEq)]
enum Namespaces {
    Allowed,
    Excluded,
}
