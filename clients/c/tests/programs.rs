//! Programs in C, compiled with the header and linked to each of the libraries.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder where Cargo has put this build's libraries.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().expect("the test's path");
    let folder = test.parent().expect("it has a folder").to_owned();
    assert!(folder.join("libflash_index.a").exists(), "{} has the static library", folder.display());
    folder
}

/// Kind of linking of a program to the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Linked {
    Static,
    Shared,
    /// Statically, with the address sanitizer.
    Sanitized,
}

fn run(command: &mut Command, input: &str) -> String {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let written = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("it ends");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    written.expect("the program reads its input");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn compile(program: &str, linked: Linked, into: &Path) -> PathBuf {
    let path = into.join(format!("{linked:?}"));
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or("cc".into()));
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-g", "-I"]).arg(folder().join("include"));
    cc.arg(folder().join(program)).arg("-o").arg(&path);
    match linked {
        Linked::Shared => {
            cc.arg("-L").arg(libraries()).args(["-lflash_index", "-lpthread"]);
        }
        Linked::Static | Linked::Sanitized => {
            cc.arg(libraries().join("libflash_index.a")).args(["-lpthread", "-ldl", "-lm"]);
        }
    }
    if linked == Linked::Sanitized {
        cc.args(["-fsanitize=address,undefined", "-fno-sanitize-recover"]);
    }
    run(&mut cc, "");
    path
}

fn program(path: &Path) -> Command {
    let mut command = Command::new(path);
    command.env("LD_LIBRARY_PATH", libraries());
    command
}

/// The shared vectors, a line each.
fn vectors() -> (usize, String) {
    let path = folder().join("../testdata/local-hashes.json");
    let text = std::fs::read_to_string(path).expect("the vectors");
    let vectors: Value = serde_json::from_str(&text).expect("JSON");
    let cases = vectors["cases"].as_array().expect("cases");
    let line = |case: &Value| {
        let texts = ["lora_name", "cache_salt"].map(|name| match case[name].as_str() {
            None | Some("") => "-",
            Some(text) => text,
        });
        let numbers = ["first_token", "step", "tokens", "block_size"].map(|name| case[name].to_string());
        let hashes = case["hashes"].as_array().expect("hashes").iter().map(|hash| hash.as_str().expect("a hash"));
        let fields = numbers.iter().map(String::as_str).chain(texts).chain(hashes);
        fields.collect::<Vec<_>>().join(" ") + "\n"
    };
    (cases.len(), cases.iter().map(line).collect())
}

#[test]
fn every_function_works_from_c() {
    let into = tempfile::tempdir().expect("a folder");
    let (cases, vectors) = vectors();
    assert!(cases >= 40);
    for linked in [Linked::Static, Linked::Shared, Linked::Sanitized] {
        let path = compile("tests/calls.c", linked, into.path());
        assert_eq!(run(&mut program(&path), &vectors), format!("{cases} vectors\n"), "{linked:?}");
    }
}

#[test]
fn the_example_routes() {
    let into = tempfile::tempdir().expect("a folder");
    for linked in [Linked::Static, Linked::Shared] {
        let path = compile("examples/router.c", linked, into.path());
        let expected = "the session's next turn: engine 2 holds 192 tokens\n\
                        another session: engine 1 holds 64 tokens\n\
                        another prompt: no engine holds its first block\n";
        assert_eq!(run(&mut program(&path), ""), expected);
    }
}

#[test]
fn the_header_is_valid_cpp() {
    let into = tempfile::tempdir().expect("a folder");
    let source = into.path().join("header.cpp");
    std::fs::write(&source, "#include <flash_index.h>\n#include <flash_index.h>\nint main() { return 0; }\n")
        .expect("a file");
    let mut cpp = Command::new(std::env::var_os("CXX").unwrap_or("c++".into()));
    run(
        cpp.args(["-std=c++17", "-Wall", "-Werror", "-fsyntax-only", "-I"]).arg(folder().join("include")).arg(source),
        "",
    );
}
