//! Builds libzmq with CURVE.
//!
//! The published `zmq-sys` builds libzmq without CURVE, and has no option for it. This is its build script with two definitions
//! for the C++ compiler, with libzmq's own file of cryptography, and, on Unix, with its C++ files in one translation unit. The bindings
//! in `src` are those of `zmq-sys` 0.12.0, unchanged. See `docs/decisions/curve.md`.

use std::env;
use std::path::{Path, PathBuf};

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
    #[cfg(unix)]
    one_unit::build(&target, &out);
    #[cfg(not(unix))]
    zeromq_src::Build::new().build();
    build_cryptography(&definitions, &out);
}

/// All C++ files of libzmq as one translation unit. Compiled one by one they take nine times as long without optimisation, nearly all of it
/// for the headers that they share.
#[cfg(unix)]
mod one_unit {
    use std::collections::BTreeSet;
    use std::env;
    use std::ffi::{OsStr, OsString};
    use std::fs;
    use std::io::ErrorKind;
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};

    /// A compiler that compiles nothing: it writes its arguments to the object file, one in each line. `cc` runs it with `-E` to find
    /// out which compiler it is.
    const RECORDER: &str = r#"#!/bin/sh
for argument; do
  case $argument in -E) exec "$RECORDED_CXX" "$@" ;; esac
  case $previous in -o) object=$argument ;; esac
  previous=$argument
done
printf '%s\n' "$@" >"$object"
"#;

    /// `zeromq_src` has the list of files and the definitions of each system, and no call that returns them. It runs with [`RECORDER`] as
    /// its compiler.
    pub fn build(target: &str, out: &Path) {
        let library = out.join("lib");
        // Objects of an earlier run are no records.
        match fs::remove_dir_all(&library) {
            Err(error) if error.kind() != ErrorKind::NotFound => panic!("{library:?} cannot be removed: {error}"),
            _ => record(target, out),
        }
        let mut records: Vec<PathBuf> =
            fs::read_dir(&library).expect("zeromq_src wrote here").map(|entry| entry.expect("a file").path()).collect();
        records.retain(|path| path.extension() == Some(OsStr::new("o")));
        records.sort();

        let mut unit = String::new();
        let (mut definitions, mut folders) = (BTreeSet::new(), BTreeSet::new());
        let mut build = cc::Build::new();
        build.cpp(true).warnings(false).out_dir(&library);
        for record in records {
            let record = fs::read_to_string(record).expect("the recorder wrote it");
            let arguments: Vec<&str> = record.lines().collect();
            for pair in arguments.windows(2) {
                match pair {
                    ["-I", folder] => _ = folders.insert((*folder).to_owned()),
                    ["-c", source] if source.ends_with(".cpp") => unit.push_str(&format!("#include \"{source}\"\n")),
                    ["-c", source] => _ = build.file(source),
                    // Other flags are those of `cc` and of the environment, which this build has as well.
                    [argument, _] if argument.starts_with("-D") => _ = definitions.insert((*argument).to_owned()),
                    _ => {}
                }
            }
        }
        for definition in &definitions {
            build.flag(definition);
        }
        build.includes(&folders);
        let path = out.join("libzmq.cpp");
        fs::write(&path, unit).expect("OUT_DIR can be written");
        build.file(path).compile("zmq");
    }

    /// Runs the build of `zeromq_src`, which writes its records to `lib` instead of objects.
    fn record(target: &str, out: &Path) {
        let recorder = out.join("recorder");
        fs::write(&recorder, RECORDER).expect("OUT_DIR can be written");
        fs::set_permissions(&recorder, fs::Permissions::from_mode(0o755)).expect("a file of this build");
        let compiler = cc::Build::new().cpp(true).get_compiler();
        env::set_var("RECORDED_CXX", compiler.path());
        // A wrapper of compilers, such as a cache, reads and orders the arguments. Cargo gives build scripts this variable.
        let replaced = [(format!("CXX_{target}"), Some(recorder)), ("RUSTC_WRAPPER".to_owned(), None)];
        let usual = replaced.map(|(variable, value)| {
            let usual = env::var_os(&variable);
            set(&variable, value.map(Into::into));
            (variable, usual)
        });
        zeromq_src::Build::new().build();
        for (variable, usual) in usual {
            set(&variable, usual);
        }
    }

    fn set(variable: &str, value: Option<OsString>) {
        match value {
            Some(value) => env::set_var(variable, value),
            None => env::remove_var(variable),
        }
    }
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
