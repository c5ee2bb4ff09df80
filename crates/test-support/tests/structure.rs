//! The structure of the workspace: sizes of crates and files, their dependencies, and the maps of their files.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use toml::Table;

/// Limit of the source lines of a crate.
const CRATE_LINES_MAX: usize = 6_000;
/// Limit of the source lines of a file.
const FILE_LINES_MAX: usize = 500;
/// The crate without a limit: the run index is one design that cannot be divided.
const UNLIMITED_CRATE: &str = "core";
/// Folder of generated files.
const GENERATED: &str = "generated";

/// Cycles of modules that stay, by the folder of the modules, with the reason.
const CYCLES: [(&str, &[&str], &str); 2] = [
    ("jinja-syntax", &["expression", "operand"], "the grammar is recursive: operands have expressions in brackets"),
    (
        "chat-template/python",
        &["attributes", "format", "methods", "text_methods"],
        "Python's types are: a method formats texts, which name attributes, which are methods",
    ),
];

type Dependencies = BTreeMap<String, BTreeSet<String>>;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("failed to read {}: {error}", path.display()))
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

fn name_of(path: &Path) -> String {
    path.file_stem().expect("a name").to_string_lossy().into_owned()
}

fn is_rust(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rs")
}

/// The crates by the names of their folders.
fn crates() -> BTreeMap<String, PathBuf> {
    let folders = entries(&workspace().join("crates")).into_iter().filter(|path| path.join("Cargo.toml").exists());
    folders.map(|path| (name_of(&path), path)).collect()
}

fn is_test(path: &Path) -> bool {
    let name = name_of(path);
    name == "tests" || name == "test" || name.ends_with("_tests")
}

/// Source files below a folder, without files of tests.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in entries(folder).into_iter().filter(|path| !is_test(path)) {
        if path.is_dir() {
            found.extend(sources(&path));
        } else if is_rust(&path) {
            found.push(path);
        }
    }
    found
}

/// Lines that are neither blank nor comments, without the module of tests at the end.
fn source_lines(text: &str) -> usize {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

#[test]
fn crates_and_files_are_small() {
    let mut large = Vec::new();
    for (name, folder) in crates() {
        let mut lines_of_crate = 0;
        for path in sources(&folder.join("src")) {
            let lines = source_lines(&read(&path));
            lines_of_crate += lines;
            let is_generated = path.iter().any(|part| part == GENERATED);
            if lines > FILE_LINES_MAX && !is_generated {
                large.push(format!("{} has {lines} lines; split it by idea", path.display()));
            }
        }
        assert!(lines_of_crate > 0, "the crate {name} has sources");
        if lines_of_crate > CRATE_LINES_MAX && name != UNLIMITED_CRATE {
            large.push(format!("the crate {name} has {lines_of_crate} lines; cut it at a seam"));
        }
    }
    assert!(large.is_empty(), "{large:#?}");
}

/// Crates of the workspace that each crate depends on, without dependencies of tests.
fn dependencies() -> Dependencies {
    let manifests: BTreeMap<String, Table> = crates()
        .into_iter()
        .map(|(name, folder)| (name, read(&folder.join("Cargo.toml")).parse().expect("a manifest")))
        .collect();
    let package = |manifest: &Table| manifest["package"]["name"].as_str().expect("a name").to_owned();
    let folders: BTreeMap<String, String> =
        manifests.iter().map(|(name, manifest)| (package(manifest), name.clone())).collect();
    let of_manifest = |manifest: &Table| {
        let listed = manifest.get("dependencies").and_then(|listed| listed.as_table());
        listed.into_iter().flat_map(Table::keys).filter_map(|name| folders.get(name).cloned()).collect()
    };
    manifests.iter().map(|(name, manifest)| (name.clone(), of_manifest(manifest))).collect()
}

/// All crates that a crate depends on, directly or through others.
fn reached(from: &str, all: &Dependencies) -> BTreeSet<String> {
    all[from].iter().flat_map(|next| reached(next, all).into_iter().chain([next.clone()])).collect()
}

/// Names in backquotes.
fn quoted(cell: &str) -> BTreeSet<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_table_of_crates_has_their_dependencies() {
    let all = dependencies();
    let text = read(&workspace().join("ARCHITECTURE.md"));
    let table = text.split("| crate | uses |").nth(1).expect("the table of crates");
    let mut described = Dependencies::new();
    for row in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split(" |").collect();
        let name = quoted(cells[0]).pop_first().expect("a crate");
        described.insert(name, quoted(cells[1]));
    }
    let without_indirect = |(name, dependencies): (&String, &BTreeSet<String>)| {
        let through_others: BTreeSet<String> = dependencies.iter().flat_map(|next| reached(next, &all)).collect();
        (name.clone(), dependencies.difference(&through_others).cloned().collect())
    };
    let actual: Dependencies = all.iter().map(without_indirect).collect();
    assert_eq!(described, actual, "ARCHITECTURE.md describes other crates or dependencies");
}

