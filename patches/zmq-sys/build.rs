//! Builds libzmq with CURVE.
//!
//! The published `zmq-sys` builds libzmq without CURVE, and has no option for it. This is its build script with two definitions
//! for the C++ compiler, with libzmq's own file of cryptography, and with all other files in one translation unit. The bindings in
//! `src` are those of `zmq-sys` 0.12.0, unchanged. See `docs/decisions/curve.md`.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A compiler that compiles nothing: it writes its arguments to the object file, one in each line. `cc` asks the compiler what it is
/// with `-E`.
const RECORDER: &str = r#"#!/bin/sh
for argument; do
  case $argument in -E) exec "$FLASH_INDEXER_CXX" "$@" ;; esac
  case $previous in -o) object=$argument ;; esac
  previous=$argument
done
printf '%s\n' "$@" >"$object"
"#;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let target = env::var("TARGET").expect("cargo sets TARGET for build scripts");
    let mut definitions = vec!["ZMQ_HAVE_CURVE", "ZMQ_USE_TWEETNACL"];
    if target.contains("linux") {
        // Random bytes from the kernel, without a file descriptor that threads share.
        definitions.push("ZMQ_HAVE_GETRANDOM");
    }
    // `zeromq_src` has no call for a definition. The compiler's flags are those of all variables together.
    let variable = format!("CXXFLAGS_{target}");
    let mut flags = env::var(&variable).unwrap_or_default();
    for name in &definitions {
        flags.push_str(&format!(" -D{name}=1"));
    }
    env::set_var(&variable, flags);
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR for build scripts"));
    build_as_one_unit(&target, &out);
    build_cryptography(&definitions, &out);
}

/// Compiles all files of libzmq as one. By themselves they take nine times as long, nearly all of it for the headers that they share.
///
/// Only `zeromq_src` knows the files and their definitions, so its build runs with [`RECORDER`] as the compiler.
fn build_as_one_unit(target: &str, out: &Path) {
    let compiler = cc::Build::new().cpp(true).get_compiler();
    let recorder = out.join("recorder");
    fs::write(&recorder, RECORDER).expect("OUT_DIR can be written");
    fs::set_permissions(&recorder, fs::Permissions::from_mode(0o755)).expect("a file of this build");
    let variable = format!("CXX_{target}");
    let usual = env::var_os(&variable);
    env::set_var("FLASH_INDEXER_CXX", compiler.path());
    env::set_var(&variable, &recorder);
    zeromq_src::Build::new().build();
    match usual {
        Some(usual) => env::set_var(&variable, usual),
        None => env::remove_var(&variable),
    }

    let library = out.join("lib");
    let (mut unit, mut flags) = (String::new(), Vec::new());
    let mut build = cc::Build::new();
    build.cpp(true).warnings(false).out_dir(&library);
    let mut records: Vec<PathBuf> =
        fs::read_dir(&library).expect("zeromq_src wrote here").map(|entry| entry.expect("a file").path()).collect();
    records.retain(|path| path.extension() == Some(OsStr::new("o")));
    records.sort();
    for record in records {
        let arguments = fs::read_to_string(&record).expect("the recorder wrote it");
        let source = arguments.lines().last().expect("a compiler has arguments");
        flags = arguments.lines().take_while(|argument| *argument != "-o").map(str::to_owned).collect();
        if source.ends_with(".cpp") {
            unit.push_str(&format!("#include \"{source}\"\n"));
        } else {
            build.file(source);
        }
    }
    // The files have the same flags.
    for flag in &flags {
        build.flag(flag);
    }
    let unit_path = out.join("libzmq.cpp");
    fs::write(&unit_path, unit).expect("OUT_DIR can be written");
    build.file(unit_path).compile("zmq");
}

/// Compiles TweetNaCl, of which `zeromq_src` copies the source beside its results, and which it does not compile.
fn build_cryptography(definitions: &[&str], out: &Path) {
    let source = out.join("source").join("src");
    let mut build = cc::Build::new();
    for name in definitions {
        build.define(name, "1");
    }
    // Its speed bounds that of every connection, also in tests.
    build.opt_level(3).warnings(false);
    // The first folder has the empty `platform.hpp` that libzmq is built with.
    build.include(out).include(&source).file(source.join("tweetnacl.c"));
    build.compile("zmq_tweetnacl");
}
