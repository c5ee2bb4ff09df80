//! Builds libzmq with CURVE.
//!
//! The published `zmq-sys` builds libzmq without CURVE, and has no option for it. This is its build script with two definitions
//! for the C++ compiler, and with libzmq's own file of cryptography. The bindings in `src` are those of `zmq-sys` 0.12.0,
//! unchanged. See `docs/decisions/curve.md`.

use std::env;
use std::path::PathBuf;

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
    zeromq_src::Build::new().build();
    build_cryptography(&definitions);
}

/// Compiles TweetNaCl, of which `zeromq_src` copies the source beside its results, and which it does not compile.
fn build_cryptography(definitions: &[&str]) {
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR for build scripts"));
    let source = out.join("source").join("src");
    let mut build = cc::Build::new();
    for name in definitions {
        build.define(name, "1");
    }
    // Its speed bounds that of every connection, also in tests.
    build.opt_level(3).warnings(false);
    // The first folder has the empty `platform.hpp` that libzmq is built with.
    build.include(&out).include(&source).file(source.join("tweetnacl.c"));
    build.compile("zmq_tweetnacl");
}