#[test]
fn the_first_page_of_a_crate_names_its_files() {
    let mut missing = Vec::new();
    for (name, folder) in crates() {
        let src = folder.join("src");
        let text = read(&root_of(&src).expect("a root"));
        let page: String = text.lines().filter(|line| line.starts_with("//!")).collect();
        for path in entries(&src).into_iter().filter(|path| !is_test(path)) {
            let module = name_of(&path);
            let is_root = module == "lib" || module == "main";
            let is_named = ["", ".rs", "/"].iter().any(|end| {
                let named = format!("{module}{end}");
                page.contains(&format!("`{named}`"))
                    || page.contains(&format!("/{named}`"))
                    || page.contains(&format!("`{module}/"))
            });
            if !is_root && !is_named {
                missing.push(format!("{name}: {module}"));
            }
        }
    }
    assert!(missing.is_empty(), "the first page of a crate gives no role of: {missing:?}");
}

#[test]
fn every_file_of_a_test_program_is_built() {
    let programs = crates().into_values().map(|folder| folder.join("tests")).filter(|folder| folder.exists());
    for program in programs.flat_map(|folder| entries(&folder)).filter(|path| path.join("main.rs").exists()) {
        let main = read(&program.join("main.rs"));
        for path in entries(&program).into_iter().filter(|path| is_rust(path)) {
            let module = name_of(&path);
            let is_built = module == "main" || main.contains(&format!("mod {module};"));
            assert!(is_built, "{} is in no program; name it in main.rs", path.display());
        }
    }
}

/// A file without comments and the module of tests at the end.
fn code_of(path: &Path) -> String {
    let text = read(path);
    let code = text.split("\nmod tests {").next().unwrap_or_default();
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// First identifier of a text.
fn first_name(text: &str) -> String {
    text.trim_start().chars().take_while(|&c| c.is_alphanumeric() || c == '_').collect()
}

/// First names of the paths after a `::`: one name, or the names of a group in braces.
fn first_names(import: &str) -> Vec<String> {
    let Some(group) = import.strip_prefix('{') else { return vec![first_name(import)] };
    let (mut depth, mut items) = (0_usize, vec![String::new()]);
    for c in group.chars() {
        match c {
            '}' if depth == 0 => break,
            ',' if depth == 0 => items.push(String::new()),
            c => {
                depth = if c == '{' { depth + 1 } else { depth - usize::from(c == '}') };
                items.last_mut().expect("it has one").push(c);
            }
        }
    }
    items.iter().map(|item| first_name(item)).collect()
}

/// Folders of modules below a crate's `src`, and `src` itself.
fn module_folders(src: &Path) -> Vec<PathBuf> {
    let below = entries(src).into_iter().filter(|path| path.is_dir() && !is_test(path));
    let below = below.flat_map(|folder| module_folders(&folder));
    below.chain([src.to_owned()]).filter(|folder| root_of(folder).is_some()).collect()
}

/// The file whose module has a folder's files as its own modules.
fn root_of(folder: &Path) -> Option<PathBuf> {
    let inside = ["lib.rs", "main.rs", "mod.rs"].map(|file| folder.join(file));
    inside.into_iter().chain([folder.with_extension("rs")]).find(|path| path.exists())
}

/// Text after each path with this start, such as `crate::` or `super::super::`.
fn after_each<'c>(code: &'c str, start: &str) -> impl Iterator<Item = &'c str> {
    let found = code.match_indices(start).filter(|&(at, _)| !code[..at].ends_with("super::"));
    found.map(|(at, start)| &code[at + start.len()..])
}

