//! Shell commands and options in the project's Markdown files.

use std::path::{Path, PathBuf};

/// A Markdown file.
pub(super) struct Page {
    /// Its path in the repository.
    pub(super) path: String,
    text: String,
}

/// A fenced block of a page.
pub(super) struct Block {
    /// Language after the fence.
    pub(super) language: String,
    /// Number of its first line.
    pub(super) line: usize,
    pub(super) lines: Vec<String>,
}

/// A command with its lines joined, without the comment after it.
#[derive(Debug)]
pub(super) struct ShellCommand {
    /// `page:line`.
    pub(super) place: String,
    pub(super) text: String,
    pub(super) is_in_background: bool,
}

/// Folders without pages, such as builds and downloads.
fn is_skipped(name: &str) -> bool {
    name.starts_with('.') || ["target", "node_modules"].contains(&name)
}

pub(super) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

/// Every page of the repository, by path.
pub(super) fn pages() -> Vec<Page> {
    let (root, mut pages) = (repository(), Vec::new());
    add_pages(&root, &root, &mut pages);
    pages.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(pages.iter().any(|page| page.path == "README.md") && pages.len() > 40, "{} pages", pages.len());
    pages
}

fn add_pages(folder: &Path, root: &Path, pages: &mut Vec<Page>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if entry.file_type().expect("a type").is_dir() {
            if !is_skipped(&name) {
                add_pages(&path, root, pages);
            }
        } else if name.ends_with(".md") {
            let text = std::fs::read_to_string(&path).expect("text");
            let path = path.strip_prefix(root).expect("a path below the root").to_string_lossy().into_owned();
            pages.push(Page { path, text });
        }
    }
}

impl Page {
    /// Cells of tables, with their lines. A link is its text.
    pub(super) fn cells(&self) -> impl Iterator<Item = (usize, String)> {
        let rows = (1..).zip(self.text.lines()).filter(|(_, line)| line.starts_with('|'));
        rows.flat_map(|(number, line)| {
            let cells = line.replace("\\|", "¦");
            cells.split('|').map(|cell| (number, without_targets(cell.trim()))).collect::<Vec<_>>()
        })
    }

    /// Fenced blocks.
    pub(super) fn blocks(&self) -> Vec<Block> {
        let (mut blocks, mut open) = (Vec::new(), None::<Block>);
        for (number, line) in (1..).zip(self.text.lines()) {
            match (line.strip_prefix("```"), &mut open) {
                (Some(language), None) => {
                    open = Some(Block { language: language.to_owned(), line: number + 1, lines: Vec::new() });
                }
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (None, Some(block)) => block.lines.push(line.to_owned()),
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{}: a fence is not closed", self.path);
        blocks
    }

    /// The commands of each block of the language `sh`.
    pub(super) fn shell_blocks(&self) -> Vec<Vec<ShellCommand>> {
        let shell = self.blocks().into_iter().filter(|block| block.language == "sh");
        shell.map(|block| block.commands(&self.path)).collect()
    }

    /// Lines outside of fenced blocks.
    pub(super) fn prose(&self) -> impl Iterator<Item = &str> {
        let mut is_fenced = false;
        self.text.lines().filter(move |line| {
            let is_fence = line.starts_with("```");
            is_fenced ^= is_fence;
            !is_fenced && !is_fence
        })
    }

    /// Code between single backquotes, outside of fenced blocks.
    pub(super) fn code_spans(&self) -> Vec<String> {
        let text: String = self.prose().flat_map(|line| [line, "\n"]).collect();
        // A span may continue on the next line, but not after a blank one.
        let paragraphs = text.split("\n\n").flat_map(|paragraph| paragraph.split('`').skip(1).step_by(2));
        paragraphs.map(|span| span.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }
}

impl Block {
    fn commands(&self, page: &str) -> Vec<ShellCommand> {
        let (mut commands, mut open) = (Vec::new(), None::<(usize, String)>);
        for (number, line) in (self.line..).zip(&self.lines) {
            let (first, text) = match open.take() {
                Some((first, text)) => (first, format!("{text}\n{line}")),
                None => (number, line.clone()),
            };
            match code_of(&text) {
                None => open = Some((first, text)),
                Some("") => {}
                Some(code) => {
                    let foreground = code.strip_suffix('&').map(str::trim_end);
                    commands.push(ShellCommand {
                        place: format!("{page}:{first}"),
                        text: foreground.unwrap_or(code).to_owned(),
                        is_in_background: foreground.is_some(),
                    });
                }
            }
        }
        assert!(open.is_none(), "{page}: a command goes on behind the block: {open:?}");
        commands
    }
}

/// A command without the comment after it; none if it continues on the next line.
fn code_of(text: &str) -> Option<&str> {
    let (mut quote, mut before) = (None, ' ');
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match (character, quote) {
            ('\\', None | Some('"')) => drop(characters.next()?),
            ('\'' | '"', None) => quote = Some(character),
            (_, Some(open)) if open == character => quote = None,
            ('#', None) if before.is_whitespace() => return Some(text[..at].trim()),
            _ => {}
        }
        before = character;
    }
    quote.is_none().then(|| text.trim())
}

impl ShellCommand {
    /// The command without variables before it and without the folder of the program.
    pub(super) fn normalized(&self) -> String {
        let is_variable = |word: &str| {
            let name = word.split_once('=').map(|(name, _)| name);
            !word.contains('"') && name.is_some_and(|name| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
        };
        let mut text = self.text.as_str();
        while let Some((word, rest)) = text.split_once(' ')
            && is_variable(word)
        {
            text = rest;
        }
        text.strip_prefix("./target/release/").unwrap_or(text).to_owned()
    }
}

#[test]
fn commands_are_joined_and_comments_left_out() {
    let text = "```sh\na 'b # c\nd' \\\n  e  # f\n# g\nX=1 ./target/release/flash-indexer h &\n```\n`i\nj` `k`";
    let page = Page { path: "p".to_owned(), text: text.to_owned() };
    let commands = page.shell_blocks().pop().expect("a block");
    let read: Vec<_> = commands.iter().map(|c| (c.place.as_str(), c.normalized(), c.is_in_background)).collect();
    let joined = "a 'b # c\nd' \\\n  e".to_owned();
    assert_eq!(read, [("p:2", joined, false), ("p:6", "flash-indexer h".to_owned(), true)]);
    assert_eq!(page.code_spans(), ["i j", "k"]);
}

/// A text whose links have lost their targets.
fn without_targets(text: &str) -> String {
    let mut parts = text.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |shown, part| shown + "]" + part.split_once(')').map_or("", |(_, rest)| rest))
}
