//! Links between pages, and the pages of the book.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::pages::{Page, pages, repository};

/// A page that is included in another one, and has no separate place in the book.
const INCLUDED: &str = "docs/benchmarks/turns.md";

/// The anchors of a page's headings, as git hosts and mdBook make them.
fn anchors(page: &Page) -> BTreeSet<String> {
    let (mut anchors, mut used) = (BTreeSet::new(), BTreeMap::new());
    for heading in page.prose().filter(|line| line.starts_with('#')) {
        let title = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let count = used.entry(anchor.clone()).and_modify(|count| *count += 1).or_insert(0);
        anchors.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
    }
    anchors
}

/// Targets of the links of a page.
fn targets(page: &Page) -> Vec<String> {
    let text: String = page.prose().flat_map(|line| [line, "\n"]).collect();
    // Code has no links, but a link's text may be code.
    let closed = text.match_indices("](").map(|(at, _)| &text[at + 2..]);
    closed.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.to_owned()).collect()
}

fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            part => normal.push(part),
        }
    }
    normal
}

#[test]
fn links_lead_to_files_and_headings() {
    let (pages, root) = (pages(), repository());
    let anchors_of: BTreeMap<&str, _> = pages.iter().map(|page| (page.path.as_str(), anchors(page))).collect();
    let (mut broken, mut followed) = (Vec::new(), 0);
    for page in &pages {
        let folder = Path::new(&page.path).parent().expect("a folder");
        for target in targets(page) {
            if target.contains("://") || target.chars().any(char::is_whitespace) {
                continue;
            }
            followed += 1;
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let path = if path.is_empty() { PathBuf::from(&page.path) } else { normal(&folder.join(path)) };
            let path = path.to_str().expect("text");
            let has_anchor = || anchors_of.get(path).is_some_and(|anchors| anchors.contains(anchor));
            if !root.join(path).exists() || !(anchor.is_empty() || has_anchor()) {
                broken.push(format!("{}: {target}", page.path));
            }
        }
    }
    assert!(followed > 500, "{followed} links");
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
}

#[test]
fn the_book_has_each_page_of_its_folder() {
    let pages = pages();
    let summary = pages.iter().find(|page| page.path == "docs/SUMMARY.md").expect("the contents of the book");
    let listed: BTreeSet<PathBuf> =
        targets(summary).iter().map(|target| normal(&Path::new("docs").join(target))).collect();
    let is_left_out = |path: &str| path == summary.path || path == INCLUDED;
    let of_folder = pages.iter().map(|page| page.path.as_str()).filter(|path| path.starts_with("docs/"));
    let missing: Vec<_> = of_folder.filter(|path| !is_left_out(path) && !listed.contains(Path::new(path))).collect();
    assert!(missing.is_empty(), "add these pages to docs/SUMMARY.md: {missing:?}");
}