/// The modules of a folder that each of them imports from, through `crate::`, `super::` or a name that the folder's root exports.
fn imports(src: &Path, folder: &Path) -> Dependencies {
    let root = root_of(folder).expect("a root");
    let modules: BTreeSet<String> =
        entries(folder).iter().filter(|path| !is_test(path)).map(|path| name_of(path)).collect();
    let root_code = code_of(&root);
    let mut owners: BTreeMap<String, String> = modules.iter().map(|name| (name.clone(), name.clone())).collect();
    for export in root_code.split("use ").skip(1).filter_map(|export| export.split(';').next()) {
        let path = export.trim_start_matches("self::").trim_start_matches("crate::");
        if let Some((module, names)) = path.split_once("::").filter(|(module, _)| modules.contains(*module)) {
            let names = names.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|name| !name.is_empty());
            owners.extend(names.map(|name| (name.to_owned(), module.to_owned())));
        }
    }
    let parts_of_folder = folder.strip_prefix(src).expect("it is inside").iter().filter_map(OsStr::to_str);
    let in_crate: String = ["crate"].into_iter().chain(parts_of_folder).flat_map(|part| [part, "::"]).collect();
    let mut all = Dependencies::new();
    for path in sources(folder).into_iter().filter(|path| *path != root) {
        let inside = path.strip_prefix(folder).expect("it is inside");
        let parts: Vec<String> = inside.iter().map(|part| name_of(Path::new(part))).collect();
        let depth = parts.iter().filter(|part| *part != "mod").count();
        let code = code_of(&path);
        let to_folder = "super::".repeat(depth);
        let used = after_each(&code, &in_crate).chain(after_each(&code, &to_folder));
        let used = used.flat_map(first_names).filter_map(|name| owners.get(&name).cloned());
        all.entry(parts[0].clone()).or_default().extend(used.filter(|module| *module != parts[0]));
    }
    for module in modules {
        all.entry(module).or_default();
    }
    all
}

/// The modules that a module imports from, directly or through others.
fn imported(from: &str, all: &Dependencies) -> BTreeSet<String> {
    let (mut reached, mut left) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(next) = left.pop() {
        for module in &all[&next] {
            if reached.insert(module.clone()) {
                left.push(module.clone());
            }
        }
    }
    reached
}

#[test]
fn no_imports_of_modules_form_a_cycle() {
    let mut cycles = BTreeSet::new();
    for (name, of_crate) in crates() {
        let src = of_crate.join("src");
        for folder in module_folders(&src) {
            let all = imports(&src, &folder);
            let place = folder.strip_prefix(&src).expect("it is inside").iter().filter_map(OsStr::to_str);
            let place = [&*name].into_iter().chain(place).collect::<Vec<_>>().join("/");
            for module in all.keys() {
                let reached = imported(module, &all);
                if reached.contains(module) {
                    let is_back = |other: &&String| imported(other, &all).contains(module);
                    let cycle: Vec<String> = reached.iter().filter(is_back).cloned().collect();
                    cycles.insert((place.clone(), cycle));
                }
            }
        }
    }
    let owned = |cycle: &[&str]| cycle.iter().map(|&module| module.to_owned()).collect();
    let permitted = CYCLES.map(|(folder, cycle, _)| (folder.to_owned(), owned(cycle)));
    let advice = "move what both sides use to a module of its own; CYCLES has the exceptions";
    assert_eq!(cycles, BTreeSet::from(permitted), "modules import each other, in these folders: {advice}");
}
