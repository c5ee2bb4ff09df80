//! Gives the program its commit: `FLASH_INDEXER_COMMIT` if set, as for a build without the repository, otherwise Git's.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=FLASH_INDEXER_COMMIT");
    let given = std::env::var("FLASH_INDEXER_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(commit_of_repository);
    println!("cargo::rustc-env=FLASH_INDEXER_COMMIT={}", commit.as_deref().unwrap_or("unknown commit"));
}

fn commit_of_repository() -> Option<String> {
    let directory = git(&["rev-parse", "--absolute-git-dir"])?;
    // Each commit and each checkout adds a line.
    let log = Path::new(&directory).join("logs/HEAD");
    if log.exists() {
        println!("cargo::rerun-if-changed={}", log.display());
    }
    git(&["log", "-1", "--format=%h %cs"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}
